"""Starts the processes of a benchmark, netbuilder's and PyTorch's, with the same number of threads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.proto import DeviceError
from netbuilder.tools.bench.pairs import TimeLimits, Worker
from netbuilder.tools.bench.predict import PEERS
from netbuilder.tools.bench.work import Work

__all__ = [
    "BEST",
    "caffe2_worker",
    "ddp_worker",
    "exchange_worker",
    "gpu_peer_python",
    "gpu_worker",
    "modes_of",
    "our_worker",
    "peer_python",
    "prediction_pythons",
    "ranks_worker",
    "require_compiler",
    "torch_state",
    "torch_worker",
]

BEST = "best"
"""In place of a mode of PyTorch: eager and compiled, and the ratio to the faster of the two."""

_PEER = Path(__file__).parent / "peer_torch.py"
_PINS = {
    "onnxruntime": ["onnxruntime==1.31.1", "onnx==1.23.2", "numpy"],
    "openvino": ["openvino==2026.4.1", "onnx==1.23.2", "numpy"],
    "models": ["torch==2.14.1", "torchvision==0.29.1", "timm==1.0.31", "transformers==5.24.0", "numpy"],
    "torch": ["torch==2.13.0", "numpy"],
}
_LOOKING = 60.0  # seconds for finding out whether PyTorch works here


def _environment(threads: int) -> dict[str, str]:
    # Without OMP_WAIT_POLICY=active: a side that waits must not use the cores of the other.
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def our_worker(work: Work, *, warmup: int, way: str = "") -> Worker:
    """Start a process that trains with netbuilder.

    Args:
        way: how its steps are fed and run, see ``our_wrapper``; "": they are only run.
    """
    module = "our_wrapper" if way else "ours"
    command = [sys.executable, "-m", f"netbuilder.tools.bench.{module}", str(warmup), work.to_text()]
    command += [way] if way else []
    return Worker("netbuilder", command, _environment(work.threads))


def gpu_worker(work: Work, *, warmup: int, limits: TimeLimits | None = None) -> Worker:
    """Start a process that trains with netbuilder on GPUs."""
    command = [sys.executable, "-m", "netbuilder.tools.bench.our_gpu", str(warmup), work.to_text()]
    return Worker("netbuilder", command, _environment(work.threads), limits=limits)


def ranks_worker(work: Work, processes: int, *, warmup: int) -> Worker:
    """Start processes that train with netbuilder together.

    Args:
        work: with the batch of all processes together, and the threads of each.
        processes: number of them.

    Raises:
        DeviceError: mpi4py, its library or mpiexec is missing.
    """
    return _ranks(processes, ["train", str(warmup), work.to_text()], work.threads)


def exchange_worker(sizes: Sequence[int], bucket_bytes: int, processes: int) -> Worker:
    """Start processes that sum values of so many bytes, see ``our_ranks.exchange_ways``.

    Raises:
        DeviceError: mpi4py, its library or mpiexec is missing.
    """
    return _ranks(processes, ["exchange", json.dumps(list(sizes)), str(bucket_bytes)], 1)


def _ranks(processes: int, arguments: Sequence[str], threads: int) -> Worker:
    mpi = installed_mpi()
    command = [*mpi.command(processes), sys.executable, "-m", "netbuilder.tools.bench.our_ranks", *arguments]
    return Worker(f"netbuilder in {processes} processes", command, {**_environment(threads), **mpi.environment()})


def ddp_worker(work: Work, python: str, processes: int, *, warmup: int) -> Worker:
    """Start processes that train with PyTorch's DistributedDataParallel over gloo.

    Args:
        work: with the batch of all processes together, and the threads of each.
        python: an interpreter that has PyTorch.
        processes: number of them.

    Raises:
        DeviceError: mode "compile" needs a C++ compiler, and there is none.
    """
    if work.mode == "compile":
        require_compiler(os.environ)
    command = [python, str(_PEER.with_name("peer_ddp.py")), str(warmup), work.to_text(), str(processes)]
    return Worker(f"torch in {processes} processes", command, _environment(work.threads))


def torch_worker(work: Work, python: str, *, warmup: int, limits: TimeLimits | None = None) -> Worker:
    """Start a process that trains with PyTorch.

    Args:
        python: an interpreter that has PyTorch.

    Raises:
        DeviceError: the mode needs a compiler, and there is none.
    """
    return Worker("torch", _torch_command(work, python, warmup), _environment(work.threads), limits=limits)


def caffe2_worker(folder: Path, python: str, threads: int, *, warmup: int) -> Worker:
    """Start a process that trains with Caffe2.

    Args:
        folder: with the nets, see ``Training.write_nets``.
        python: an interpreter that has Caffe2.
        threads: of the process.

    Raises:
        RuntimeError: there is no Caffe2, or it refuses the net; the message has the end of its output.
    """
    command = [python, str(_PEER.with_name("peer_caffe2.py")), str(warmup), str(folder), str(threads)]
    return Worker("Caffe2", command, _environment(threads))


def torch_state(work: Work, python: str) -> None:
    """Train a few steps in PyTorch, which writes ``work.state``.

    Raises:
        DeviceError: the mode needs a compiler, and there is none.
        RuntimeError: PyTorch failed; the message has the end of its output.
    """
    done = subprocess.run(
        _torch_command(work, python, 0), env=_environment(work.threads), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"torch ended with code {done.returncode}: {done.stderr[-2000:]}")


def _torch_command(work: Work, python: str, warmup: int) -> list[str]:
    if work.mode in ("compile", "graphs"):
        (_require_c_compiler if work.gpu else require_compiler)(os.environ)
    return [python, str(_PEER), str(warmup), work.to_text()]


def modes_of(mode: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modes that PyTorch runs in: one, or for ``BEST`` eager and, with a C++ compiler, compiled."""
    if mode != BEST:
        return (mode,)
    try:
        require_compiler(environment)
    except DeviceError as error:
        print(f"{error}; PyTorch runs only eager", file=sys.stderr)
        return ("eager",)
    return ("eager", "compile")


