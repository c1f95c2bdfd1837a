"""The array of the double: what CuPy's has, with CuPy's refusals, over memory of the host."""

from __future__ import annotations

import ctypes
import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from cupy_double.machine import HOST, Machine, Memory, Region

__all__ = ["PerformanceWarning", "is_scalar", "make_ndarray"]

_LARGE = 64 << 20


class PerformanceWarning(RuntimeWarning):
    """CuPy's."""


def is_scalar(value: Any) -> bool:
    """Whether kernels take the value as a number; arrays of NumPy without axes are none."""
    return type(value) in (bool, int, float, complex) or isinstance(value, np.generic)


class MemoryPointer:
    """Where an array's elements lie."""

    def __init__(self, machine: Machine, memory: Memory, ptr: int) -> None:
        self._machine = machine
        self.mem = memory
        self.ptr = ptr

    @property
    def device_id(self) -> int:
        return self.mem.device

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Any = None) -> None:
        """Copy memory, between any devices: without access to each other, they copy through the host."""
        if size > 0:
            order, copy = None if stream is None else stream.order, partial(ctypes.memmove, self.ptr, src.ptr, size)
            self._machine.launch("copy", [src._part(size)], [self._part(size)], order, copy)
            self._machine.moved(src.device_id, self.device_id, size)

    def copy_from_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        """Copy from the host: at once for memory that is not pinned, which CUDA copies first."""
        order = self._order(stream, "H2D")
        if size > 0:
            copy = partial(ctypes.memmove, self.ptr, mem, size)
            stamp = self._machine.launch("set", [], [self._part(size)], order, copy)
            host = self._machine.pinned_part(mem, size)
            self._machine.moved(HOST, self.device_id, size, pinned=host is not None)
            if host is not None:
                self._machine.uploading(stamp, host)

    def copy_to_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        """Copy to pinned memory of the host."""
        order = self._order(stream, "D2H")
        if size > 0:
            host = self._machine.pinned_part(mem, size)
            assert host is not None, "the host would wait for a copy to memory that is not pinned"
            stamp = self._machine.launch("get", [self._part(size)], [], order, lambda: None)
            self._machine.moved(self.device_id, HOST, size, pinned=True)
            self._machine.downloading(stamp, host, ctypes.string_at(self.ptr, size))

    def _part(self, nbytes: int) -> Region:
        return Region(self.mem, self.ptr, self.ptr + nbytes)

    def _order(self, stream: Any, what: str) -> Any:
        order = self._machine.stream if stream is None else stream.order
        if order.capture is not None:
            raise RuntimeError(f"the current stream is capturing, so {what} transfers are disallowed")
        return order


