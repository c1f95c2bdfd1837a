"""A double of CuPy: the plain path of GPUs runs on it where there is none.

Its arrays lie in the host's memory, but refuse what CuPy's refuse: arrays of the host among their operands, silent
conversion, arrays of other devices, names, arguments and element types that CuPy lacks (``api.json``, recorded from a
real one). What real GPUs do late, it does at once, but finds work that does not wait for what it needs
(``machine.Race``). What it cannot show: the numbers and the speed of GPUs, compiling, memory running out.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cupy_double.kernels import launch
from cupy_double.machine import HOST, CUDARuntimeError, Launch, Machine, Race, Transfer
from cupy_double.module import API, CupyDouble
from cupy_double.nccl import Hang, Mismatch, NcclDouble, NcclError
from cupy_double.ndarray import PerformanceWarning, Undefined
from netbuilder.ops.engines import arrays, gpu, nccl, peers
from netbuilder.ops.engines.cuda.kernel import Kernel

__all__ = [
    "API",
    "HOST",
    "CUDARuntimeError",
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
    "Undefined",
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
        patch.setattr(Kernel, "__call__", functools.partialmethod(launch, cupy))
        peers.can_access_peer.cache_clear()
        try:
            yield cupy.machine
        finally:
            peers.can_access_peer.cache_clear()


@contextmanager
def gpus(devices: int, *, access: bool = True) -> Iterator[Machine]:
    """Give netbuilder so many GPUs; behind it, nothing may have gone wrong that could not be told.

    Args:
        access: whether the GPUs can read each other's memory.
    """
    with using(CupyDouble(devices, peers=access)) as machine:
        yield machine
    gc.collect()
    machine.settle(all=True)
    assert machine.faults == []