def require_compiler(environment: Mapping[str, str]) -> None:
    """Check that torch.compile finds the C++ compiler that it needs.

    Raises:
        DeviceError: there is none.
    """
    compiler = environment.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler, path=environment.get("PATH")) is None:
        raise DeviceError(
            f"torch.compile needs a C++ compiler, but {compiler!r} was not found; install g++, name another in the "
            "variable CXX, or use --mode eager (--peers eager for memory)"
        )


def _require_c_compiler(environment: Mapping[str, str]) -> None:
    """Check that torch.compile finds what Triton needs to start its kernels on GPUs.

    Raises:
        DeviceError: it does not.
    """
    chosen = environment.get("CC")
    compilers = [chosen] if chosen else ["gcc", "clang"]
    if not any(shutil.which(compiler, path=environment.get("PATH")) for compiler in compilers):
        raise DeviceError(
            f"torch.compile needs a C compiler for GPUs, but {' or '.join(map(repr, compilers))} was not found; "
            "install gcc, name another in the variable CC, or use --gpu-peers eager"
        )


def peer_python(peer: str, *, seconds: float | None = None) -> str:
    """Return the interpreter of a peer's environment, which the first call makes with pip in the user's cache.

    Args:
        peer: "torch", "models" (torch with torchvision, timm and transformers), "onnxruntime" or "openvino".
        seconds: that pip may take; None: any time.

    Raises:
        RuntimeError: pip could not install the peer; the message has the end of its output.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    folder = cache / "netbuilder" / "peers" / _PINS[peer][0].replace("==", "-")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    stamp = folder / "installed"
    if not stamp.exists():
        print(f"making an environment with {_PINS[peer][0]} in {folder}", file=sys.stderr)
        try:
            venv.create(folder, with_pip=True, clear=True)
            done = subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", *_PINS[peer]],
                capture_output=True, text=True, check=False, timeout=seconds,
            )  # fmt: skip
        except subprocess.SubprocessError as error:
            raise RuntimeError(f"pip could not install {_PINS[peer]}: {error}") from error
        if done.returncode != 0:
            raise RuntimeError(f"pip could not install {_PINS[peer]}:\n{done.stderr[-2000:]}")
        stamp.touch()
    return str(python)


def gpu_peer_python(*, seconds: float | None = None) -> str:
    """Return an interpreter with PyTorch for GPUs: this one, or that of ``peer_python``.

    Args:
        seconds: that pip may take to install it; None: any time.

    Raises:
        DeviceError: PyTorch cannot use the GPU; the message has the end of its output.
        RuntimeError: pip could not install it; the message has the end of its output.
    """
    if not _why_no_torch(sys.executable):
        return sys.executable
    python = peer_python("torch", seconds=seconds)
    if why := _why_no_torch(python):
        raise DeviceError(f"PyTorch of {python!r} cannot use the GPU: {why}; name another one with --peer-python")
    return python


def _why_no_torch(python: str) -> str:
    """Return why PyTorch cannot use the GPU in an interpreter; "" if it can."""
    command = [python, "-c", "import torch; torch.zeros(1, device='cuda')"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LOOKING)
    except subprocess.TimeoutExpired as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"


def prediction_pythons(python: str | None) -> dict[str, str]:
    """Return an interpreter for each peer of the benchmark of predictors; a library that is not available is left out.

    Args:
        python: an interpreter that has some of the peers; None: environments are made, see ``peer_python``.

    Raises:
        DeviceError: ``python`` has none of the peers.
        RuntimeError: pip could install none of them; the message has the end of its output.
    """
    found, missing = {}, []
    for peer in PEERS:
        try:
            found[peer] = peer_python(peer) if python is None else _having(python, peer)
        except (DeviceError, RuntimeError) as error:
            missing.append(error)
            print(f"without {peer}: {error}", file=sys.stderr)
    if not found:
        raise missing[0]
    return found


def _having(python: str, peer: str) -> str:
    """Return ``python`` if it has a package; raise DeviceError if not."""
    if subprocess.run([python, "-c", f"import {peer}"], capture_output=True, check=False).returncode:
        raise DeviceError(f"{python!r} cannot import {peer}; install it there, or leave --peer-python out")
    return python
