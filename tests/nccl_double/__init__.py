"""A double of ``cupy.cuda.nccl``: collectives over emulated GPUs.

Where NCCL would hang or give garbage, it raises: a rank that does not come, ranks that differ in call, count, type or
root, calls of one thread for several GPUs outside of a group, a stream or memory of another GPU. Each call is work of
its stream. Ranks may be threads of one process.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulated_gpu import machine
from emulated_gpu.machine import Touches

__all__ = ["Hang", "Mismatch", "NcclDouble", "NcclError"]

DTYPES = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64, np.uint16]
_NAMES = ["INT8", "UINT8", "INT32", "UINT32", "INT64", "UINT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16"]
_BFLOAT16 = 9
_SUM, _MAX, _MIN = 0, 2, 3
_PATIENCE = 20.0  # seconds until a rank that does not come would hang the others


class NcclError(RuntimeError):
    """What NCCL refuses."""


class Hang(AssertionError):
    """What would wait forever."""


class Mismatch(AssertionError):
    """Ranks that do not call the same: garbage, or a hang."""


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
        return self.what, self.count, self.dtype, () if self.what in ("send", "recv") else self.detail


class Clique:
    """The ranks that have one id; those of one thread, or one thread each."""

    def __init__(self, nccl: NcclDouble, devices: Sequence[int | None], alone: bool) -> None:
        self.nccl, self.devices, self.alone = nccl, list(devices), alone
        self.condition = threading.Condition()
        self.rounds: dict[int, dict[int, list[Call]]] = defaultdict(dict)
        self.results: dict[int, BaseException | None] = {}
        self.number = [0] * len(devices)
        self.aborted = False

    def submit(self, given: dict[int, list[Call]]) -> None:
        """Give the calls of some ranks, those of one group; return when all ranks have come."""
        if self.alone:
            missing = [rank for rank in range(len(self.devices)) if rank not in given]
            if missing:
                raise Hang(f"ranks {missing} take no part in {next(iter(given.values()))[0].what}: the others wait")
            self.run(given)
            return
        rank, calls = next(iter(given.items()))
        with self.condition:
            (number,) = {self.number[each] for each in given}
            for each in given:
                self.number[each] += 1
            here = self.rounds[number]
            here |= given
            if len(here) == len(self.devices):
                try:
                    self.run(here)
                    self.results[number] = None
                except BaseException as error:
                    self.results[number] = error
                self.condition.notify_all()
            elif not self.condition.wait_for(lambda: number in self.results or self.aborted, self.nccl.patience):
                absent = [each for each in range(len(self.devices)) if each not in here]
                what = calls[0].what if calls else "ncclCommInitRank"
                raise Hang(f"rank {rank} waits in {what} for ranks {absent}, which do not come")
            if self.aborted and number not in self.results:
                raise NcclError("NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error")
            if self.results[number] is not None:
                raise self.results[number]  # type: ignore[misc]

    def run(self, given: dict[int, list[Call]]) -> None:
        point = ("send", "recv")
        together = {rank: [call for call in calls if call.what not in point] for rank, calls in given.items()}
        if len({len(calls) for calls in together.values()}) > 1:
            raise Mismatch(f"ranks give different numbers of calls: {together}")
        for calls in zip(*(together[rank] for rank in sorted(together))):
            if len({call.agrees() for call in calls}) > 1:
                raise Mismatch(f"ranks differ: {[call.agrees() for call in calls]}")
            self.enqueue(f"nccl.{calls[0].what}", dict(enumerate(calls)), functools.partial(self._compute, calls))
        pairs = list(
            self._pairs({rank: [call for call in calls if call.what in point] for rank, calls in given.items()})
        )
        for sender, send, receiver, receive in pairs:
            copy = functools.partial(_copy, send, receive)
            self.enqueue("nccl.send", {sender: send, receiver: receive}, copy)

    def enqueue(self, name: str, calls: dict[int, Call], do: Callable[[], object]) -> None:
        """Give ranks' streams what they do together."""
        touches = [self._touches(rank, call) for rank, call in calls.items()]
        machine.collective([call.stream for call in calls.values()], name, do, touches)

    def _touches(self, rank: int, call: Call) -> Touches:
        device, size = self.devices[rank], len(self.devices)
        if machine.device_of_stream(call.stream) != device:
            raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: a stream of another GPU for rank {rank} on GPU {device}")
        for pointer in (call.send, call.receive):
            if pointer and _device_of(pointer) != device:
                raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: {pointer:#x} is no memory of GPU {device}")
        nbytes = call.count * np.dtype(DTYPES[call.dtype]).itemsize
        sent = nbytes * (size if call.what == "reduceScatter" else 1)
        received = nbytes * (size if call.what == "allGather" else 1)
        gets = call.receive and (call.what != "reduce" or call.detail[1] == rank)
        return Touches([(call.send, sent)] if call.send else [], [(call.receive, received)] if gets else [])

    def _compute(self, calls: Sequence[Call]) -> None:
        first, size = calls[0], len(calls)
        whole = first.count * (size if first.what == "reduceScatter" else 1)
        sends = [_at(call.send, whole, call.dtype).copy() for call in calls]
        if first.what in ("allReduce", "reduce", "reduceScatter"):
            total = _reduced(sends, first.dtype, first.detail[0])
        for rank, call in enumerate(calls):
            if first.what == "allReduce":
                _at(call.receive, call.count, call.dtype)[:] = total
            elif first.what == "reduce" and rank == first.detail[1]:
                _at(call.receive, call.count, call.dtype)[:] = total
            elif first.what == "broadcast":
                _at(call.receive, call.count, call.dtype)[:] = sends[first.detail[0]]
            elif first.what == "allGather":
                _at(call.receive, call.count * size, call.dtype)[:] = np.concatenate(sends)
            elif first.what == "reduceScatter":
                part = total[rank * call.count : (rank + 1) * call.count]
                _at(call.receive, call.count, call.dtype)[:] = part

    def _pairs(self, given: dict[int, list[Call]]) -> Iterator[tuple[int, Call, int, Call]]:
        """Let each receive take what its peer sends to it, in the order of the calls."""
        sent: dict[tuple[int, int], list[Call]] = defaultdict(list)
        taken: dict[tuple[int, int], list[Call]] = defaultdict(list)
        for rank, calls in given.items():
            for call in calls:
                pair = (rank, call.detail[0]) if call.what == "send" else (call.detail[0], rank)
                (sent if call.what == "send" else taken)[pair].append(call)
        if {pair: len(calls) for pair, calls in sent.items()} != {pair: len(calls) for pair, calls in taken.items()}:
            raise Hang(f"sends {list(sent)} and receives {list(taken)} do not match")
        for pair, calls in sent.items():
            for send, receive in zip(calls, taken[pair]):
                if (send.count, send.dtype) != (receive.count, receive.dtype):
                    raise Mismatch(f"rank {pair[0]} sends {send}, rank {pair[1]} receives {receive}")
                yield pair[0], send, pair[1], receive


def _copy(send: Call, receive: Call) -> None:
    _at(receive.receive, receive.count, receive.dtype)[:] = _at(send.send, send.count, send.dtype)


def _runtime() -> Any:
    from cupy.cuda import runtime

    return runtime


def _device_of(pointer: int) -> int:
    """Return the GPU whose memory has an address; -1: none."""
    found = _runtime().pointerGetAttributes(pointer)
    return int(found.device) if found.type == _runtime().memoryTypeDevice else -1


def _at(pointer: int, count: int, dtype: int) -> Any:
    kind = np.dtype(DTYPES[dtype])
    return np.frombuffer((ctypes.c_byte * (count * kind.itemsize)).from_address(pointer), kind)


def _reduced(parts: Sequence[Any], dtype: int, op: int) -> Any:
    """Return the sum (or maximum, or minimum) of the ranks, in their order; of 16-bit floats in float32."""
    if dtype == _BFLOAT16:
        wide = [(part.astype(np.uint32) << 16).view(np.float32) for part in parts]
        total = _reduced(wide, 7, op).view(np.uint32)
        return ((total + 0x7FFF + ((total >> 16) & 1)) >> 16).astype(np.uint16)
    kind = np.dtype(DTYPES[dtype])
    total = parts[0].astype(np.float32 if kind == np.float16 else kind)
    for part in parts[1:]:
        with np.errstate(all="ignore"):
            total = {_SUM: np.add, _MAX: np.maximum, _MIN: np.minimum}[op](total, part, dtype=total.dtype)
    return total.astype(kind)


class NcclDouble:
    """What a program sees as the module ``cupy.cuda.nccl``.

    Attributes:
        created: the devices of each set of communicators that was made.
        groups: the calls of each group, in order.
    """

    available = True
    NcclError = NcclError
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)

    def __init__(self) -> None:
        self.created: list[tuple[int | None, ...]] = []
        self.groups: list[list[Call]] = []
        self.patience = _PATIENCE
        self.cliques: dict[bytes, Clique] = {}
        self._state = threading.local()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        for number, name in enumerate(_NAMES):
            setattr(self, f"NCCL_{name}", number)
        self.NcclCommunicator = _communicator_class(self)

    def get_version(self) -> int:
        return 22703

    def get_unique_id(self) -> bytes:
        return next(self._numbers).to_bytes(128, "big")

    def clique(self, key: bytes, size: int) -> Clique:
        """Return the ranks of an id."""
        return Clique(self, [None] * size, size == 1)

    # Groups, of one thread.

    def groupStart(self) -> None:
        self._state.depth = getattr(self._state, "depth", 0) + 1

    def groupEnd(self) -> None:
        if not getattr(self._state, "depth", 0):
            raise NcclError("NCCL_ERROR_INVALID_USAGE: ncclGroupEnd: not in a group call")
        self._state.depth -= 1
        if not self._state.depth:
            joining, self._state.joining = getattr(self._state, "joining", []), []
            self._join(joining)
            pending, self._state.pending = getattr(self._state, "pending", []), []
            self._submit(pending)

    def join(self, clique: Clique, rank: int) -> None:
        """Let a rank come to the others, in a group together with those of the same thread."""
        if getattr(self._state, "depth", 0):
            self._state.__dict__.setdefault("joining", []).append((clique, rank))
        else:
            self._join([(clique, rank)])

    def _join(self, joining: Sequence[tuple[Clique, int]]) -> None:
        for clique in {id(each): each for each, _ in joining}.values():
            ranks = [rank for each, rank in joining if each is clique]
            clique.submit({rank: [] for rank in ranks})
            if 0 in ranks:
                self.created.append(tuple(clique.devices))

    def give(self, clique: Clique, rank: int, call: Call) -> None:
        if getattr(self._state, "depth", 0):
            self._state.__dict__.setdefault("pending", []).append((clique, rank, call))
            return
        if clique.alone and len(clique.devices) > 1:
            raise Hang(f"{call.what} of rank {rank} outside of a group: the thread that calls for all GPUs would wait")
        self._submit([(clique, rank, call)])

    def _submit(self, pending: Sequence[tuple[Clique, int, Call]]) -> None:
        if not pending:
            return
        with self._lock:
            self.groups.append([call for _, _, call in pending])
        by_clique: dict[int, dict[int, list[Call]]] = {}
        cliques = {id(clique): clique for clique, _, _ in pending}
        for clique, rank, call in pending:
            by_clique.setdefault(id(clique), {}).setdefault(rank, []).append(call)
        for key, given in by_clique.items():
            cliques[key].submit(given)


