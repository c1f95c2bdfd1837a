"""The module that stands for ``cupy``: NumPy's functions on arrays that lie on GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from cupy_double.blas import CublasDouble
from cupy_double.machine import HOST, CUDARuntimeError, Machine
from cupy_double.ndarray import MemoryPointer, PerformanceWarning, is_scalar, make_ndarray

__all__ = ["CupyDouble"]

_BY_CUBLAS = {"dot", "inner", "matmul", "tensordot", "vdot"}


class CupyDouble:
    """What a program sees as the module ``cupy`` on a machine with so many GPUs.

    Args:
        devices: how many.
        peers: whether they can read each other's memory.

    Attributes:
        machine: what the GPUs were given to do.
    """

    def __init__(self, devices: int = 2, *, peers: bool = True) -> None:
        self.machine = Machine(devices, peers=peers)
        self.ndarray = make_ndarray(self.machine, self)
        self.cuda = _Cuda(self)
        self.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=self._as_strided))
        self.exceptions = SimpleNamespace(AxisError=np.exceptions.AxisError)
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._make(name)
        return made

    def _make(self, name: str) -> Any:
        if name in _CREATE:
            return functools.partial(_CREATE[name], self)
        value = getattr(np, name)
        if isinstance(value, np.ufunc):
            return _UFunc(self, name)
        return _Function(self, name) if callable(value) and not isinstance(value, type) else value

    # What the functions have in common.

    def values(self, thing: Any) -> tuple[Any, list[Any]]:
        """Return arguments with NumPy's arrays in the place of the double's, and these.

        Raises:
            TypeError: there is an array of the host among them.
        """
        if isinstance(thing, self.ndarray):
            return thing._values, [thing]
        if isinstance(thing, np.ndarray):
            raise TypeError(f"Unsupported type {type(thing)}")
        if isinstance(thing, (list, tuple)):
            pairs = [self.values(part) for part in thing]
            return type(thing)(value for value, _ in pairs), [array for _, arrays in pairs for array in arrays]
        return thing, []

    def result(self, name: str, found: Any, arrays: list[Any]) -> Any:
        """Return what a function of NumPy gave: a view of an argument, or a new array."""
        if isinstance(found, (tuple, list)):
            return tuple(self.result(name, part, arrays) for part in found)
        if not isinstance(found, (np.ndarray, np.generic)):
            return found
        for array in arrays:
            if isinstance(found, np.ndarray) and found.size and np.shares_memory(found, array._values):
                return self.ndarray._view_of(array, found)
        return self.ndarray._compute(name, arrays, found)

    def refuse_cublas(self, name: str, given: Any) -> None:
        if name in _BY_CUBLAS and self.machine.captures and given[0].dtype.kind == "f":
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")

    # Functions that make arrays.

    def asarray(self, a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> Any:
        return self.array(a, dtype, copy or False, order or "K")

    def array(
        self, obj: Any, dtype: Any = None, copy: Any = True, order: str = "K", subok: bool = False, ndmin: int = 0
    ) -> Any:
        assert not subok and not ndmin
        if isinstance(obj, self.ndarray):
            if obj._memory.device != self.machine.device:
                obj = obj.copy(order)
            return obj.astype(obj.dtype if dtype is None else dtype, order, copy=bool(copy))
        values, arrays = (obj, []) if isinstance(obj, np.ndarray) else self.values(obj)
        if arrays:
            return self.stack(obj) if dtype is None else self.stack(obj).astype(dtype)
        values = np.array(values, dtype, order="K" if order is None else order)
        made = self.ndarray._compute("array", [], values)
        self.machine.moved(HOST, self.machine.device, values.nbytes)
        return made

    def _as_strided(self, x: Any, shape: Any = None, strides: Any = None) -> Any:
        return self.ndarray._view_of(x, np.lib.stride_tricks.as_strided(x._values, shape, strides))


def _empty(cupy: CupyDouble, shape: Any, dtype: Any = float, order: str = "C") -> Any:
    return cupy.ndarray(shape, dtype, order=order)


def _filled(cupy: CupyDouble, name: str, values: Any) -> Any:
    return cupy.ndarray._compute(name, [], values)


def _zeros(cupy: CupyDouble, shape: Any, dtype: Any = float, order: str = "C") -> Any:
    return _filled(cupy, "zeros", np.zeros(shape, dtype, order))


def _ones(cupy: CupyDouble, shape: Any, dtype: Any = float, order: str = "C") -> Any:
    return _filled(cupy, "ones", np.ones(shape, dtype, order))


def _full(cupy: CupyDouble, shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
    value, arrays = cupy.values(fill_value)
    return cupy.ndarray._compute("full", arrays, np.full(shape, value, dtype, order))


def _arange(cupy: CupyDouble, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    for bound in (start, stop, step):
        if bound is not None and not is_scalar(bound):
            raise TypeError(f"Unsupported type {type(bound)}")
    values = np.arange(start, dtype=dtype) if stop is None else np.arange(start, stop, step, dtype)
    return _filled(cupy, "arange", values)


_CREATE = {
    "arange": _arange,
    "empty": _empty,
    "full": _full,
    "ones": _ones,
    "zeros": _zeros,
}


class _Function:
    """A function of CuPy that takes arrays, computed by NumPy's of the same name."""

    def __init__(self, cupy: CupyDouble, name: str) -> None:
        self._cupy = cupy
        self.__name__ = name
        self._numpy = getattr(np, name)

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        (given, arrays), (values, more) = self._cupy.values(args), self._cupy.values([*kwargs.values()])
        arrays, options = [*arrays, *more], dict(zip(kwargs, values))
        self._cupy.refuse_cublas(self.__name__, given)

        def found() -> Any:
            with np.errstate(all="ignore"):
                return self._numpy(*given, **options)

        if out is None:
            return self._cupy.result(self.__name__, found(), arrays)

        def do() -> None:
            out._values[...] = found()

        self._cupy.ndarray._work(self.__name__, arrays, [out], do)
        return out


