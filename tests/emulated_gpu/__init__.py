"""An emulated GPU: real CuPy runs on it where there is none, with right numbers.

CuPy generates its kernels as CUDA C++. Here g++ compiles them for the host, and ``library/`` stands for NVIDIA's
driver, runtime and cuBLAS below them. So argument checks, element types, indexing, reductions, scatters, memory pools,
streams and graphs are CuPy's own, and kernels of this project run as they are written.

``make test-emulated`` builds it (``build.py``), and runs the tests of GPUs on it. In that environment,
``PYTHONPATH=tests:. .emulated/venv/bin/python -m emulated_gpu SCRIPT ...`` (or ``-m MODULE ...``) runs any program.

- Work waits in its stream until the host synchronizes, as late as CUDA allows: code that forgets to wait, or overwrites
  pinned memory too early, gets wrong numbers. ``EMULATED_GPU_EAGER=1`` does everything at once instead.
- Each access to memory is checked (``library/checks.h``), by what must come before what, not by what happened to: races
  of streams and of the threads of a kernel, accesses beyond arrays, to freed memory, to memory of other GPUs and of the
  host, values that nothing has written, addresses that are not aligned, shifts and casts that x86 does otherwise.
  ``machine.faults`` lists what was found; after each test there may be nothing. ``EMULATED_GPU_UNCHECKED=1`` leaves it
  out.
- What the host calls for is counted and listed (``machine.recorded``).
- Graphs are captured and replayed, and calls that CUDA refuses during a capture are errors.
- Memory comes filled with bytes 0xA5. Denormal floats are 0 in kernels without double precision, as CuPy compiles them.
- Eight devices, or ``EMULATED_GPUS``.

What it does not show: speed; last bits (no fused multiply-add, products summed in double precision); warps that run
in step without ``__syncwarp``; barriers in branches that not all threads take; accesses beyond a slice of an array;
more than one fault of each launch; races that atomics and fences should prevent, beyond the simple form that kernels
here use.
Missing, with an error: cuRAND, cuSOLVER, cuFFT, cuSPARSE, cuDNN, NCCL (tests have test doubles of the last two), CUB,
cooperative groups, textures.
"""

from __future__ import annotations

import os

from emulated_gpu import machine
from emulated_gpu.kernels import KernelError, compiled
from emulated_gpu.loader import install

__all__ = ["KernelError", "active", "compiled", "install", "machine"]


def active() -> bool:
    """Whether this process was started for the emulated GPU."""
    return "EMULATED_GPU" in os.environ
