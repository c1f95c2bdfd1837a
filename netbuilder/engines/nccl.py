"""NCCL, called through CuPy: GPUs exchange values with one another without passing the host.

The GPUs that a process drives have one communicator each, for each set of GPUs that exchanges values; it is made when
the first operator of such a set is bound. Those of the last ``KEPT`` sets are kept, others as long as a plan uses them.
A group of calls is given to all GPUs of the process at once, on the stream that each of them has for exchanges. This
stream first waits for the work that the GPU has when the group begins; the GPU's later work waits for the group where
its results are needed. All groups of a GPU go to one stream, so their order is that in which they begin.

Small arrays of a group that are to be summed, or copied from the same rank, are exchanged as one: a kernel packs them
into one array before the call, and another one unpacks the result.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from netbuilder.data.forking import after_fork, new_lock
from netbuilder.engines.cuda.copies import ELEMENTS
from netbuilder.engines.cuda.many_tensors import ManyTensors, Part
from netbuilder.engines.gpu import StreamRole, gpu
from netbuilder.engines.gpu_packages import how_to_install
from netbuilder.engines.programs import Load, Program
from netbuilder.engines.traced import ANY_SHAPE
from netbuilder.proto import DeviceError
from netbuilder.proto.extras import NCCL
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "ISSUING",
    "KEPT",
    "TYPES",
    "BoundGroup",
    "GpuGroup",
    "NcclCall",
    "bind_collectives",
    "copies_of_words",
    "gpu_group",
    "groups",
    "nccl",
    "nccl_available",
    "nccl_module",
    "one_group",
    "type_of",
]

Array = Any

TYPES = {
    "bool": "UINT8",  # only copied
    "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "uint32": "UINT32", "int64": "INT64", "uint64": "UINT64",
    "float16": "FLOAT16", "float32": "FLOAT32", "float64": "FLOAT64", "bfloat16": "BFLOAT16",
}  # fmt: skip
_ITEMSIZES = {kind: 2 if name == "bfloat16" else np.dtype(name).itemsize for name, kind in TYPES.items()}

_PACKED = frozenset({"allReduce", "broadcast"})
_SMALL = 256 << 10
"""Bytes of an array up to which it is packed: NCCL takes longer to begin a call than to exchange them."""
_FEWEST = 4
"""Calls that are packed at least: packing and unpacking are two launches on each GPU."""
_ALIGNMENT = 16  # bytes


def nccl_module() -> Any:
    """Return CuPy's module for NCCL; None without CuPy."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns if the library is missing
            return importlib.import_module("cupy.cuda.nccl")
    except ImportError:
        return None


def nccl_available() -> bool:
    """Whether CuPy can call NCCL here; making an id needs no GPU."""
    module = nccl_module()
    return module is not None and bool(getattr(module, "available", False))


def nccl() -> Any:
    """Return CuPy's module for NCCL.

    Raises:
        DeviceError: CuPy or NCCL is missing.
    """
    if not nccl_available():
        raise DeviceError(
            f"NCCL is not installed, through which GPUs exchange values: {how_to_install(NCCL)}; or use_nccl=False"
        )
    return nccl_module()


@contextlib.contextmanager
def one_group(module: Any) -> Iterator[None]:
    """Give NCCL the calls inside as one group. It ends after an error, too: else later calls would become part of it.

    Args:
        module: from ``nccl``.
    """
    module.groupStart()
    try:
        yield
    finally:
        module.groupEnd()


def type_of(dtype: Any, *, sums: bool = False) -> str | None:
    """Return NCCL's name of an element type; None if it has no such type.

    Args:
        dtype: of NumPy, or "bfloat16".
        sums: elements are to be added, which bools cannot be.
    """
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    return None if sums and name == "bool" else TYPES.get(name)


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


KEPT = 8
"""Sets of GPUs whose communicators are kept when nothing uses them any more; each takes memory on its GPUs."""

ISSUING = new_lock()
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
        self._bound: weakref.WeakSet[BoundGroup] = weakref.WeakSet()

    @property
    def in_use(self) -> bool:
        """Whether there are collectives that are bound to the communicators."""
        return len(self._bound) > 0

    def bind(self, calls: Sequence[NcclCall]) -> BoundGroup:
        """Bind collectives to their arrays; they run as one group.

        Args:
            calls: an array that one of them writes is in no other one.
        """
        bound = BoundGroup(self, calls)
        self._bound.add(bound)
        return bound

    def destroy(self) -> None:
        """Free the communicators, after what they have begun."""
        for number in self.devices:
            gpu(number).stream(StreamRole.EXCHANGE).raw.synchronize()
        for each in self.communicators:
            each.destroy()


class BoundGroup:
    """Collectives that run as one group, bound to their arrays.

    Each use consists of ``mark``, ``start`` and ``wait``, in this order. ``start`` may be called by another thread,
    later: what the GPUs compute meanwhile, the group does not wait for.
    """

    def __init__(self, group: GpuGroup, calls: Sequence[NcclCall]) -> None:
        self.nccl_module, self._gpus = nccl(), [gpu(number) for number in group.devices]
        self._ready, self._done = ([each.new_event() for each in self._gpus] for _ in range(2))
        whole, self._packed = _pack([call for call in calls if call.count], group.devices)
        self._issued = [
            (place, getattr(communicator, call.what), _arguments(call, place, self.nccl_module))
            for call in whole
            for place, communicator in enumerate(group.communicators)
        ]

    def mark(self) -> None:
        """Note what the GPUs have to compute now: the group begins after it."""
        for each, event in zip(self._gpus, self._ready):
            each.record_event(event)

    def start(self) -> None:
        """Give the group to the GPUs' streams for exchange; does not wait for it."""
        lock: Any = ISSUING if len(self._gpus) > 1 else contextlib.nullcontext()
        with lock:
            streams = [each.begin_exchange(event).ptr for each, event in zip(self._gpus, self._ready)]
            for packed in self._packed:
                packed.copy_in()
            with one_group(self.nccl_module):
                for place, function, arguments in self._issued:
                    function(*arguments, streams[place])
            for packed in self._packed:
                packed.copy_out()
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


