"""Runs a program on the emulated GPU: ``python -m emulated_gpu SCRIPT ...``, or ``-m MODULE ...``."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from emulated_gpu import active, install, machine


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which CuPy finds the emulated libraries."""
    libraries = [str(folder / "lib" / name) for name in ("libcuda.so.1", "libcudart.so.12", "libcublas.so.12")]
    path = [str(folder / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        **os.environ,
        "EMULATED_GPU": str(folder),
        "EMULATED_GPUS": os.environ.get("EMULATED_GPUS", "8"),
        "LD_LIBRARY_PATH": os.pathsep.join(path),
        "LD_PRELOAD": " ".join(libraries),
        "CUPY_ACCELERATORS": "",  # CuPy's own reductions; those of CUB are machine code
        "CUPY_CACHE_DIR": str(folder / "cupy_cache"),
        "CUDA_PATH": str(folder),
    }


def main(arguments: list[str]) -> None:
    """Start Python again with the emulated libraries; there, run the program. What it does wrong is an error, too."""
    if not active():
        folder = Path(sys.prefix).parent
        os.execve(sys.executable, [sys.executable, "-m", "emulated_gpu", *arguments], environment(folder))
    install()
    machine.separate_arrays()
    try:
        kept: object = run(arguments)  # arrays and the streams that use them must not be freed in any order
    except SystemExit as end:
        if end.code:
            raise
        kept = end
    machine.finish_all()
    found = machine.faults()
    del kept
    sys.exit("\n".join(found) or None)


def run(arguments: list[str]) -> dict[str, object]:
    """Run a program in this process; return its global variables."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        return runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    return runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
