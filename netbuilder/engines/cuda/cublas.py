"""cuBLAS, called without CuPy: products of matrices that CUDA graphs can contain, which CuPy refuses.

Each thread has a handle for each GPU, which works on the current stream. The scratch memory is allocated here, since
what cuBLAS would allocate by itself must not be allocated during a capture. All handles of a GPU share it, since one
stream multiplies.

Products of 16 bits are added in float32, also where cuBLAS divides a long sum among blocks. Those of float32 are exact
unless TF32 is asked for.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.engines.arrays import array_module
from netbuilder.engines.cuda.handles import ThreadHandles
from netbuilder.engines.described_gpu import described_gpu
from netbuilder.engines.gpu import GPU, gpu
from netbuilder.engines.tf32 import has_tf32
from netbuilder.proto import PROTO_CUDA, DeviceError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Product", "checked_call", "free_handles", "handle", "library_of", "new_handles", "serves", "thread_handles"]

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_SIGNATURES = {
    "cublasCreate_v2": (_POINTER,),
    "cublasDestroy_v2": (_POINTER,),
    "cublasSetMathMode": (_POINTER, _INT),
    "cublasSetStream_v2": (_POINTER, _POINTER),
    "cublasSetWorkspace_v2": (_POINTER, _POINTER, ctypes.c_size_t),
    "cublasGemmEx": (
        _POINTER, *(_INT,) * 5, _POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _INT, _POINTER, _POINTER, _INT, _INT,
        _INT, _INT,
    ),
    "cublasGemmStridedBatchedEx": (
        _POINTER, *(_INT,) * 5, _POINTER, _POINTER, _INT, _INT, _LONG, _POINTER, _INT, _INT, _LONG, _POINTER, _POINTER,
        _INT, _INT, _LONG, _INT, _INT, _INT,
    ),
}  # fmt: skip
_EXACT = 16  # CUBLAS_DEFAULT_MATH, which has no TF32, with CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
_TYPES = {"float32": (0, 4), "float64": (1, 8), "float16": (2, 2), "bfloat16": (14, 2)}  # cudaDataType, and bytes
_IN_FLOAT32, _IN_FLOAT64, _IN_TF32 = 68, 70, 77  # cublasComputeType_t
_ANY_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT
_LARGEST = 2**31 - 1
_HOPPER, _SCRATCH_OF_HOPPER, _SCRATCH = 90, 32 << 20, 8 << 20  # bytes, as NVIDIA recommends


@functools.lru_cache(maxsize=4)
def library_of(xp: Any) -> Any:
    """Return the library that CuPy has loaded, with the types of its functions; None if it cannot be called."""
    try:
        if xp.cuda.cublas is None:  # looking at it loads the library
            return None
        found = ctypes.CDLL(f"libcublas.so.{xp.cuda.runtime.runtimeGetVersion() // 1000}")
        for name, types in _SIGNATURES.items():
            function = getattr(found, name)
            function.argtypes, function.restype = types, _INT
    except (AttributeError, ImportError, OSError):
        return None
    return found


def serves(device: int, elements: str, *extents: int) -> bool:
    """Whether cuBLAS can be called, on a GPU, for matrices of such elements and extents.

    Else CuPy multiplies, outside of CUDA graphs.
    """
    if elements == "bfloat16" and not has_tf32(device):  # both came with Ampere
        return False
    there = described_gpu() is not None or library_of(array_module(PROTO_CUDA)) is not None
    return there and max(extents) <= _LARGEST


def checked_call(name: str, *arguments: Any) -> None:
    """Call a function of cuBLAS.

    Raises:
        DeviceError: it returned an error.
    """
    status = getattr(library_of(array_module(PROTO_CUDA)), name)(*arguments)
    if status:
        raise DeviceError(f"cuBLAS: {name} returned the status {status}")


_scratch: weakref.WeakKeyDictionary[GPU, Any] = weakref.WeakKeyDictionary()
_making = threading.Lock()


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
        checked_call("cublasCreate_v2", ctypes.byref(made))
        self.pointer = made.value
        self._stream: int | None = None
        checked_call("cublasSetMathMode", self.pointer, _EXACT)

    def use(self, stream: int) -> None:
        """Work on a stream from now on; this makes cuBLAS forget the scratch memory."""
        if stream != self._stream:
            checked_call("cublasSetStream_v2", self.pointer, stream)
            checked_call("cublasSetWorkspace_v2", self.pointer, self._scratch.data.ptr, self._scratch.nbytes)
            self._stream = stream

    def free(self) -> None:
        checked_call("cublasDestroy_v2", self.pointer)


def new_handles() -> ThreadHandles[_Handle]:
    """Return an empty table of the handles of threads."""
    return ThreadHandles(_Handle, _Handle.free)


thread_handles = new_handles()


def handle(here: GPU) -> Any:
    """Return this thread's handle for the current GPU, which works on the stream that is current now."""
    own = thread_handles.get(here)
    own.use(here.xp.cuda.get_current_stream().ptr)
    return own.pointer