def make_ndarray(machine: Machine, module: Any) -> type:
    """Return the class of the arrays of one machine.

    Args:
        machine: where its arrays lie.
        module: the double of cupy, for what the class asks of it (ufuncs, functions by name).
    """

    class ndarray:
        __array_priority__ = 100
        __hash__ = None
        __slots__ = ("__weakref__", "_memory", "_values", "base")

        def __init__(
            self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
        ) -> None:
            assert memptr is None and strides is None, "the double makes arrays of new memory only"
            values = np.empty(shape, dtype, order=order)
            self._memory, values = _allocated(values)
            self.base = None
            if values.nbytes < _LARGE:  # of others, only what is used takes up memory
                values.reshape(-1, order="A").view(np.uint8)[...] = 0xFF  # NaN: what is used before it is written shows
            self._values = values

        # What it is.

        dtype = property(lambda self: self._values.dtype)
        shape = property(lambda self: self._values.shape)
        ndim = property(lambda self: self._values.ndim)
        size = property(lambda self: self._values.size)
        nbytes = property(lambda self: self._values.nbytes)
        itemsize = property(lambda self: self._values.itemsize)
        strides = property(lambda self: self._values.strides)
        flags = property(lambda self: self._values.flags)
        T = property(lambda self: _view(self, self._values.T))
        device = property(lambda self: module.cuda.Device(self._memory.device))

        @property
        def _region(self) -> Region:
            return Region(self._memory, *np.lib.array_utils.byte_bounds(self._values))

        @property
        def data(self) -> MemoryPointer:
            return MemoryPointer(machine, self._memory, self._values.__array_interface__["data"][0])

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            described = self._values.__array_interface__
            return {**{key: described[key] for key in ("shape", "typestr", "descr", "data")}, "version": 3}

        def __len__(self) -> int:
            return len(self._values)

        def __iter__(self) -> Iterator[Any]:
            if not self.ndim:
                raise TypeError("iteration over a 0-d array")
            return (self[i] for i in range(len(self)))

        def __repr__(self) -> str:
            return f"<array {self.shape} {self.dtype} on GPU {self._memory.device}>"

        # To the host.

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise TypeError(
                "Implicit conversion to a NumPy array is not allowed. "
                "Please use `.get()` to construct a NumPy array explicitly."
            )

        def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
            """A copy on the host, made on the current stream of the current device."""
            assert out is None and blocking, "the double waits, and makes the array itself"
            order_of = machine.stream if stream is None else stream.order
            if order_of.capture is not None:
                raise RuntimeError("the current stream is capturing, so D2H transfers are disallowed")
            if self.size:
                machine.launch("get", [self._region], [], order_of)
                machine.synchronize_stream(order_of, "reads")
                machine.moved(self._memory.device, HOST, self.nbytes)
            return self._values.copy(order)

        def set(self, arr: Any, stream: Any = None) -> None:
            if not isinstance(arr, np.ndarray):
                raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
            if arr.dtype != self.dtype:
                raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
            if arr.shape != self.shape:
                raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
            if not self._values.flags.forc:
                raise RuntimeError("Cannot set to non-contiguous array")
            arr = np.asarray(arr, order="C" if self._values.flags.c_contiguous else "F")
            self.data.copy_from_host_async(arr.ctypes.data, self.nbytes, stream)

        def item(self) -> Any:
            return self.get().item()

        def tolist(self) -> Any:
            return self.get().tolist()

        def __bool__(self) -> bool:
            return bool(self.get())

        def __int__(self) -> int:
            return int(self.get())

        def __float__(self) -> float:
            return float(self.get())

        # Views.

        def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> Any:
            wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
            return _moved(self, "reshape", self._values.reshape(tuple(wanted), order=order))

        def transpose(self, *axes: Any) -> Any:
            return _view(self, self._values.transpose(*axes))

        def swapaxes(self, axis1: int, axis2: int) -> Any:
            return _view(self, self._values.swapaxes(axis1, axis2))

        def squeeze(self, axis: Any = None) -> Any:
            return _view(self, self._values.squeeze(axis))

        def ravel(self, order: str = "C") -> Any:
            return _moved(self, "ravel", self._values.ravel(order))

        def view(self, dtype: Any = None, type: Any = None) -> Any:
            assert type is None
            return _view(self, self._values.view() if dtype is None else self._values.view(dtype))

        # Copies.

        def astype(
            self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
        ) -> Any:
            if casting is not None or subok is not None:
                raise TypeError("casting and subok are not supported yet")
            if not copy and np.dtype(dtype) == self.dtype:
                return self
            return compute("astype", [self], self._values.astype(dtype, order=order))

        def copy(self, order: str = "C") -> Any:
            """A copy on the current device, from any."""
            if self._memory.device == machine.device:
                return compute("copy", [self], self._values.copy(order))
            values = self._values
            if order == "C" and not values.flags.c_contiguous:
                with machine.on(self._memory.device):
                    return self.copy().copy()
            if not values.flags.forc:
                raise NotImplementedError("CuPy cannot copy non-contiguous array between devices.")
            made = ndarray(values.shape, values.dtype, order="C" if values.flags.c_contiguous else "F")
            made.data.copy_from_device_async(self.data, self.nbytes)
            return made

        def fill(self, value: Any) -> None:
            if not isinstance(value, ndarray) and np.ndim(value) > 0:
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
            self[...] = value

        # Elements.

        def __getitem__(self, where: Any) -> Any:
            index, arrays = _index(where)
            if arrays:
                return compute("getitem", [self, *arrays], self._values[index])
            parts = index if isinstance(index, tuple) else (index,)
            return _view(self, self._values[parts if Ellipsis in parts else (*parts, Ellipsis)])

        def __setitem__(self, where: Any, value: Any) -> None:
            index, arrays = _index(where)
            given = _operand(value)
            if isinstance(given, np.ndarray) and not isinstance(value, ndarray) and given.ndim:
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
            whole = [value] if isinstance(value, ndarray) else []
            _check([self, *arrays, *whole])

            def do() -> None:
                self._values[index] = given

            machine.launch("setitem", [a._region for a in (*arrays, *whole)], [self._region], do=do)

        def take(self, indices: Any, axis: Any = None, out: Any = None) -> Any:
            assert out is None
            given = [indices] if isinstance(indices, ndarray) else []
            return compute("take", [self, *given], self._values.take(_operand(indices), axis))

        def _add_at(self, where: Any, value: Any) -> None:
            index, arrays = _index(where)
            whole = [value] if isinstance(value, ndarray) else []
            _check([self, *arrays, *whole])

            def do() -> None:
                added = np.asarray(_operand(value)).astype(self.dtype)
                np.add.at(self._values, index, added)

            machine.launch("add.at", [a._region for a in (*arrays, *whole)], [self._region], do=do)

        # Reductions and the like: by the functions of the same names.

        def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
            return module.sum(self, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

        def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
            return module.mean(self, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

        def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
            return module.max(self, axis=axis, out=out, keepdims=keepdims)

        def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
            return module.min(self, axis=axis, out=out, keepdims=keepdims)

        def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
            return module.all(self, axis=axis, out=out, keepdims=keepdims)

        def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
            return module.any(self, axis=axis, out=out, keepdims=keepdims)

        def argmax(self, axis: Any = None, out: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
            assert dtype is None
            return module.argmax(self, axis=axis, out=out, keepdims=keepdims)

        def argmin(self, axis: Any = None, out: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
            assert dtype is None
            return module.argmin(self, axis=axis, out=out, keepdims=keepdims)

        # Protocols of NumPy.

        def __array_ufunc__(self, function: Any, method: str, *inputs: Any, out: Any = (), **kwargs: Any) -> Any:
            mine = getattr(module, function.__name__, None)
            mine = mine if method == "__call__" else getattr(mine, method, None)
            if mine is None:
                return NotImplemented
            return mine(*inputs, **({"out": out[0]} if out else {}), **kwargs)

        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            mine = getattr(module, function.__name__, None)
            return NotImplemented if mine is None or mine is function else mine(*args, **kwargs)

    def _allocated(values: Any) -> tuple[Memory, Any]:
        """Return memory from the thread's allocator, and an array there with these values."""
        allocator = module.cuda._of_thread
        if allocator is None:
            memory = machine.allocate(values.nbytes)
            memory.storage, memory.address = values, np.lib.array_utils.byte_bounds(values)[0]
            return memory, values
        pointer = allocator(values.nbytes)
        raw = (ctypes.c_uint8 * max(values.nbytes, 1)).from_address(pointer.ptr)
        there = np.ndarray(values.shape, values.dtype, raw, strides=values.strides if values.flags.forc else None)
        there[...] = values
        return pointer.mem, there

    def _view(array: Any, values: Any) -> Any:
        made = ndarray.__new__(ndarray)
        made._values, made._memory = values, array._memory
        made.base = array if array.base is None else array.base
        return made

    def _moved(array: Any, name: str, values: Any) -> Any:
        """Return a view, or a new array if the elements had to be put in another order."""
        if array.size == 0 or np.shares_memory(values, array._values):
            return _view(array, values)
        return compute(name, [array], values)

    def _operand(value: Any) -> Any:
        return value._values if isinstance(value, ndarray) else value

    def _index(where: Any) -> tuple[Any, list[Any]]:
        """Return an index for NumPy, and the arrays in it."""
        parts = where if isinstance(where, tuple) else (where,)
        for part in parts:
            if isinstance(part, (np.ndarray, list)):
                raise TypeError("an index on the host would be copied to the GPU at every use")
        index = tuple(map(_operand, parts))
        return index if isinstance(where, tuple) else index[0], [part for part in parts if isinstance(part, ndarray)]

    def _check(arrays: list[Any]) -> None:
        """Refuse arrays of other devices, as CuPy's kernels do."""
        here = machine.device
        for array in arrays:
            there = array._memory.device
            if there == here:
                continue
            text = f"The device where the array resides ({there}) is different from the current device ({here})."
            if not machine.peers:
                raise ValueError(f"{text} Peer access is unavailable between these devices.")
            warnings.warn(f"{text} Peer access has been activated automatically.", PerformanceWarning, stacklevel=4)

    def compute(name: str, reads: list[Any], values: Any) -> Any:
        """Return ``values``, just computed by NumPy from ``reads``, as a new array on the current device."""
        _check(reads)
        values = np.asarray(values)
        made = ndarray.__new__(ndarray)
        made._memory, made._values = _allocated(values)
        made.base = None
        machine.launch(name, [array._region for array in reads], [made._region])
        return made

    def work(name: str, reads: list[Any], writes: list[Any], do: Callable[[], object]) -> None:
        """Have the current device call ``do``, which reads and writes values of arrays; a capture keeps the call."""
        _check([*reads, *writes])
        machine.launch(name, [array._region for array in reads], [array._region for array in writes], do=do)

    ndarray._compute = staticmethod(compute)
    ndarray._work = staticmethod(work)
    ndarray._view_of = staticmethod(_view)
    ndarray._check = staticmethod(_check)
    _add_operators(ndarray, module)
    return ndarray


_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "matmul": "matmul",
}
_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "eq": "equal",
    "ne": "not_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_UNARY = {"neg": "negative", "abs": "absolute", "invert": "invert"}


def _add_operators(cls: Any, module: Any) -> None:
    """Give the class Python's operators, by the functions that they stand for."""

    def forward(name: str) -> Callable[[Any, Any], Any]:
        return lambda self, other: getattr(module, name)(self, other)

    def backward(name: str) -> Callable[[Any, Any], Any]:
        return lambda self, other: getattr(module, name)(other, self)

    def in_place(name: str) -> Callable[[Any, Any], Any]:
        return lambda self, other: getattr(module, name)(self, other, out=self)

    def unary(name: str) -> Callable[[Any], Any]:
        return lambda self: getattr(module, name)(self)

    for symbol, name in itertools.chain(_BINARY.items(), _COMPARISONS.items()):
        setattr(cls, f"__{symbol}__", forward(name))
    for symbol, name in _BINARY.items():
        setattr(cls, f"__r{symbol}__", backward(name))
        if symbol != "matmul":
            setattr(cls, f"__i{symbol}__", in_place(name))
    for symbol, name in _UNARY.items():
        setattr(cls, f"__{symbol}__", unary(name))
