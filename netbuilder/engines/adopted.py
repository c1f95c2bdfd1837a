"""Arrays on GPUs that CuPy or another library made."""

from __future__ import annotations

from typing import Any

from netbuilder.engines.arrays import array_module
from netbuilder.engines.cuda.capture import between_captures
from netbuilder.engines.gpu import gpu
from netbuilder.proto import PROTO_CUDA

__all__ = ["adopt"]


def adopt(value: Any) -> Any:
    """Return a copy of an array on a GPU that CuPy or another library made, on any stream."""
    xp = array_module(PROTO_CUDA)
    array = value if isinstance(value, xp.ndarray) else xp.asarray(value)
    there = gpu(array.device.id)
    with between_captures(there, wait=True):  # who waits for a whole GPU ends captures, and gets an error
        array.device.synchronize()
    with there:
        copy = array.copy()
    there.synchronize()  # after this the owner may overwrite the array
    return copy
