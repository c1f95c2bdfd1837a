"""NCCL, called through CuPy: GPUs exchange values with one another without passing the host.

The GPUs that a process drives have one communicator each, for each set of GPUs that exchanges values; it is made when
the first operator of such a set is bound, and kept. A group of calls is given to all GPUs of the process at once, on
the stream that each of them has for exchanges. This stream first waits for the work that the GPU has when the group
begins; the GPU's later work waits for the group where its results are needed. All groups of a GPU go to one stream, so
their order is that in which they begin.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.data.forking import after_fork, new_lock
from netbuilder.ops.engines.gpu import gpu
from netbuilder.proto import DeviceError

__all__ = ["INSTALL", "BoundGroup", "GpuGroup", "NcclCall", "gpu_group", "nccl", "nccl_available", "type_of"]

Array = Any

INSTALL = "pip install 'netbuilder[gpu]', which has nvidia-nccl-cu12"

_TYPES = {
    "bool": "UINT8",  # only copied
    "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "uint32": "UINT32", "int64": "INT64", "uint64": "UINT64",
    "float16": "FLOAT16", "float32": "FLOAT32", "float64": "FLOAT64", "bfloat16": "BFLOAT16",
}  # fmt: skip


def _module() -> Any:
    """Return CuPy's module for NCCL; None without CuPy."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns if the library is missing
            return importlib.import_module("cupy.cuda.nccl")
    except ImportError:
        return None


def nccl_available() -> bool:
    """Whether CuPy can call NCCL here; making an id needs no GPU."""
    module = _module()
    return module is not None and bool(getattr(module, "available", False))


def nccl() -> Any:
    """Return CuPy's module for NCCL.

    Raises:
        DeviceError: CuPy or NCCL is missing.
    """
    if not nccl_available():
        raise DeviceError(f"NCCL is not installed, through which GPUs exchange values: {INSTALL}; or use_nccl=False")
    return _module()


def type_of(dtype: Any, *, sums: bool = False) -> str | None:
    """Return NCCL's name of an element type; None if it has no such type.

    Args:
        dtype: of NumPy, or "bfloat16".
        sums: elements are to be added, which bools cannot be.
    """
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    return None if sums and name == "bool" else _TYPES.get(name)


@dataclass(frozen=True)
class NcclCall:
    """A collective over arrays, for ``GpuGroup.bind``.

    Args:
        what: "allReduce", "reduce" and "reduceScatter", which add; "broadcast" and "allGather".
        sends, receives: for each GPU of the process that takes part, what it gives and where it gets the result; they
            may be the same array. None: this GPU gets nothing.
        kind: NCCL's name of the element type (``type_of``).
        count: number of elements that each GPU gives; of reduceScatter: that it gets.
        root: the rank that gives the value, or gets the sum.
    """

    what: str
    sends: Sequence[Array]
    receives: Sequence[Array | None]
    kind: str
    count: int
    root: int = 0


_ISSUING = new_lock()
"""One group at a time: GPUs that get groups in different orders would wait for one another forever."""


class GpuGroup:
    """GPUs of this process that exchange values by NCCL, and their communicators.

    Args:
        devices: the GPUs.
        communicators: one for each of them.
    """

    def __init__(self, devices: Sequence[int], communicators: Sequence[Any]) -> None:
        self.devices = tuple(devices)
        self.communicators = tuple(communicators)

    def bind(self, calls: Sequence[NcclCall]) -> BoundGroup:
        """Bind collectives to their arrays; they run as one group."""
        return BoundGroup(self, calls)


class BoundGroup:
    """Collectives that run as one group, bound to their arrays.

    Each use consists of ``mark``, ``start`` and ``wait``, in this order. ``start`` may be called by another thread,
    later: what the GPUs compute meanwhile, the group does not wait for.
    """

    def __init__(self, group: GpuGroup, calls: Sequence[NcclCall]) -> None:
        self._module, self._gpus = nccl(), [gpu(number) for number in group.devices]
        self._ready, self._done = ([each.new_event() for each in self._gpus] for _ in range(2))
        self._issued = [
            (place, getattr(communicator, call.what), _arguments(call, place, self._module))
            for call in calls
            if call.count
            for place, communicator in enumerate(group.communicators)
        ]

    def mark(self) -> None:
        """Note what the GPUs have to compute now: the group begins after it."""
        for each, event in zip(self._gpus, self._ready):
            each.record_event(event)

    def start(self) -> None:
        """Give the group to the GPUs' streams for exchange; does not wait for it."""
        lock: Any = _ISSUING if len(self._gpus) > 1 else contextlib.nullcontext()
        with lock:
            streams = [each.begin_exchange(event).ptr for each, event in zip(self._gpus, self._ready)]
            self._module.groupStart()
            try:
                for place, function, arguments in self._issued:
                    function(*arguments, streams[place])
            finally:
                self._module.groupEnd()
            for each, event in zip(self._gpus, self._done):
                each.end_exchange(event)

    def wait(self) -> None:
        """Make what the GPUs compute later wait for the group."""
        for each, event in zip(self._gpus, self._done):
            each.wait_until(event)

    def begin(self) -> Callable[[], None]:
        """Begin the group after what the GPUs have to compute now; return ``wait``."""
        self.mark()
        self.start()
        return self.wait


def _arguments(call: NcclCall, place: int, module: Any) -> tuple[Any, ...]:
    """Return the arguments of a communicator's method, but for the stream."""
    pointers = [0 if array is None else array.data.ptr for array in (call.sends[place], call.receives[place])]
    add = module.NCCL_SUM
    more = {
        "allReduce": (add,), "reduce": (add, call.root), "reduceScatter": (add,),
        "broadcast": (call.root,), "allGather": (),
    }[call.what]  # fmt: skip
    return (*pointers, call.count, getattr(module, f"NCCL_{call.kind}"), *more)


_groups: dict[tuple[int, ...], GpuGroup] = {}
_making = new_lock()


@after_fork
def _forked() -> None:
    _groups.clear()


def gpu_group(devices: Sequence[int]) -> GpuGroup:
    """Return the group of some GPUs of this process; their communicators are made at the first call.

    Args:
        devices: the GPUs, each once, in the order of their ranks.

    Raises:
        DeviceError: NCCL is missing, or cannot connect the GPUs.
    """
    key = tuple(devices)
    with _making:
        found = _groups.get(key)
        if found is None:
            module = nccl()
            try:
                with gpu(key[0]):  # connecting changes the current GPU
                    communicators = module.NcclCommunicator.initAll(list(key))
            except Exception as error:
                raise DeviceError(
                    f"NCCL cannot connect the GPUs {list(key)}: {error}; run with NCCL_DEBUG=INFO to see why, or "
                    "build the net with use_nccl=False"
                ) from error
            found = _groups[key] = GpuGroup(key, communicators)
    return found
