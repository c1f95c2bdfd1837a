"""Kernels that CuPy compiles while a program runs, stored in a folder."""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netbuilder.engines.gpu_packages import how_to_install
from netbuilder.proto import DeviceError, ParseError, opened_files
from netbuilder.proto.whole_file import write_text

__all__ = ["record", "recorded"]


def recorded(folder: Path) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """Return the recorded kernels of a folder: name, source, options, name expressions.

    Raises:
        ParseError: the folder has no such kernels, or one is damaged.
    """
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            kernel = json.loads(opened_files.read_text(file))
            kept = tuple(option for option in kernel["options"] if option.startswith(("-D", "-std", "--std", "-fmad")))
            found.append((file.stem, kernel["source"], kept, tuple(kernel["names"])))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ParseError(f"{str(file)!r} is not a kernel that --record stored: {error!r}") from error
    if not found:
        raise ParseError(f"{str(folder)!r} is not a folder in which --record stored kernels")
    return found


def record(folder: Path, program: Sequence[str]) -> int:
    """Run a program, and store the kernels that CuPy compiles; return 0.

    Raises:
        DeviceError: CuPy is not installed.
    """
    try:
        from cupy.cuda import compiler
    except ImportError as error:
        raise DeviceError(f"--record needs CuPy and a GPU: {how_to_install()} ({error})") from error

    folder.mkdir(parents=True, exist_ok=True)
    original = compiler._compile_with_cache_cuda

    def compile_and_store(source: str, options: Sequence[str], *others: Any, **named: Any) -> Any:
        names = list(named.get("name_expressions") or ())
        text = json.dumps({"source": source, "options": [*options], "names": names})
        name = hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
        write_text(str(folder / f"{name}.json"), text)
        return original(source, options, *others, **named)

    compiler._compile_with_cache_cuda = compile_and_store
    if program[:1] == ["-m"]:
        sys.argv = list(program[1:])
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(program)
        runpy.run_path(program[0], run_name="__main__")
    return 0
