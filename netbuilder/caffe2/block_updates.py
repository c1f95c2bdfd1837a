"""Block-wise model updates as Caffe2 computes them: its Nesterov momentum has the opposite sign."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from netbuilder import parallel
from netbuilder.parallel import Replicas

__all__ = ["Parallelize_BMUF", "Parallelize_CPU_BMUF", "Parallelize_GPU_BMUF"]

_SIGNATURE = inspect.signature(parallel.Parallelize_BMUF)


@functools.wraps(parallel.Parallelize_BMUF)
def Parallelize_BMUF(*args: Any, **kwargs: Any) -> Replicas:
    """``netbuilder.parallel.Parallelize_BMUF``; with ``nesterov`` the look-ahead is Caffe2's, see ``lookahead``."""
    given = _SIGNATURE.bind(*args, **kwargs).arguments
    if given.get("nesterov") is True and given.get("lookahead") is None:
        kwargs["lookahead"] = -1.0
    return parallel.Parallelize_BMUF(*args, **kwargs)


def Parallelize_CPU_BMUF(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize_BMUF`` on the CPU."""
    return Parallelize_BMUF(*args, **{**kwargs, "cpu_device": True})


def Parallelize_GPU_BMUF(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize_BMUF`` on NVIDIA GPUs."""
    return Parallelize_BMUF(*args, **{**kwargs, "cpu_device": False})
