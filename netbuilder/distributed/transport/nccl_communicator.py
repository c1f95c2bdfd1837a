"""NCCL between processes: arrays of GPUs are exchanged where they are, those of the host go through a GPU.

All common worlds of a process have the same communicators of NCCL: one over a GPU of each process, its first one, and
where processes have several GPUs one over all of them. Their calls go to the GPUs' streams for exchange, in the order
in which the lane makes them. Messages that do not wait go through the store by which the processes have met.

What the processes compare before each collective goes by NCCL, too, not through the store. It can wait no longer there:
it has the same size, type and communicator whatever a process is about to do, so that processes which disagree meet in
it, and learn it from the maxima; a process that waits for one that does not come asks the GPU and the store's messages
in turn, up to the time limit, and the watchdog ends a call of NCCL that does not return. The store would serve as many
requests for each collective as there are processes, and would know of no failure sooner: one that comes before a
collective is told in this comparison; after it, the others wait inside the collective itself.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.stores import Store
from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.nccl_id import shared_unique_id
from netbuilder.distributed.transport.start import meet
from netbuilder.engines.gpu import StreamRole, gpu
from netbuilder.engines.gpu_packages import how_to_install
from netbuilder.engines.nccl import GpuGroup, nccl, nccl_available, one_group, type_of
from netbuilder.proto import DeviceError, DistributedError, NetError
from netbuilder.proto.extras import NCCL
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GpuRanks", "NcclCommunicator", "connect_by_nccl"]

Array = Any

_PAUSE = 50e-6  # seconds between two looks at the GPU
_NOT_READY = 600  # cudaErrorNotReady


@dataclass(frozen=True)
class GpuRanks:
    """GPUs of all processes that exchange values.

    Args:
        group: those of this process.
        first: the rank, among all GPUs, of the first one of each process.
    """

    group: GpuGroup
    first: Sequence[int]


class NcclCommunicator(Communicator):
    """The processes of a run, each with its GPUs.

    Args:
        rank, size: see ``Communicator``.
        ranks: over a GPU of each process, which arrays of the host go through.
        store: one that all processes see, with a prefix of this run.
        connected: all that was connected, by the GPUs of this process; clones share it.
    """

    engine = "NCCL"

    def __init__(
        self,
        rank: int,
        size: int,
        ranks: GpuRanks,
        store: Store,
        connected: dict[tuple[int | None, ...], GpuRanks] | None = None,
    ) -> None:
        super().__init__(rank, size)
        self.own_ranks, self._store = ranks, store
        first: dict[tuple[int | None, ...], GpuRanks] = {ranks.group.devices: ranks}
        self._connected = first if connected is None else connected
        (self.raw_communicator,), (self._device,) = ranks.group.communicators, ranks.group.devices
        self._read = 0

    def clone(self) -> Communicator:
        made = NcclCommunicator(self.rank, self.size, self.own_ranks, self._store, self._connected)
        made.check = self.check
        return made

    def over(self, devices: Sequence[int | None]) -> GpuRanks | None:
        """Return what exchanges arrays that are on these GPUs of the process, in this order; None: nothing does."""
        return self._connected.get(tuple(devices))

    def connect(self, devices: Sequence[int]) -> None:
        """Connect these GPUs of all processes, unless they are; all of them call it, with as many GPUs each.

        Raises:
            DeviceError: NCCL cannot connect the GPUs.
            DistributedError: the processes give different numbers of GPUs.
        """
        count, new = len(devices), tuple(devices) not in self._connected
        given = self.allgather(np.array([count, new], np.int32)).reshape(-1, 2)
        if (given != given[0]).any():
            raise DistributedError(
                f"CreateCommonWorld: all processes must give as many GPUs (device_ids), got {given[:, 0].tolist()} of "
                f"ranks 0 to {self.size - 1}; new ones: {given[:, 1].tolist()}"
            )
        if new:
            key = shared_unique_id(self._store, self.rank, f"gpus_{len(self._connected)}")
            first = range(0, self.size * count, count)
            raw = _connected(key, self.size * count, first[self.rank], devices)
            self._connected[tuple(devices)] = GpuRanks(GpuGroup(devices, raw), first)

    def split(self, color: int, key: int) -> Communicator:
        raise NetError("engine 'NCCL' does not divide the processes of a run; use 'MPI'")

    def close(self) -> None:
        """Keep NCCL's communicator, which other common worlds have, too."""

    def abort(self, code: int) -> None:
        """End this process; NCCL, or the launcher, tells the others, which cannot be ended from here.

        NCCL's own abort might wait for the kernel of another communicator.
        """
        os._exit(code)

    def failure(self) -> str:
        for ranks in list(self._connected.values()):
            for device, raw in zip(ranks.group.devices, ranks.group.communicators):
                try:
                    raw.check_async_error()
                except Exception as error:
                    return f"rank {self.rank} of {self.size}: NCCL has failed on GPU {device}: {error}"
        return ""

    def post(self, data: bytes, to: int) -> None:
        number = self._store.add(f"mail/{to}/count")
        self._store.set(f"mail/{to}/{number}", struct.pack("<q", self.rank) + data)

    def poll(self) -> tuple[int, bytes] | None:
        key = f"mail/{self.rank}/{self._read + 1}"
        found = self._store.peek(key)
        if found is None:
            return None
        self._read += 1
        self._store.delete(key)
        return struct.unpack("<q", found[:8])[0], found[8:]

    # Arrays of the host are copied to the GPU and back.

    def _through(self, given: Sequence[Array], call: Callable[..., None]) -> list[Array]:
        """Return arrays after ``call(module, stream, *pointers)`` has changed their copies on the GPU."""
        with gpu(self._device).on(StreamRole.EXCHANGE) as here:
            stream = here.stream(StreamRole.EXCHANGE).raw
            copies = [here.xp.asarray(each) for each in given]
            call(nccl(), stream.ptr, *(copy.data.ptr for copy in copies))
            runtime = here.xp.cuda.runtime
            while status := runtime.streamQuery(stream.ptr):  # `stream.done` is False after an error, too
                if status != _NOT_READY:
                    error = runtime.CUDARuntimeError(status)
                    text = f"rank {self.rank} of {self.size}: GPU {self._device} has failed: {error}"
                    raise DistributedError(text) from error
                self.check()
                time.sleep(_PAUSE)
            self.raw_communicator.check_async_error()
            return [copy.get() for copy in copies]

    def _number(self, name: str | None) -> int:
        assert name is not None
        return int(getattr(nccl(), f"NCCL_{name}"))

    def _allreduce(self, array: Array, maximum: bool, patient: bool) -> None:
        kind = type_of(array.dtype, sums=True)
        wide = array if kind is not None else array.astype(np.int64)
        number, count = self._number(kind or "INT64"), array.size

        def call(module: Any, stream: int, pointer: int) -> None:
            op = module.NCCL_MAX if maximum else module.NCCL_SUM
            self.raw_communicator.allReduce(pointer, pointer, count, number, op, stream)

        array[:] = self._through([wide], call)[0].astype(array.dtype, copy=False)

    def _reduce(self, array: Array, root: int) -> None:
        total = array.copy()
        self._allreduce(total, False, False)
        if self.rank == root:
            array[:] = total

    def _broadcast(self, array: Array, root: int) -> None:
        number = self._number("UINT8")

        def call(module: Any, stream: int, pointer: int) -> None:
            self.raw_communicator.broadcast(pointer, pointer, array.nbytes, number, root, stream)

        array[:] = self._through([array.view(np.uint8)], call)[0].view(array.dtype)

    def _allgather(self, own: Array, out: Array, counts: Sequence[int]) -> None:
        number, sizes = self._number("UINT8"), [count * own.itemsize for count in counts]
        starts = [sum(sizes[:rank]) for rank in range(self.size)]
        whole = np.zeros(sum(sizes), np.uint8)
        whole[starts[self.rank] : starts[self.rank] + sizes[self.rank]] = own.view(np.uint8)

        def call(module: Any, stream: int, pointer: int) -> None:
            with one_group(module):
                for root, (start, size) in enumerate(zip(starts, sizes)):
                    if size:
                        self.raw_communicator.broadcast(pointer + start, pointer + start, size, number, root, stream)

        out[:] = self._through([whole], call)[0].view(own.dtype)

    def _alltoall(self, array: Array, counts: Sequence[int], out: Array, received: Sequence[int]) -> None:
        number, (sent, taken) = (
            self._number("UINT8"),
            ([n * array.itemsize for n in each] for each in (counts, received)),
        )
        starts, places = ([sum(sizes[:rank]) for rank in range(self.size)] for sizes in (sent, taken))
        others = [rank for rank in range(self.size) if rank != self.rank]

        def call(module: Any, stream: int, given: int, into: int) -> None:
            with one_group(module):
                for rank in others:
                    if sent[rank]:
                        self.raw_communicator.send(given + starts[rank], sent[rank], number, rank, stream)
                    if taken[rank]:
                        self.raw_communicator.recv(into + places[rank], taken[rank], number, rank, stream)

        mine = array.view(np.uint8)
        _, found = self._through([mine, np.zeros(sum(taken), np.uint8)], call)
        here, there = places[self.rank], starts[self.rank]
        found[here : here + taken[self.rank]] = mine[there : there + sent[self.rank]]
        out[:] = found.view(array.dtype)

    def _barrier(self) -> None:
        self._allreduce(np.zeros(1, np.int32), False, True)

    def _send(self, array: Array, to: int, tag: int) -> None:
        raise NetError("engine 'NCCL' sends nothing from one process to another; use 'MPI' for SendTensor")

    def _receive(self, out: Array, source: int | None, tag: int | None) -> tuple[int, int]:
        raise NetError("engine 'NCCL' sends nothing from one process to another; use 'MPI' for ReceiveTensor")


