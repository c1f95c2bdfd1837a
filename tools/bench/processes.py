"""Starts the processes of a benchmark, netbuilder's and PyTorch's, with the same number of threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from netbuilder.proto import DeviceError
from netbuilder.tools.bench.pairs import Worker
from netbuilder.tools.bench.work import Work

__all__ = ["our_worker", "require_compiler", "torch_state", "torch_worker"]

_PEER = Path(__file__).parent / "peer_torch.py"


def _environment(threads: int) -> dict[str, str]:
    # Passive: a side that waits must not use the other side's cores.
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def our_worker(work: Work, *, warmup: int) -> Worker:
    """Start a process that trains with netbuilder."""
    command = [sys.executable, "-m", "netbuilder.tools.bench.ours", str(warmup), work.to_text()]
    return Worker("netbuilder", command, _environment(work.threads))


def torch_worker(work: Work, python: str, *, warmup: int) -> Worker:
    """Start a process that trains with PyTorch.

    Args:
        python: an interpreter that has it.

    Raises:
        DeviceError: the work is to be compiled, and there is no C++ compiler.
    """
    return Worker("torch", _torch_command(work, python, warmup), _environment(work.threads))


def torch_state(work: Work, python: str) -> None:
    """Let PyTorch train a few steps and write ``work.state``.

    Raises:
        DeviceError: the work is to be compiled, and there is no C++ compiler.
        RuntimeError: it failed; the message has the end of what it printed.
    """
    done = subprocess.run(
        _torch_command(work, python, 0), env=_environment(work.threads), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"torch ended with code {done.returncode}: {done.stderr[-2000:]}")


def _torch_command(work: Work, python: str, warmup: int) -> list[str]:
    if work.mode == "compile":
        require_compiler(os.environ)
    return [python, str(_PEER), str(warmup), work.to_text()]


def require_compiler(environment: Mapping[str, str]) -> None:
    """Check that torch.compile finds the C++ compiler that it writes its kernels for.

    Raises:
        DeviceError: it is not there.
    """
    compiler = environment.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler, path=environment.get("PATH")) is None:
        raise DeviceError(
            f"torch.compile needs a C++ compiler, and {compiler!r} is not there; install g++, name another in the "
            "variable CXX, or measure with --mode eager"
        )
