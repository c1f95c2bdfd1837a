"""A double of ``cupy.cuda.nccl``: collectives over emulated GPUs.

Where NCCL would hang or give garbage, it raises: a rank that does not come, ranks that differ in call, count, type or
root, calls of one thread for several GPUs outside of a group, calls of a group that use the same memory, a stream or
memory of another GPU. Calls are work of their streams, and CUDA graphs can hold them. Ranks may be threads of one
process.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulated_gpu import machine
from emulated_gpu.machine import Touches

__all__ = ["Call", "Clique", "Given", "Hang", "Mismatch", "NcclDouble", "NcclError"]

_TYPES = {
    "INT8": "int8", "UINT8": "uint8", "INT32": "int32", "UINT32": "uint32", "INT64": "int64", "UINT64": "uint64",
    "FLOAT16": "float16", "FLOAT32": "float32", "FLOAT64": "float64", "BFLOAT16": "uint16",
}  # fmt: skip
_DTYPES = [np.dtype(name) for name in _TYPES.values()]
_BFLOAT16 = list(_TYPES).index("BFLOAT16")
_ADDED = {0: np.add, 2: np.maximum, 3: np.minimum}
_SINGLE = ("send", "recv")
_PATIENCE = 20.0  # seconds until a rank that does not come would hang the others


class NcclError(RuntimeError):
    """What NCCL refuses."""


class Hang(AssertionError):
    """What would wait forever."""


class Mismatch(AssertionError):
    """Calls that do not go together: garbage, or a hang."""


@dataclass(frozen=True)
class Call:
    """What one rank gives to a collective."""

    what: str
    send: int
    receive: int
    count: int
    dtype: int
    detail: tuple[int, ...]  # operator, root or peer
    stream: int

    def agrees(self) -> tuple[Any, ...]:
        return self.what, self.count, self.dtype, () if self.what in _SINGLE else self.detail

    @property
    def nbytes(self) -> int:
        return self.count * _DTYPES[self.dtype].itemsize

    def touches(self, rank: int, size: int) -> Touches:
        """Return the memory that it reads and writes as that of a rank of so many."""
        rooted = self.what in ("broadcast", "reduce") and rank != self.detail[-1]
        sent = self.nbytes * (size if self.what == "reduceScatter" else 1)
        received = self.nbytes * (size if self.what == "allGather" else 1)
        reads = [] if self.what == "recv" or (rooted and self.what == "broadcast") else [(self.send, sent)]
        writes = [] if self.what == "send" or (rooted and self.what == "reduce") else [(self.receive, received)]
        return Touches(reads, writes)


Given = Mapping[int, Sequence[Call]]  # by rank


class _Round:
    """What the ranks do together when all have come."""

    def __init__(self) -> None:
        self.given: dict[int, Sequence[Call]] = {}
        self.done = False
        self.error: BaseException | None = None


class Clique:
    """The ranks that have one id.

    Args:
        devices: that of each rank.
        alone: one thread calls for all of them.
    """

    def __init__(self, nccl: NcclDouble, devices: Sequence[int | None], alone: bool) -> None:
        self.nccl, self.devices, self.alone = nccl, list(devices), alone
        self.aborted = False
        self.condition = threading.Condition()
        self._round = _Round()

    def submit(self, given: Given) -> None:
        """Give the calls of some ranks, those of one group; return when all ranks have come."""
        with self.condition:
            here = self._round
            here.given |= given
            if len(here.given) == len(self.devices):
                self._round = _Round()
                try:
                    self.run(here.given)
                except BaseException as error:
                    here.error = error
                here.done = True
                self.condition.notify_all()
            elif self.alone or not self.condition.wait_for(lambda: here.done or self.aborted, self.nccl.patience):
                rank, calls = next(iter(given.items()))
                absent = [each for each in range(len(self.devices)) if each not in here.given]
                what = calls[0].what if calls else "ncclCommInitRank"
                raise Hang(f"rank {rank} waits in {what} for ranks {absent}, which do not come")
            if here.error is not None:
                raise here.error
            if not here.done:
                raise NcclError("NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error")

    def run(self, given: Given) -> None:
        """Do a group of calls of all ranks."""
        together, single = (
            {rank: [call for call in given[rank] if (call.what in _SINGLE) == one] for rank in range(len(self.devices))}
            for one in (False, True)
        )
        if len({len(calls) for calls in together.values()}) > 1:
            raise Mismatch(f"ranks give different numbers of calls: {together}")
        for calls in zip(*together.values()):
            if len({call.agrees() for call in calls}) > 1:
                raise Mismatch(f"ranks differ: {[call.agrees() for call in calls]}")
            self.start(dict(enumerate(calls)), functools.partial(_compute, calls))
        for sender, send, receiver, receive in [*_pairs(single)]:
            self.start({sender: send, receiver: receive}, functools.partial(_copy, send, receive))

    def start(self, calls: Mapping[int, Call], do: Callable[[], object]) -> None:
        """Give ranks' streams what they do together."""
        touches = [call.touches(rank, len(self.devices)) for rank, call in calls.items()]
        name = f"nccl.{next(iter(calls.values())).what}"
        machine.collective([call.stream for call in calls.values()], name, do, touches)