def _communicator_class(nccl: NcclDouble) -> type:
    """Return the class of the communicators of one double."""

    class NcclCommunicator:
        def __init__(self, ndev: int, commId: bytes, rank: int, *, clique: Any = None) -> None:
            self._rank = rank
            if clique is None:
                assert isinstance(commId, bytes) and len(commId) == 128
                device = _runtime().getDevice()
                with nccl._lock:
                    clique = nccl.cliques.get(commId)
                    if clique is None:
                        clique = nccl.cliques[commId] = nccl.clique(commId, ndev)
                self._clique = clique
                with clique.condition:
                    clique.devices[rank] = device
                nccl.join(clique, rank)
            self._clique = clique

        @staticmethod
        def initAll(devices: Any) -> list[Any]:
            numbers = list(range(devices)) if isinstance(devices, int) else list(devices)
            if len(set(numbers)) < len(numbers):
                raise NcclError("NCCL_ERROR_INVALID_USAGE: duplicate GPU detected")
            nccl.created.append(tuple(numbers))
            clique = Clique(nccl, numbers, True)
            made = [NcclCommunicator(len(numbers), b"", rank, clique=clique) for rank in range(len(numbers))]
            _runtime().setDevice(numbers[-1])
            return made

        def rank_id(self) -> int:
            return self._rank

        def size(self) -> int:
            return len(self._clique.devices)

        def device_id(self) -> Any:
            return self._clique.devices[self._rank]

        def destroy(self) -> None:
            pass

        def abort(self) -> None:
            with self._clique.condition:
                self._clique.aborted = True
                self._clique.condition.notify_all()

        def check_async_error(self) -> None:
            if self._clique.aborted:
                raise NcclError("NCCL_ERROR_REMOTE_ERROR: a rank has aborted")

        def _give(self, what: str, send: int, receive: int, count: int, dtype: int, detail: Any, stream: int) -> None:
            nccl.give(self._clique, self._rank, Call(what, send, receive, count, dtype, detail, stream))

        def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
            self._give("allReduce", sendbuf, recvbuf, count, datatype, (op,), stream)

        def reduce(
            self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
        ) -> None:
            self._give("reduce", sendbuf, recvbuf, count, datatype, (op, root), stream)

        def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
            self._give("broadcast", sendbuff, recvbuff, count, datatype, (root,), stream)

        def reduceScatter(
            self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
        ) -> None:
            self._give("reduceScatter", sendbuf, recvbuf, recvcount, datatype, (op,), stream)

        def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
            self._give("allGather", sendbuf, recvbuf, count, datatype, (), stream)

        def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
            self._give("send", sendbuf, 0, count, datatype, (peer,), stream)

        def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
            self._give("recv", 0, recvbuf, count, datatype, (peer,), stream)

    return NcclCommunicator