def connect_by_nccl(store: Store, size: int, rank: int, devices: Sequence[int], name: str) -> NcclCommunicator:
    """Connect the processes of a run; all of them call it.

    Args:
        store: one that all processes see, with a prefix of this run.
        size, rank: the number of processes, and that of this one.
        devices: its GPUs, each once.
        name: of what they connect for, unlike that of another call.

    Raises:
        DeviceError: NCCL or a GPU is missing on one of them, or NCCL cannot connect the GPUs.
        DistributedError: the processes have different numbers of GPUs, or one has ended.
        StoreTimeoutError: some have not come.
    """
    # A rank that fails, or has not come, would leave the others inside NCCL.
    meet(store, size, rank, f"{name}/world", _why_not(rank, devices))
    raw = _connected(shared_unique_id(store, rank, name), size, rank, devices[:1])
    ranks = GpuRanks(GpuGroup(devices[:1], raw), range(size))
    made = NcclCommunicator(rank, size, ranks, store.with_prefix(name))
    made.connect(devices)
    return made


def _why_not(rank: int, devices: Sequence[int]) -> str:
    """Return why this process cannot connect GPUs; "" if it can."""
    if not nccl_available():
        return f"rank {rank} has no NCCL; {how_to_install(NCCL)}"
    try:
        for device in devices:
            gpu(device)
    except DeviceError as error:
        return str(error)
    return ""


def _connected(key: bytes, size: int, first: int, devices: Sequence[int]) -> list[Any]:
    """Return NCCL's communicators of some GPUs, whose ranks begin with ``first``, among ``size`` ones."""
    module, made = nccl(), list[Any]()
    try:
        with one_group(module):  # one thread connects all of them
            for number, device in enumerate(devices):
                with gpu(device):
                    made.append(module.NcclCommunicator(size, key, first + number))
    except DeviceError:
        raise
    except Exception as error:
        raise DeviceError(
            f"NCCL cannot connect the GPUs {list(devices)} of this process, ranks {first} to "
            f"{first + len(devices) - 1}, with the others of {size}: {error}; run with NCCL_DEBUG=INFO to see why"
        ) from error
    return made
