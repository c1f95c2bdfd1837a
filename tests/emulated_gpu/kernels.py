"""Compiles CUDA C++ for the host: a kernel's source becomes a shared object that the emulated driver loads."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import threading
import time
from pathlib import Path

__all__ = ["CHECKED", "FLAGS", "KernelError", "build", "compiled", "folder"]

CHECKED = (
    "-fsanitize=thread,alignment,bounds,shift-exponent,float-cast-overflow",
    "--param",
    "tsan-instrument-func-entry-exit=0",
)
"""Flags with which kernels tell ``library/checks.cpp`` of each access to memory, and of what x86 does unlike a GPU."""

FLAGS = (
    *CHECKED,
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-w",
    "-fno-strict-aliasing",
    "-ffp-contract=off",  # a GPU's compiler decides on its own where to fuse; here nothing is
    "-fno-math-errno",
    "-fvisibility=hidden",
)
_LINK = ("-shared", "-nostdlib")  # the emulated libraries have loaded what a kernel calls; linking is faster so
# Names of what makes threads of a block wait for each other: such a kernel's threads run as fibers.
_BARRIERS = re.compile(r"__sync|__shfl|__ballot|__any_sync|__all_sync")
_BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
# A kernel that is no template (those have name expressions).
_KERNEL = re.compile(rf"(?<![>\w])\s__global__\s+{_BOUNDS}void\s+{_BOUNDS}(\w+)\s*\(")
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\([^)]*\)\s*)?([\w:<>\s]+?)\s*(\w+)\s*\[\s*\]\s*;")
# A variable of all blocks, which begins as 0; blocks' own begin without a value.
_GLOBAL = re.compile(r"(?:__device__|__constant__|__managed__)\s+[\w:<>\s]+?\s\w+\s*(?:\[[^\]]*\]\s*)*[;=]")
# CuPy's partition and argpartition rely on the lanes of a warp running in step; fibers need barriers for that.
_IN_STEP = re.compile(r"(bitonic_sort_step<[^;]*;)")

compiled: dict[str, float] = {}
"""Seconds that the compiler took for each kernel that this process has compiled."""


class KernelError(Exception):
    """The compiler refused a kernel; the message has its output."""


def folder() -> Path:
    """Return the folder of the emulation, which ``build.py`` made."""
    return Path(os.environ["EMULATED_GPU"])


def translate(source: str, names: list[str], flush: bool) -> tuple[str, dict[str, str]]:
    """Return a kernel's source for g++, and the name of each name expression in the shared object."""
    source = _IN_STEP.sub(r"__syncwarp(); \1 __syncwarp();", source)
    barriers = bool(_BARRIERS.search(source))
    flush = flush and not re.search(r"\bdouble\b", source)  # the host has one switch for floats and doubles
    source = _DYNAMIC.sub(r"\1* \2 = reinterpret_cast<\1*>(emulated_shared);", source)
    mapping = {expression: f"expression_{number}" for number, expression in enumerate(names)}
    kernels = {**{name: name for name in _KERNEL.findall(" " + source)}, **mapping}
    if not kernels:
        raise KernelError(f"no kernel found in:\n{source}")
    exports = [
        f'extern "C" __attribute__((visibility("default"))) const EmulatedKernel emulated_kernel_{name} = '
        f"emulated_kernel<&{kernel}, {barriers:d}, {flush:d}>;"
        for kernel, name in kernels.items()
    ]
    if _GLOBAL.search(source):
        exports.append('extern "C" __attribute__((visibility("default"))) const bool emulated_has_globals = true;')
    return "\n".join(['#include "emulated_prelude.h"', source, "", *exports]), mapping


def build(source: str, options: tuple[str, ...] = (), names: list[str] | None = None) -> tuple[Path, dict[str, str]]:
    """Compile a kernel's source, unless that was done before.

    Args:
        source: CUDA C++.
        options: those of NVRTC that count here: definitions, folders of headers, ``-ftz=true``.
        names: the name expressions.

    Returns:
        The shared object, and the name of each name expression in it.

    Raises:
        KernelError: the compiler refused it.
    """
    text, mapping = translate(source, names or [], "-ftz=true" in options)
    defines = [option for option in options if option.startswith(("-D", "-U"))]
    own = [option for option in options if option.startswith("-I") and not re.search("/_cccl/|/nvidia/", option)]
    parts = [(folder() / "digest").read_text(), *defines, text]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    library = folder() / "kernels" / f"{key}.so"
    if not library.exists():
        began = time.perf_counter()
        _compile(text, [*defines, *own], library)
        compiled[f"{(_KERNEL.findall(' ' + source) or list(mapping))[0]} {key}"] = time.perf_counter() - began
    return library, mapping


def _compile(text: str, options: list[str], library: Path) -> None:
    library.parent.mkdir(exist_ok=True)
    # Other processes and threads may compile the same kernel.
    mine = library.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    file = mine.with_suffix(mine.suffix + ".cpp")
    file.write_text(text)
    include = folder() / "include"
    includes = [f"-I{include}", f"-I{(folder() / 'cupy_include').read_text()}"]
    command = ["g++", *FLAGS, *_LINK, *includes, *options, "-include", str(include / "emulated_prelude.h"), str(file)]
    environment = {**os.environ, "LD_PRELOAD": ""}
    made = subprocess.run([*command, "-o", str(mine)], capture_output=True, text=True, env=environment)
    if made.returncode:
        raise KernelError(f"g++ refused {file}:\n{made.stderr[:4000]}")
    os.replace(mine, library)
    file.rename(library.with_suffix(".cpp"))