class _UFunc:
    """A universal function of CuPy: with arrays of GPUs and numbers only."""

    def __init__(self, cupy: CupyDouble, name: str) -> None:
        self._cupy = cupy
        self.__name__ = name
        self._numpy = getattr(np, name)

    def __call__(self, *args: Any, out: Any = None, **options: Any) -> Any:
        count = self._numpy.nin
        args, out = args[:count], args[count] if len(args) > count else out
        for arg in (*args, *([] if out is None else [out])):
            if not isinstance(arg, self._cupy.ndarray) and not is_scalar(arg):
                raise TypeError(f"Unsupported type {type(arg)}")
        given, arrays = self._cupy.values(args)
        self._cupy.refuse_cublas(self.__name__, given)
        with np.errstate(all="ignore"):
            if out is None:
                return self._cupy.ndarray._compute(self.__name__, arrays, self._numpy(*given, **options))
        self._cupy.ndarray._work(
            self.__name__, arrays, [out], functools.partial(self._numpy, *given, out=out._values, **options)
        )
        return out

    def at(self, a: Any, indices: Any, b: Any) -> None:
        assert self.__name__ == "add"
        a._add_at(indices, b)


_MEMORY = 1 << 30  # bytes that each GPU is said to have


class _Cuda:
    def __init__(self, cupy: CupyDouble) -> None:
        machine = cupy.machine
        self.runtime = _Runtime(machine)
        self.MemoryPointer = MemoryPointer
        self.Device: Any = functools.partial(_Device, machine)
        self.Event: Any = functools.partial(_Event, machine)
        self.Stream: Any = functools.partial(_Stream, machine)
        self.Graph = _Graph
        self.cublas = CublasDouble(cupy)
        self._machine = machine

    def is_available(self) -> bool:
        return self._machine.devices > 0

    def get_device_id(self) -> int:
        return self._machine.device

    def get_current_stream(self, device_id: int = -1) -> Any:
        machine = self._machine
        return _Stream._of(machine, machine.stack(machine.device if device_id == -1 else device_id)[-1])

    def alloc_pinned_memory(self, size: int) -> Any:
        return _pinned(self._machine, size)

    @property
    def _of_thread(self) -> Any:
        """What a thread's allocations ask for memory; None: the machine."""
        return self._machine._thread.__dict__.get("allocator")

    def get_allocator(self) -> Any:
        return self._of_thread or self._allocate

    def _allocate(self, size: int) -> MemoryPointer:
        memory = self._machine.allocate(size)
        memory.storage = np.empty(max(size, 1), np.uint8)
        memory.address = memory.storage.ctypes.data
        return MemoryPointer(self._machine, memory, memory.address)

    @contextlib.contextmanager
    def using_allocator(self, allocator: Any = None) -> Iterator[None]:
        """Make a thread's allocations ask a function for memory."""
        thread = self._machine._thread.__dict__
        before, thread["allocator"] = thread.get("allocator"), allocator
        try:
            yield
        finally:
            thread["allocator"] = before


def _pinned(machine: Machine, size: int) -> Any:
    """Return pinned memory: a buffer with its address."""
    made = type("PinnedMemoryPointer", (ctypes.c_uint8 * size,), {})()
    made.ptr = ctypes.addressof(made)
    made.mem = SimpleNamespace(ptr=made.ptr, size=size)
    machine.pin(made.ptr, np.frombuffer(made, np.uint8))
    return made


