"""The array module of a device: NumPy on the CPU, CuPy on NVIDIA GPUs."""

from __future__ import annotations

import ctypes
import functools
import importlib
import warnings
from typing import Any

import numpy as np

from netbuilder.engines.gpu_packages import how_to_install, several_cupys
from netbuilder.proto import DeviceError

__all__ = ["aligned_empty", "aligned_zeros", "array_module", "as_flat", "gpu_count", "trim_heap"]

_ALIGNMENT = 64  # bytes: a cache line; oneDNN's AVX-512 kernels are fastest with it


@functools.cache
def _cupy() -> Any:
    """Return CuPy, or None if it or the driver is missing, or if several packages have installed it."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        return None
    if not cupy.cuda.is_available():
        return None
    if several := several_cupys():
        warnings.warn(f"no GPU is used: {several}", RuntimeWarning, stacklevel=3)
        return None
    return cupy


def gpu_count() -> int:
    """Return the number of usable NVIDIA GPUs; 0 without CuPy or a driver."""
    cupy = _cupy()
    return int(cupy.cuda.runtime.getDeviceCount()) if cupy is not None else 0


def array_module(device_type: int) -> Any:
    """Return numpy for PROTO_CPU, cupy for PROTO_CUDA.

    Raises:
        DeviceError: no GPU can be used, or the device type is not supported.
    """
    if device_type == 0:
        return np
    if device_type != 1:
        raise DeviceError(f"device type {device_type}: operators run on the CPU (0) and on CUDA GPUs (1) only")
    cupy = _cupy()
    if cupy is None:
        why = several_cupys() or f"install CuPy ({how_to_install()}) and NVIDIA's driver"
        raise DeviceError(
            f"no NVIDIA GPU can be used: {why}, or build the net for the CPU (Parallelize_CPU, cpu_device=True, "
            "device_type=PROTO_CPU)"
        )
    return cupy


def aligned_empty(nbytes: int) -> np.ndarray[Any, Any]:
    """Return uninitialized memory, one-dimensional uint8, whose address is a multiple of 64 bytes."""
    return _aligned(np.empty(nbytes + _ALIGNMENT, np.uint8), nbytes)


def aligned_zeros(nbytes: int) -> np.ndarray[Any, Any]:
    """Return zeroed memory like ``aligned_empty``; the system zeroes its pages when they are first used."""
    return _aligned(np.zeros(nbytes + _ALIGNMENT, np.uint8), nbytes)


def _aligned(raw: np.ndarray[Any, Any], nbytes: int) -> np.ndarray[Any, Any]:
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]


def trim_heap() -> None:
    """Return freed memory to the system, if the C library (glibc) would otherwise keep it."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return None


def as_flat(buffer: Any, dtype: Any) -> Any:
    """Return any contiguous buffer as a one-dimensional array of ``dtype`` over the same memory."""
    return buffer.reshape(-1).view(dtype)
