"""libcublas.so on the double: the functions that netbuilder calls, computed with NumPy in the host's memory.

Factors and results are read as cuBLAS reads them, in the order of columns. Sums are those of NumPy in float32, and in
float64 for float64; a result is rounded once.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np

__all__ = ["CublasDouble"]

_TYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16), 14: np.dtype(np.uint16)}
_BFLOAT16 = 14
_COMPUTE = {68: np.float32, 70: np.float64, 77: np.float32}
_TF32 = 77
_INVALID_VALUE = 7


def _wide(values: Any, kind: int) -> Any:
    if kind == _BFLOAT16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def _tf32(values: Any) -> Any:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _narrow(values: Any, kind: int) -> Any:
    if kind == _BFLOAT16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    with np.errstate(all="ignore"):
        return values.astype(_TYPES[kind])


class CublasDouble:
    """The library.

    Args:
        cupy: the double of CuPy.

    Attributes:
        products: of each product: the numbers of the types of factors and result, the type that it is computed in, and
            how many matrices there are.
        handles: those that exist: the device, the stream, whether there is scratch memory, and the math mode.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._numbers = itertools.count(9000)
        self.handles: dict[int, dict[str, Any]] = {}
        self.products: list[tuple[int, int, int, int]] = []

    @property
    def _machine(self) -> Any:
        return self._cupy.machine

    def cublasCreate_v2(self, made: Any) -> int:
        self._machine.refuse_in_capture()
        made._obj.value = number = next(self._numbers)
        self.handles[number] = {"device": self._machine.device, "stream": None, "scratch": False, "mode": 0}
        return 0

    def cublasDestroy_v2(self, handle: int) -> int:
        self._machine.synchronize_device(self._machine.device)
        return 0 if self.handles.pop(handle)["device"] == self._machine.device else _INVALID_VALUE

    def cublasSetMathMode(self, handle: int, mode: int) -> int:
        self.handles[handle]["mode"] = mode
        return 0

    def cublasSetStream_v2(self, handle: int, stream: int) -> int:
        self.handles[handle].update(stream=stream, scratch=False)
        return 0

    def cublasSetWorkspace_v2(self, handle: int, memory: int, size: int) -> int:
        self._machine.region_at(memory, size)
        self.handles[handle]["scratch"] = True
        return 0

    def cublasGemmEx(
        self, handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, type_a: int, lda: int, b: int,
        type_b: int, ldb: int, beta: int, c: int, type_c: int, ldc: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        return self.cublasGemmStridedBatchedEx(
            handle, ta, tb, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c, ldc, 0, 1, compute,
            algorithm,
        )  # fmt: skip

    def cublasGemmStridedBatchedEx(
        self, handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, type_a: int, lda: int,
        next_a: int, b: int, type_b: int, ldb: int, next_b: int, beta: int, c: int, type_c: int, ldc: int, next_c: int,
        count: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        own = self.handles[handle]
        assert own["device"] == self._machine.device and own["scratch"], "a handle of another GPU, or without memory"
        assert own["stream"] == self._cupy.cuda.get_current_stream().ptr, "a handle that works on another stream"
        assert type_a == type_b and (type_c == type_a or (type_a in (2, _BFLOAT16) and type_c == 0)), "types"
        assert (type_a == 1) == (compute == 70) and (compute != _TF32 or type_a == 0), "the type of the sums"
        self.products.append((type_a, type_c, compute, count))
        scalar = ctypes.c_double if compute == 70 else ctypes.c_float
        by, keep = (scalar.from_address(address).value for address in (alpha, beta))
        left = self._matrices(a, type_a, (k, m) if ta == 0 else (m, k), lda, next_a, count)
        right = self._matrices(b, type_b, (n, k) if tb == 0 else (k, n), ldb, next_b, count)
        result = self._matrices(c, type_c, (n, m), ldc, next_c, count)

        def do() -> None:
            kept = [_wide(each, type_a).astype(_COMPUTE[compute], copy=False) for each in (right[0], left[0])]
            if compute == _TF32:
                kept = [_tf32(each) for each in kept]
            second, first = (each.swapaxes(1, 2) if moved else each for each, moved in zip(kept, (tb, ta)))
            found = np.matmul(second, first) * _COMPUTE[compute](by)
            if keep:
                found = found + _COMPUTE[compute](keep) * _wide(result[0], type_c)
            result[0][...] = _narrow(found, type_c)

        self._machine.launch("gemm", [left[1], right[1]], [result[1]], do=do)
        return 0

    def _matrices(
        self, address: int, kind: int, shape: tuple[int, int], leading: int, step: int, count: int
    ) -> tuple[Any, Any]:
        """Return matrices of the order of columns as (count, columns, rows), and the memory that they are in."""
        columns, rows = shape
        assert leading >= rows
        dtype = _TYPES[kind]
        size = (step * (count - 1) + leading * (columns - 1) + rows) * dtype.itemsize
        flat = np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype)
        strides = [dtype.itemsize * each for each in (step, leading, 1)]
        views = np.lib.stride_tricks.as_strided(flat, (count, *shape), strides)
        return views, self._machine.region_at(address, size)
