"""cuBLAS, called without CuPy: products of float32 matrices that CUDA graphs can contain, which CuPy refuses.

Each thread has a handle for each GPU, which works on the current stream. The scratch memory is ours: what cuBLAS would
allocate by itself must not be allocated during a capture. All handles of a GPU share it, since one stream multiplies.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.data.forking import after_fork
from netbuilder.ops.engines.arrays import array_module
from netbuilder.ops.engines.gpu import GPU, gpu
from netbuilder.proto import PROTO_CUDA, DeviceError

__all__ = ["Factor", "product", "serves"]

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_SIGNATURES = {
    "cublasCreate_v2": (_POINTER,),
    "cublasSetMathMode": (_POINTER, _INT),
    "cublasSetStream_v2": (_POINTER, _POINTER),
    "cublasSetWorkspace_v2": (_POINTER, _POINTER, ctypes.c_size_t),
    "cublasSgemm_v2": (
        _POINTER, *(_INT,) * 5, _POINTER, _POINTER, _INT, _POINTER, _INT, _POINTER, _POINTER, _INT,
    ),
    "cublasSgemmStridedBatched": (
        _POINTER, *(_INT,) * 5, _POINTER, _POINTER, _INT, _LONG, _POINTER, _INT, _LONG, _POINTER, _POINTER, _INT, _LONG,
        _INT,
    ),
}  # fmt: skip
_EXACT = 0  # CUBLAS_DEFAULT_MATH: no TF32
_LARGEST = 2**31 - 1
_HOPPER, _SCRATCH_OF_HOPPER, _SCRATCH = 90, 32 << 20, 8 << 20  # bytes, as NVIDIA recommends

Factor = tuple[Any, bool]
"""A stack of matrices: its array, and whether each is stored transposed, in the order of its columns."""


@functools.lru_cache(maxsize=4)
def _library(xp: Any) -> Any:
    """Return the library that CuPy has loaded, with the types of its functions; None if it cannot be called."""
    try:
        if xp.cuda.cublas is None:  # looking at it loads the library; CuPy's double has none
            return None
        found = ctypes.CDLL(f"libcublas.so.{xp.cuda.runtime.runtimeGetVersion() // 1000}")
        for name, types in _SIGNATURES.items():
            function = getattr(found, name)
            function.argtypes, function.restype = types, _INT
    except (AttributeError, ImportError, OSError):
        return None
    return found


def serves(*extents: int) -> bool:
    """Whether cuBLAS can be called, for matrices of such extents; else CuPy calls it, outside of CUDA graphs."""
    return max(extents) <= _LARGEST and _library(array_module(PROTO_CUDA)) is not None


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_library(array_module(PROTO_CUDA)), name)(*arguments)
    if status:
        raise DeviceError(f"cuBLAS: {name} returned the status {status}")


_scratch: weakref.WeakKeyDictionary[GPU, Any] = weakref.WeakKeyDictionary()
_making = threading.Lock()
_threads = threading.local()


def _scratch_of(here: GPU) -> Any:
    with _making:
        found = _scratch.get(here)
        if found is None:
            capability = int(here.xp.cuda.Device(here.id).compute_capability)
            with here:
                found = _scratch[here] = here.xp.empty(
                    _SCRATCH_OF_HOPPER if capability >= _HOPPER else _SCRATCH, np.uint8
                )
    return found


class _Handle:
    """A handle of one thread for one GPU, and the stream that it was given last."""

    def __init__(self, here: GPU) -> None:
        self._scratch = _scratch_of(here)
        made = _POINTER()
        _call("cublasCreate_v2", ctypes.byref(made))
        self.pointer = made.value
        self._stream: int | None = None
        _call("cublasSetMathMode", self.pointer, _EXACT)

    def use(self, stream: int) -> None:
        """Work on a stream from now on; this makes cuBLAS forget the scratch memory."""
        if stream != self._stream:
            _call("cublasSetStream_v2", self.pointer, stream)
            _call("cublasSetWorkspace_v2", self.pointer, self._scratch.data.ptr, self._scratch.nbytes)
            self._stream = stream


def _handle(here: GPU) -> Any:
    """Return this thread's handle for the current GPU, which works on the stream that is current now."""
    handles: dict[GPU, _Handle] = _threads.__dict__.setdefault("handles", {})
    own = handles.get(here)
    if own is None:
        own = handles[here] = _Handle(here)
    own.use(here.xp.cuda.get_current_stream().ptr)
    return own.pointer


@after_fork
def _forked() -> None:
    """Drop the handles: after a fork they belong to the parent."""
    _threads.__dict__.clear()


def product(a: Factor, b: Factor, y: Any) -> Callable[[], object]:
    """Return the call that computes y = a b on the current stream.

    Args:
        a, b: the factors, float32 on one GPU, contiguous.
        y: the result, (stack, rows, columns), contiguous; nothing else may be stored there.
    """
    stack, rows, columns = y.shape
    inner = a[0].size // (stack * rows)
    # cuBLAS counts in the order of columns: what it multiplies is the transposed b by the transposed a.
    extents = (int(b[1]), int(a[1]), columns, rows, inner)
    left, right = (b[0].data.ptr, inner if b[1] else columns), (a[0].data.ptr, rows if a[1] else inner)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    factors = ctypes.addressof(one), ctypes.addressof(zero)
    name, given = "cublasSgemm_v2", tuple[Any, ...]()
    if stack == 1:
        given = (*extents, factors[0], *left, *right, factors[1], y.data.ptr, columns)
    else:
        name = "cublasSgemmStridedBatched"
        given = (*extents, factors[0], *left, inner * columns, *right, rows * inner, factors[1], y.data.ptr, columns,
                 rows * columns, stack)  # fmt: skip
    multiply, here = getattr(_library(array_module(PROTO_CUDA)), name), gpu(y.device.id)

    def call(kept: Any = (a, b, y, one, zero)) -> None:  # pointers refer to all of them
        if status := multiply(_handle(here), *given):
            raise DeviceError(f"cuBLAS: {name} returned the status {status}")

    return call