def _compute(calls: Sequence[Call]) -> None:
    """Do a collective, given the call of each rank."""
    first, touches = calls[0], [call.touches(rank, len(calls)) for rank, call in enumerate(calls)]
    given = [_array(*part, first.dtype) for each in touches for part in each.reads]
    summed = first.what in ("allReduce", "reduce", "reduceScatter")
    result = _reduced(given, first.dtype, first.detail[0]) if summed else np.concatenate(given)
    for rank, each in enumerate(touches):
        own = result[rank * first.count : (rank + 1) * first.count] if first.what == "reduceScatter" else result
        for part in each.writes:
            _array(*part, first.dtype)[:] = own


def _pairs(given: Given) -> Iterator[tuple[int, Call, int, Call]]:
    """Let each receive take what its peer sends to it, in the order of the calls."""
    sent, taken = defaultdict[tuple[int, int], list[Call]](list), defaultdict[tuple[int, int], list[Call]](list)
    for rank, calls in given.items():
        for call in calls:
            (peer,) = call.detail
            if call.what == "send":
                sent[rank, peer].append(call)
            else:
                taken[peer, rank].append(call)
    if {pair: len(calls) for pair, calls in sent.items()} != {pair: len(calls) for pair, calls in taken.items()}:
        raise Hang(f"sends {list(sent)} and receives {list(taken)} do not match")
    for (sender, receiver), calls in sent.items():
        for send, receive in zip(calls, taken[sender, receiver]):
            if (send.count, send.dtype) != (receive.count, receive.dtype):
                raise Mismatch(f"rank {sender} sends {send}, rank {receiver} receives {receive}")
            yield sender, send, receiver, receive


def _copy(send: Call, receive: Call) -> None:
    _array(receive.receive, receive.nbytes, receive.dtype)[:] = _array(send.send, send.nbytes, send.dtype)


def _array(pointer: int, nbytes: int, dtype: int) -> Any:
    return np.frombuffer((ctypes.c_byte * nbytes).from_address(pointer), _DTYPES[dtype])


def _reduced(parts: Sequence[Any], dtype: int, op: int) -> Any:
    """Return the sum (or maximum, or minimum) of the ranks, in their order; of 16-bit floats in float32."""
    if dtype == _BFLOAT16:
        wide = [(part.astype(np.uint32) << 16).view(np.float32) for part in parts]
        total = _reduced(wide, _DTYPES.index(np.dtype("float32")), op).view(np.uint32)
        return ((total + 0x7FFF + ((total >> 16) & 1)) >> 16).astype(np.uint16)
    kind = _DTYPES[dtype]
    total = parts[0].astype(np.float32 if kind == np.float16 else kind)
    for part in parts[1:]:
        with np.errstate(all="ignore"):
            total = _ADDED[op](total, part, dtype=total.dtype)
    return total.astype(kind)


def _require_apart(calls: Iterable[tuple[Clique, int, Call]]) -> None:
    """Check that what a call of a group writes no other one uses, since they run at the same time."""
    ranges = []
    for clique, rank, call in calls:
        reads, writes = call.touches(rank, len(clique.devices))
        offset = rank * call.nbytes * ((call.what == "allGather") - (call.what == "reduceScatter"))
        if reads and writes and reads[0][0] == writes[0][0] + offset:  # in place
            reads, writes = [], [max(reads[0], writes[0], key=lambda part: part[1])]
        ranges += [(start, start + size, kind) for kind, some in enumerate((reads, writes)) for start, size in some]
    used = written = 0
    for start, end, writes in sorted(ranges):
        if start < (used if writes else written):
            raise Mismatch("a call of a group writes memory that another one uses, or other memory than it reads")
        used = max(used, end)
        written = max(written, end) if writes else written


def _runtime() -> Any:
    from cupy.cuda import runtime

    return runtime


def _device_of(pointer: int) -> int:
    """Return the GPU whose memory has an address; -1: none."""
    found = _runtime().pointerGetAttributes(pointer)
    return int(found.device) if found.type == _runtime().memoryTypeDevice else -1


class _OfThread(threading.local):
    """The group of a thread."""

    def __init__(self) -> None:
        self.depth = 0
        self.joining: list[tuple[Clique, int]] = []
        self.calls: list[tuple[Clique, int, Call]] = []


