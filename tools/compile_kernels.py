"""Compile CUDA kernels with NVRTC, for GPUs that are not there: ``python -m netbuilder.tools.compile_kernels``.

It compiles all of our own kernels and, given a folder, the kernels that CuPy compiled while a program ran, which
``--record FOLDER -m MODULE ...`` stores there.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from netbuilder.engines.cuda.kernel import OPTIONS
from netbuilder.proto import DeviceError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.kernels.catalog import make_kernels
from netbuilder.tools.kernels.nvrtc_cuda import Nvrtc, has_cupy_headers
from netbuilder.tools.kernels.recording_cuda import record, recorded
from netbuilder.tools.options import OptionsParser, argument, option
from netbuilder.tools.parser import whole_number
from netbuilder.tools.reporting import reporting

__all__ = ["ARCHITECTURES", "main"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
_DENORMALS = "-ftz=true"  # as CuPy does


@reporting("compile_kernels")
def main(arguments: Sequence[str] | None = None) -> int:
    """Compile kernels, or record those of a program; return 1 if the compiler refuses one."""
    parser = OptionsParser(_Options, prog="compile_kernels")
    before, program = _without_program(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse(before)
    if options.record and not program:
        parser.error("--record: give a program, a script or -m MODULE, with its arguments")
    if options.record:
        return record(Path(options.record), program)
    others = [source for folder in options.folder for source in recorded(Path(folder))]
    compiler = Nvrtc()
    kernels, missing = make_kernels()
    sources: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]
    sources = [(name, kernel.source, OPTIONS, ()) for name, kernel in sorted(kernels.items())[:: options.every]]
    own = len(sources)
    if any("#include <cupy/" in text for _, text, *_ in others) and not has_cupy_headers():
        raise DeviceError("recorded kernels include headers of CuPy; pip install cupy-cuda12x (no GPU is needed)")
    sources += others
    refused: Counter[str] = Counter()
    for name, source, given, names in sources:
        for architecture in options.architectures:
            log = compiler.compile(source, architecture, (*given, _DENORMALS), names)
            if log is not None:
                refused[architecture] += 1
                print(f"{name} for {architecture}:\n{log}")
    if missing:
        print(f"compiled only when a net runs; record them (RECORDED=folder): {', '.join(missing)}")
    print(
        f"NVRTC {compiler.version}: {own} of {counted(len(kernels), 'own kernel')} and "
        f"{counted(len(others), 'recorded kernel')}"
    )
    for architecture in options.architectures:
        print(f"{architecture}: {len(sources) - refused[architecture]} compiled, {refused[architecture]} refused")
    return 1 if refused else 0


def _without_program(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of this command, and those after the folder of ``--record``: a program with its own."""
    given = list(arguments)
    for place, text in enumerate(given):
        if text == "--record" or text.startswith("--record="):
            end = place + (2 if text == "--record" else 1)
            return given[:end], given[end:]
    return given, []


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Compile all of netbuilder's CUDA kernels, and those in folders of recorded ones, with NVRTC. No GPU is needed."""

    architectures: tuple[str, ...] = option(
        f"kinds of GPUs (default: {','.join(ARCHITECTURES)})", default=tuple(ARCHITECTURES), metavar="SM,SM"
    )
    every: int = option(
        "compile every Nth of our own kernels, by name, for a sample (default: all)", type=whole_number(1), default=1
    )
    record: str | None = option(
        "instead, run the program that follows (a script, or -m and a module, with its arguments) and store each "
        "kernel that CuPy compiles in FOLDER; CuPy must be able to run, on a GPU or an emulated one",
        metavar="FOLDER",
    )
    folder: tuple[str, ...] = argument("folders of recorded kernels", nargs="*", metavar="FOLDER")


if __name__ == "__main__":
    sys.exit(main())