class _Runtime:
    CUDARuntimeError = CUDARuntimeError
    streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = range(3)
    memoryTypeUnregistered, memoryTypeHost = range(2)

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def getDeviceCount(self) -> int:
        return self._machine.devices

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:
        return int(self._machine.peers)

    def runtimeGetVersion(self) -> int:
        return 12040

    def pointerGetAttributes(self, address: int) -> Any:
        pinned = self._machine.pinned_part(address, 1) is not None
        return SimpleNamespace(type=self.memoryTypeHost if pinned else self.memoryTypeUnregistered)

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        return {"name": b"double", "major": 9, "minor": 0, "totalGlobalMem": _MEMORY}


class _Device:
    compute_capability = "75"

    def __init__(self, machine: Machine, device: Any = None) -> None:
        self._machine = machine
        self.id = machine.device if device is None else int(getattr(device, "id", device))

    def _stack(self) -> list[int]:
        stack: list[int] = self._machine._thread.__dict__.setdefault("devices", [])
        return stack

    def __enter__(self) -> _Device:
        self._stack().append(self._machine.device)
        self._machine.set_device(self.id)
        return self

    def __exit__(self, *error: object) -> None:
        self._machine.set_device(self._stack().pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    @property
    def mem_info(self) -> tuple[int, int]:
        return _MEMORY * 3 // 4, _MEMORY

    def synchronize(self) -> None:
        self._machine.synchronize_device(self.id)


class _Event:
    def __init__(
        self, machine: Machine, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self._machine = machine
        self.device = machine.device
        self.clock: dict[int, int] = {}
        self._capture: Any = None
        self._captured: dict[int, int] = {}
        machine.count("events")

    def record(self, stream: Any = None) -> None:
        order = self._machine.stream if stream is None else stream.order
        if order.device != self.device:
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
        with self._machine.lock:
            self._machine.count("records")
            self._capture = order.capture
            if self._capture is not None:
                self._captured = dict(self._capture.clocks[order.number])
            else:
                self.clock = dict(order.clock)

    @property
    def done(self) -> bool:
        return all(self._machine.host_clock.get(number, 0) >= calls for number, calls in self.clock.items())

    def synchronize(self) -> None:
        with self._machine.lock:
            self._machine.refuse_in_capture()
            if self._capture is not None:
                raise CUDARuntimeError(
                    "cudaErrorCapturedEvent: operation not permitted on an event last recorded there"
                )
            self._machine.count("synchronizations")
            self._machine.known(self.clock)


class _Graph:
    def __init__(self, machine: Machine, order: Any) -> None:
        self._machine = machine
        self._order = order

    def launch(self, stream: Any = None) -> None:
        self._order.launch(self._machine.stream if stream is None else stream.order)

    def upload(self, stream: Any = None) -> None:
        self._machine.refuse_in_capture()


class _Stream:
    def __init__(
        self, machine: Machine, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: Any = None
    ) -> None:
        assert not null and not ptds, "the double makes new streams only"
        self._machine = machine
        self.device_id = machine.device
        self.order = machine.new_stream(self.device_id)
        self.ptr = self.order.ptr
        machine.count("streams")

    @classmethod
    def _of(cls, machine: Machine, order: Any) -> _Stream:
        """Return a stream that there is, for a null stream with the address 0."""
        made = cls.__new__(cls)
        made._machine, made.device_id, made.order = machine, order.device, order
        made.ptr = 0 if order in machine._null else order.ptr
        return made

    def __enter__(self) -> _Stream:
        if self.device_id != self._machine.device:
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match with the current device "
                f"({self._machine.device})"
            )
        self._machine.stack(self.device_id).append(self.order)
        return self

    def __exit__(self, *error: object) -> None:
        self._machine.stack(self.device_id).pop()

    def record(self, event: Any = None) -> Any:
        event = _Event(self._machine) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        self._machine.wait(self.order, event.clock, event._capture, event._captured)

    def synchronize(self) -> None:
        self._machine.synchronize_stream(self.order)

    @property
    def done(self) -> bool:
        self.synchronize()
        return True

    def begin_capture(self, mode: Any = None) -> None:
        assert mode == _Runtime.streamCaptureModeThreadLocal, "another mode allows or forbids what it should not"
        self._machine.begin_capture(self.order)

    def end_capture(self) -> _Graph:
        return _Graph(self._machine, self._machine.end_capture(self.order))

    def is_capturing(self) -> bool:
        return self.order.capture is not None


PerformanceWarning.__module__ = "cupy"