class NcclDouble:
    """What a program sees as the module ``cupy.cuda.nccl``.

    Attributes:
        created: the devices of each set of communicators that was made.
        groups: the calls of each group, in order.
        patience: seconds until a rank that does not come is an error.
    """

    available = True
    NcclError = NcclError
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)

    def __init__(self) -> None:
        self.created: list[tuple[int | None, ...]] = []
        self.destroyed: list[int | None] = []
        self.groups: list[list[Call]] = []
        self.patience = _PATIENCE
        self._cliques: dict[bytes, Clique] = {}
        self._of_thread = _OfThread()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        for number, name in enumerate(_TYPES):
            setattr(self, f"NCCL_{name}", number)
        self.NcclCommunicator = type("NcclCommunicator", (_Communicator,), {"nccl": self})

    def get_version(self) -> int:
        return 22703

    def get_unique_id(self) -> bytes:
        return next(self._numbers).to_bytes(128, "big")

    def groupStart(self) -> None:
        self._of_thread.depth += 1

    def groupEnd(self) -> None:
        own = self._of_thread
        if not own.depth:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: ncclGroupEnd: not in a group call")
        own.depth -= 1
        if not own.depth:
            joining, own.joining, calls, own.calls = own.joining, [], own.calls, []
            self._join(joining)
            self._submit(calls)

    # What communicators need.

    def new_clique(self, key: bytes, size: int) -> Clique:
        """Return the ranks of an id."""
        return Clique(self, [None] * size, size == 1)

    def join(self, key: bytes, size: int, rank: int, device: int) -> Clique:
        """Let a rank come to the others of an id, in a group together with those of the same thread."""
        with self._lock:
            if key not in self._cliques:
                self._cliques[key] = self.new_clique(key, size)
            clique = self._cliques[key]
        clique.devices[rank] = device
        self._of_thread.joining.append((clique, rank))
        if not self._of_thread.depth:
            self.groupStart()
            self.groupEnd()
        return clique

    def give(self, clique: Clique, rank: int, call: Call) -> None:
        """Let a rank take part in a collective, in a group together with other calls."""
        device = clique.devices[rank]
        if machine.device_of_stream(call.stream) != device:
            raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: a stream of another GPU for rank {rank} on GPU {device}")
        for pointer in (call.send, call.receive):
            if pointer and _device_of(pointer) != device:
                raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: {pointer:#x} is no memory of GPU {device}")
        if self._of_thread.depth:
            self._of_thread.calls.append((clique, rank, call))
        elif clique.alone and len(clique.devices) > 1:
            raise Hang(f"{call.what} of rank {rank} outside of a group: the thread that calls for all GPUs would wait")
        else:
            self._submit([(clique, rank, call)])

    def _join(self, joining: Sequence[tuple[Clique, int]]) -> None:
        for clique, ranks in _by_clique(joining).items():
            clique.submit({rank: [] for (rank,) in ranks})
            if (0,) in ranks:
                self.created.append(tuple(clique.devices))

    def _submit(self, calls: Sequence[tuple[Clique, int, Call]]) -> None:
        if calls:
            _require_apart(calls)
            with self._lock:
                self.groups.append([call for _, _, call in calls])
        for clique, of_clique in _by_clique(calls).items():
            given = defaultdict[int, list[Call]](list)
            for rank, call in of_clique:
                given[rank].append(call)
            clique.submit(given)


def _by_clique(items: Iterable[tuple[Any, ...]]) -> dict[Clique, list[tuple[Any, ...]]]:
    found = defaultdict(list)
    for clique, *rest in items:
        found[clique].append(tuple(rest))
    return found


class _Communicator:
    nccl: NcclDouble
    _destroyed = False

    def __init__(self, ndev: int, commId: bytes, rank: int, clique: Clique | None = None) -> None:
        self._rank = rank
        self._clique = self.nccl.join(commId, ndev, rank, _runtime().getDevice()) if clique is None else clique

    @classmethod
    def initAll(cls, devices: int | Sequence[int]) -> list[_Communicator]:
        numbers = list(range(devices)) if isinstance(devices, int) else list(devices)
        if len(set(numbers)) < len(numbers):
            raise NcclError("NCCL_ERROR_INVALID_USAGE: duplicate GPU detected")
        cls.nccl.created.append(tuple(numbers))
        clique = Clique(cls.nccl, numbers, True)
        _runtime().setDevice(numbers[-1])
        return [cls(len(numbers), b"", rank, clique) for rank in range(len(numbers))]

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        return len(self._clique.devices)

    def device_id(self) -> Any:
        return self._clique.devices[self._rank]

    def destroy(self) -> None:
        self._destroyed = True
        self.nccl.destroyed.append(self.device_id())

    def abort(self) -> None:
        with self._clique.condition:
            self._clique.aborted = True
            self._clique.condition.notify_all()

    def check_async_error(self) -> None:
        if self._clique.aborted:
            raise NcclError("NCCL_ERROR_REMOTE_ERROR: a rank has aborted")

    def _give(self, what: str, send: int, receive: int, count: int, dtype: int, detail: Any, stream: int) -> None:
        if self._destroyed:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: the communicator is destroyed")
        self.nccl.give(self._clique, self._rank, Call(what, send, receive, count, dtype, detail, stream))

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        self._give("allReduce", sendbuf, recvbuf, count, datatype, (op,), stream)

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int) -> None:
        self._give("reduce", sendbuf, recvbuf, count, datatype, (op, root), stream)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self._give("broadcast", sendbuff, recvbuff, count, datatype, (root,), stream)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:
        self._give("reduceScatter", sendbuf, recvbuf, recvcount, datatype, (op,), stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._give("allGather", sendbuf, recvbuf, count, datatype, (), stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._give("send", sendbuf, 0, count, datatype, (peer,), stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._give("recv", 0, recvbuf, count, datatype, (peer,), stream)
