"""A double of CuPy, for what real CuPy on emulated GPUs (``emulated_gpu``) does not show.

- It counts launches, copies between devices, allocations, events, waits and graphs.
- Clocks on its streams find work that does not wait for what it needs (``machine.Race``), even where the numbers come
  out right, memory that is freed while another stream uses it, and pinned memory that is overwritten too early.
- Arrays of other devices and of the host are refused, also by our own kernels, which CuPy lets read anything.

Functions are NumPy's of the same name, whatever CuPy has; our own CUDA kernels write zeros. Numbers, element types,
arguments and indexing are judged on emulated GPUs. NCCL's double computes, and is used there too (``nccl``); so does
that of cuBLAS (``blas``), as our own kernels call it.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cupy_double.blas import CublasDouble
from cupy_double.kernels import launch
from cupy_double.machine import HOST, CUDARuntimeError, Launch, Machine, Race, Transfer
from cupy_double.module import CupyDouble
from cupy_double.nccl import Hang, Mismatch, NcclDouble, NcclError
from cupy_double.ndarray import PerformanceWarning
from netbuilder.ops.engines import arrays, gpu, nccl, peers
from netbuilder.ops.engines.cuda import cublas
from netbuilder.ops.engines.cuda.kernel import Kernel
from netbuilder.ops.fills import random_fill

__all__ = [
    "HOST",
    "CUDARuntimeError",
    "CublasDouble",
    "CupyDouble",
    "Hang",
    "Launch",
    "Machine",
    "Mismatch",
    "NcclDouble",
    "NcclError",
    "PerformanceWarning",
    "Race",
    "Transfer",
    "draw_nothing",
    "gpus",
    "using",
]


@contextmanager
def using(cupy: CupyDouble) -> Iterator[Machine]:
    """Let netbuilder take a double for CuPy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_cupy", lambda: cupy)
        patch.setattr(gpu, "_made", {})
        double = NcclDouble(cupy.machine)
        patch.setattr(nccl, "_module", lambda: double)
        patch.setattr(nccl, "_groups", {})
        patch.setattr(cublas, "_library", lambda xp: xp.cuda.cublas)
        patch.setattr(cublas, "_handles", cublas._new_handles())
        patch.setattr(Kernel, "__call__", functools.partialmethod(launch, cupy))
        peers.can_access_peer.cache_clear()
        try:
            yield cupy.machine
        finally:
            peers.can_access_peer.cache_clear()


@contextmanager
def gpus(devices: int, *, access: bool = True) -> Iterator[Machine]:
    """Give netbuilder so many GPUs; after it, nothing may have gone wrong that could not be told.

    Args:
        access: whether the GPUs can read each other's memory.
    """
    with using(CupyDouble(devices, peers=access)) as machine:
        yield machine
    gc.collect()
    machine.settle(all=True)
    assert machine.faults == []


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Leave undefined what random fills draw: for large nets it takes longer than steps, which read no numbers here."""
    patch.setattr(random_fill, "filled", lambda xp, draw, key, shape, finish, dtype, **more: xp.empty(shape, dtype))