class _Packed:
    """Small arrays of several collectives in one array on each GPU.

    Args:
        calls: alike but for their arrays and counts.
        devices: the GPUs.

    Attributes:
        call: the collective over the whole arrays.
    """

    def __init__(self, calls: Sequence[NcclCall], devices: Sequence[int]) -> None:
        itemsize = _ITEMSIZES[calls[0].kind]
        sizes = [call.count * itemsize for call in calls]
        rounded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        begins = [sum(rounded[:k]) for k in range(len(calls))]
        self._copies = []
        flat = []
        for place, number in enumerate(devices):
            with gpu(number) as there:
                whole = there.xp.zeros(sum(rounded), np.uint8)
            parts = [whole[begin : begin + size] for begin, size in zip(begins, sizes)]
            taken = _copies([call.sends[place] for call in calls], parts)
            self._copies.append((there, taken, _copies(parts, [call.receives[place] for call in calls])))
            flat.append(whole)
        self.call = replace(calls[0], sends=flat, receives=flat, count=sum(rounded) // itemsize)

    def copy_in(self) -> None:
        """Copy what is given to the whole arrays, on the streams for exchange."""
        for there, copy, _ in self._copies:
            with there.on(StreamRole.EXCHANGE):
                copy()

    def copy_out(self) -> None:
        """Copy the results to where they belong."""
        for there, _, copy in self._copies:
            with there.on(StreamRole.EXCHANGE):
                copy()


def _copies(sources: Sequence[Array], targets: Sequence[Array]) -> Callable[[], object]:
    """Return the call that copies the bytes of arrays on one GPU, in one launch."""
    places = {number for array in (*sources, *targets) for number in (array.data.ptr, array.nbytes)}
    width = max(width for width in ELEMENTS if not any(number % width for number in places))
    return copies_of_words(width, [target.nbytes // width for target in targets]).bind(sources, targets)


def copies_of_words(width: int, sizes: Sequence[int]) -> ManyTensors:
    """Return the kernel that copies arrays.

    Args:
        width: bytes of an element as which their memory is copied.
        sizes: of the arrays, in such elements.
    """
    word = np.dtype(f"u{width}")
    same = Program(ANY_SHAPE, (Load(0, ANY_SHAPE, word),), (word,), ())
    return ManyTensors("packed", [Part(same, [k], [k], [word], size) for k, size in enumerate(sizes)])


def _pack(calls: Sequence[NcclCall], devices: Sequence[int]) -> tuple[list[NcclCall], list[_Packed]]:
    """Return the calls with small ones packed; all processes pack the same, since that depends on the sizes alone."""
    alike: dict[Any, list[NcclCall]] = defaultdict(list)
    for call in calls:
        small = call.what in _PACKED and call.count * _ITEMSIZES[call.kind] <= _SMALL
        alike[(call.what, call.kind, call.root) if small else id(call)].append(call)
    packed = [_Packed(members, devices) for members in alike.values() if len(members) >= _FEWEST]
    alone = [call for members in alike.values() if len(members) < _FEWEST for call in members]
    return [*alone, *(each.call for each in packed)], packed


groups: dict[tuple[int, ...], GpuGroup] = {}
"""Those of this process; the one that was asked for last is the last one."""
_making = new_lock()


@after_fork
def _forked() -> None:
    groups.clear()


def gpu_group(devices: Sequence[int]) -> GpuGroup:
    """Return the group of some GPUs of this process; their communicators are made at the first call.

    Args:
        devices: the GPUs, each once, in the order of their ranks.

    Raises:
        DeviceError: NCCL is missing, or cannot connect the GPUs.
    """
    with _making:
        return _group(tuple(devices))


def bind_collectives(devices: Sequence[int], calls: Sequence[NcclCall]) -> BoundGroup:
    """Return collectives that are bound to the communicators of some GPUs; no other thread can free these meanwhile.

    Args:
        devices: see ``gpu_group``, which also says what is raised.
        calls: see ``GpuGroup.bind``.
    """
    with _making:
        return _group(tuple(devices)).bind(calls)


def _group(key: tuple[int, ...]) -> GpuGroup:
    found = groups.pop(key, None)
    if found is None:
        _make_room()
        module = nccl()
        try:
            with gpu(key[0]):  # connecting changes the current GPU
                communicators = module.NcclCommunicator.initAll(list(key))
        except Exception as error:
            raise DeviceError(
                f"NCCL cannot connect the GPUs {list(key)}: {error}; run with NCCL_DEBUG=INFO to see why, or "
                "build the net with use_nccl=False"
            ) from error
        found = GpuGroup(key, communicators)
    groups[key] = found
    return found


def _make_room() -> None:
    """Destroy the communicators of sets that nothing uses, so that with one more ``KEPT`` sets are kept."""
    for key in [key for key, group in groups.items() if not group.in_use]:
        if len(groups) < KEPT:
            break
        groups.pop(key).destroy()