def free_handles() -> None:
    """Free the handles of threads that have ended."""
    thread_handles.free_ended()


@dataclass(frozen=True)
class Product:
    """y = a b, for each matrix of a stack.

    Args:
        stack: number of matrices of y.
        rows, columns: extents of one.
        inner: the other extent of the factors.
        transposed: for a and b, whether each matrix is stored transposed, in the order of its columns.
        elements: the type of the elements of a and b: float32, float64, float16 or bfloat16.
        result: that of the elements of y: the same, or float32 for factors of 16 bits.
        same: for a and b, whether all matrices of the stack are the first one.
        tf32: whether factors of float32 may be rounded to TF32; the GPU must have it.
        adds: whether y is added to the product.
    """

    stack: int
    rows: int
    columns: int
    inner: int
    transposed: tuple[bool, bool] = (False, False)
    elements: str = "float32"
    result: str = "float32"
    same: tuple[bool, bool] = (False, False)
    tf32: bool = False
    adds: bool = False

    def bind(self, a: Any, b: Any, y: Any, begin: tuple[int, int, int] = (0, 0, 0)) -> Callable[[], object]:
        """Return the call that computes the product on the current stream.

        Args:
            a, b: the factors, on one GPU, contiguous, of any shape and dtype.
            y: the result, contiguous; nothing else may be stored there.
            begin: for a, b and y, how many matrices come before the first one.
        """
        # cuBLAS counts in the order of columns: what it multiplies is the transposed b by the transposed a.
        (number, itemsize), (number_of_y, itemsize_of_y) = _TYPES[self.elements], _TYPES[self.result]
        of_a, of_b, of_y = self.rows * self.inner, self.inner * self.columns, self.rows * self.columns
        extents = (int(self.transposed[1]), int(self.transposed[0]), self.columns, self.rows, self.inner)
        left = (b.data.ptr + begin[1] * of_b * itemsize, number, self.inner if self.transposed[1] else self.columns)
        right = (a.data.ptr + begin[0] * of_a * itemsize, number, self.rows if self.transposed[0] else self.inner)
        result = (y.data.ptr + begin[2] * of_y * itemsize_of_y, number_of_y, self.columns)
        scalar = ctypes.c_double if self.elements == "float64" else ctypes.c_float
        one, keep = scalar(1), scalar(int(self.adds))
        alpha, beta = ctypes.addressof(one), ctypes.addressof(keep)
        how = (self._compute_type, _ANY_ALGORITHM)
        name, given = "cublasGemmEx", tuple[Any, ...]()
        if self.stack == 1:
            given = (*extents, alpha, *left, *right, beta, *result, *how)
        else:
            name = "cublasGemmStridedBatchedEx"
            steps = 0 if self.same[1] else of_b, 0 if self.same[0] else of_a
            given = (*extents, alpha, *left, steps[0], *right, steps[1], beta, *result, of_y, self.stack, *how)
        multiply, here = getattr(library_of(array_module(PROTO_CUDA)), name), gpu(y.device.id)
        free_handles()

        def call(kept: Any = (a, b, y, one, keep)) -> None:  # pointers refer to all of them
            if status := multiply(handle(here), *given):
                raise DeviceError(f"cuBLAS: {name} returned the status {status}")

        return call

    @property
    def _compute_type(self) -> int:
        if self.elements == "float64":
            return _IN_FLOAT64
        return _IN_TF32 if self.tf32 and self.elements == "float32" else _IN_FLOAT32
