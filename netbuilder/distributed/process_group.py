"""The processes of a run as a training loop sees them: sums of metrics, decisions that all share, state of rank 0."""

from __future__ import annotations

import json
import math
import pickle
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from netbuilder.distributed.failure.recent import ExchangeSeconds
from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.distributed.transport.time_limits import time_limits
from netbuilder.distributed.worlds.world import CommonWorld, create_world, report_failure
from netbuilder.engines.arrays import gpu_count
from netbuilder.engines.gpu_packages import how_to_install
from netbuilder.proto import DeviceError, DistributedError, NetError, extras

__all__ = ["ProcessGroup"]

T = TypeVar("T")


class ProcessGroup:
    """The processes that train together, for small exchanges between the steps of a training loop.

    All processes call the same methods in the same order. With one process each returns at once, so that a loop is the
    same for any number of them. Groups of the same name exchange values by the same common world.

    Args:
        rendezvous: the processes; None: only this one.
        name: of the common world.
        device: with engine NCCL, the GPU of this process that the values go through; not read once a model's common
            worlds have connected the processes.
        timeout: seconds that a process waits for the others in each call; None: the limit that was asked for by
            ``set_collective_timeout`` or netbuilder-launch; without one 300 s, as between two steps one of them may do
            what the others do not. One that does not answer at all, as it is stopped, ends the wait after 60 s.

    Attributes:
        rank: number of this process, from 0 on.
        size: number of processes.

    Raises:
        NetError: with engine NCCL, the rendezvous has no store of its own.
        DeviceError: mpi4py or MPI is missing, or NCCL or a GPU for it.
        DistributedError: MPI runs another number of processes, or another process did not come in time.

    >>> group = ProcessGroup()
    >>> group.rank, group.size, group.sum(2.5, 1)
    (0, 1, [2.5, 1.0])
    """

    def __init__(
        self,
        rendezvous: Rendezvous | None = None,
        *,
        name: str = "process_group",
        device: int = 0,
        timeout: float | None = None,
    ) -> None:
        self.rank, self.size = 0, 1
        self._world: CommonWorld | None = None
        if rendezvous is None or rendezvous.num_shards == 1:
            return
        self.rank, self.size = rendezvous.shard_id, rendezvous.num_shards
        run = f"{rendezvous.run_id}/" if rendezvous.run_id else ""
        limit = (time_limits().between or math.inf) if timeout is None else timeout
        by_nccl = rendezvous.engine == "NCCL"
        if by_nccl and not gpu_count():
            raise DeviceError(
                "engine NCCL exchanges values of GPUs, and this process can use none; to exchange values of CPUs, "
                f"{extras.how_to_install('mpi')}, and start the processes with netbuilder-launch --engine MPI, mpiexec "
                f"or srun; for GPUs, install NVIDIA's driver and CuPy ({how_to_install()})"
            )
        in_blob = isinstance(rendezvous.kv_handler, str) and rendezvous.store is None
        store = None if in_blob and not by_nccl else rendezvous.shared_store()
        self._world = create_world(run + name, self.size, self.rank, limit, store, (device,) if by_nccl else ())
        self._world.patient = timeout is None

    @classmethod
    def over(cls, world: CommonWorld) -> ProcessGroup:
        """Return the group of the processes of a common world."""
        group = cls()
        group.rank, group.size, group._world = world.rank, world.size, world
        return group

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and writes files."""
        return self.rank == 0

    def __repr__(self) -> str:
        return f"ProcessGroup(rank {self.rank} of {self.size})"

    @property
    def exchange_seconds(self) -> ExchangeSeconds:
        """How long this process has waited for the others so far, and exchanged values with them, in all its worlds."""
        session = None if self._world is None else self._world.session
        return ExchangeSeconds() if session is None else session.recent.seconds

    def sum(self, *values: float) -> list[float]:
        """Return the sums of numbers over the processes, formed in the order of the ranks: the same bits on all."""
        own = np.array(values, np.float64)
        if self._world is None:
            return [float(value) for value in own]
        rows = self._allgather(own, f"{len(own)} numbers").reshape(self.size, len(own))
        total = np.zeros(len(own))
        for row in rows:
            total += row
        return [float(value) for value in total]

    def allreduce(self, array: Any) -> np.ndarray[Any, Any]:
        """Return the sum of an array over the processes, the same bits on all; they give one shape and type."""
        total = np.array(array)
        if self._world is not None:
            call = self._world.call("ProcessGroup.allreduce", "", f"{total.shape} {total.dtype}", nbytes=total.nbytes)
            self._world.run(call, lambda communicator, same: communicator.allreduce(total))
        return total

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of the ranks, on each of them.

        Args:
            value: what ``pickle`` can store.
        """
        if self._world is None:
            return [value]
        own = np.frombuffer(pickle.dumps(value), np.uint8)
        counts = self._allgather(np.array([len(own)], np.int64), "sizes").tolist()
        everything = self._allgather(own, "values", counts)
        ends = np.cumsum(counts)
        return [pickle.loads(everything[end - count : end].tobytes()) for end, count in zip(ends, counts)]

    def broadcast(self, value: T, root: int = 0) -> T:
        """Return the value of one process, on all of them.

        Args:
            value: what ``pickle`` can store; those of other processes than ``root`` are ignored.
            root: rank of that process.
        """
        if not 0 <= root < self.size:
            raise NetError(f"ProcessGroup: root must be in [0, {self.size}), got {root}")
        if self._world is None:
            return value
        chosen = self.rank == root
        data = np.frombuffer(bytearray(pickle.dumps(value)), np.uint8) if chosen else np.empty(0, np.uint8)
        size = int(self._allgather(np.array([len(data)], np.int64), "sizes")[root])
        data = data if chosen else np.empty(size, np.uint8)
        call = self._world.call("ProcessGroup.broadcast", "", f"from rank {root}")
        self._world.run(call, lambda communicator, same: communicator.broadcast(data, root))
        return value if chosen else pickle.loads(data.data)

    def wait(self) -> None:
        """Wait until all processes call it."""
        if self._world is not None:
            self._world.run(
                self._world.call("ProcessGroup.wait", ""), lambda communicator, same: communicator.barrier()
            )

    def require_equal(self, facts: Mapping[str, Any]) -> None:
        """Check that values are equal on all processes.

        Args:
            facts: by name; JSON must be able to hold them.

        Raises:
            DistributedError: on all processes: some differ; the message names them, and which ranks have which.
        """
        everywhere = self.gather({name: json.dumps(value, sort_keys=True) for name, value in facts.items()})
        problems = []
        for name in dict.fromkeys(name for each in everywhere for name in each):
            ranks = defaultdict(list)
            for rank, each in enumerate(everywhere):
                ranks[each.get(name, "nothing")].append(str(rank))
            if len(ranks) > 1:
                texts = (f"{text} on rank {', '.join(having)}" for text, having in ranks.items())
                problems.append(f"{name} ({'; '.join(texts)})")
        if problems:
            raise DistributedError(f"the processes differ in {', '.join(problems)}; these must be the same on all")

    def report_failure(self, error: BaseException) -> None:
        """Make the next exchange of the other processes raise an error which says that this one has failed, and why."""
        if self._world is not None:
            report_failure([self._world], error)

    def _allgather(self, own: Any, what: str, counts: Any = None) -> Any:
        assert self._world is not None
        call = self._world.call("ProcessGroup.gather", "", what)
        return self._world.run(call, lambda communicator, same: communicator.allgather(own, counts))
