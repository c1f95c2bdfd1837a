"""What a job of netbuilder-launch is: a program, and how many processes run it where."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field

from netbuilder.distributed.stores.secret import check_secret
from netbuilder.distributed.transport import launchers
from netbuilder.proto.cores import core_count
from netbuilder.proto.errors import NetError, counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Job"]

_PORT = 29400
_MOST_ON_CORE = 64  # processes; more are a slip, and block the machine before they could be stopped
_MOST_THREADS, _MOST_GPUS = 1 << 12, 1 << 10  # of a process
_MOST = 1 << 16  # processes of an elastic job that names no number


@dataclass(frozen=True)
class Job:
    """A program, and how many processes run it where.

    Args:
        command: the program with its arguments, such as ["python", "train.py"].
        processes: number of processes on each node.
        hosts: names or addresses of the nodes, the same list on all of them; empty: this node alone.
        node_rank: which of the hosts this one is, from 0 on.
        engine: "MPI" or "NCCL"; None: "MPI" if mpi4py finds an MPI library, otherwise "NCCL".
        port: port of the store on the first host; used with several hosts only.
        secret: what all who use the store know, 16 bytes or more; with several hosts all must give the same one. None:
            random.
        threads: number of threads of each process; None: the cores of the node divided by its processes.
        gpus: number of GPUs of each process, which it sees as 0, 1, ...; its part of those of the node, by its number
            there. None: each process sees all.
        pin: give each process cores of its own.
        prefix: of "stdout" and "stderr", the streams whose lines begin with the rank.
        only_first: leave out the standard output of ranks other than 0.
        grace: seconds that processes have to end after a signal before they are killed.
        restarts: how often to start the job again after a failure.
        collective_timeout: seconds that a collective waits for other processes, see ``set_collective_timeout``; 0: no
            limit; None: what the environment says.
        start_timeout: seconds to wait for the other nodes.
        run_id: text that other runs do not have; None: random.
        least, most: how few and how many processes an elastic job may have: after a loss the others go on, and hosts
            that come join it; ``processes`` are those that this host offers, and ``hosts`` names the first host alone,
            or none. None, both: the job is not elastic; None, one: no bound.
        join: of an elastic job: this is not the first host.

    Raises:
        NetError: a value is out of range.
    """

    command: Sequence[str]
    processes: int = 1
    hosts: Sequence[str] = ()
    node_rank: int = 0
    engine: str | None = None
    port: int = _PORT
    secret: bytes | None = field(default=None, repr=False)
    threads: int | None = None
    gpus: int | None = None
    pin: bool = False
    prefix: Sequence[str] = ("stderr",)
    only_first: bool = False
    grace: float = 30.0
    restarts: int = 0
    collective_timeout: float | None = None
    start_timeout: float = 60.0
    run_id: str | None = None
    least: int | None = None
    most: int | None = None
    join: bool = False

    def __post_init__(self) -> None:
        for name, least in (("processes", 1), ("restarts", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise NetError(f"launch: {name} must be a whole number, {least} or more, got {value!r}")
        cores = core_count()
        for name, most in (("processes", _MOST_ON_CORE * cores), ("threads", _MOST_THREADS), ("gpus", _MOST_GPUS)):
            value = getattr(self, name)
            if value is not None and value > most:
                here = f" on {counted(cores, 'core')}" if name == "processes" else ""
                raise NetError(f"launch: {name} must be at most {most}{here}, got {value}")
        if not 1 <= self.port < 1 << 16:
            raise NetError(f"launch: port must be from 1 to 65535, got {self.port}")
        if self.gpus is not None:
            launchers.own_gpus(os.environ, launchers.Place("", local_size=self.processes), self.gpus, of_host=True)
        if not self.command:
            raise NetError("launch: command must name a program, got none")
        if not 0 <= self.node_rank < self.nodes:
            raise NetError(f"launch: node_rank must lie in [0, {self.nodes}), got {self.node_rank}")
        if len(set(self.hosts)) < len(self.hosts):
            raise NetError(f"launch: each host may be given once, got {list(self.hosts)}; processes= is for each node")
        if not self.is_local and not self.secret:
            which = "the hosts of an elastic job" if self.is_elastic else f"{self.nodes} hosts"
            raise NetError(
                f"launch: {which} need a secret, the same on all of them, by which they know one another; write one "
                "into a file that only you can read"
            )
        if self.secret is not None:
            check_secret(self.secret, "launch: secret")
        self._check_elastic()
        if self.engine not in (None, "MPI", "NCCL"):
            raise NetError(f"launch: engine must be 'MPI' or 'NCCL', got {self.engine!r}")
        if self.pin and self.processes > cores:
            raise NetError(
                f"launch: {self.processes} processes cannot have cores of their own on {counted(cores, 'core')}; start "
                "fewer, or do not pin them"
            )

    def _check_elastic(self) -> None:
        if not self.is_elastic:
            if self.join:
                raise NetError("launch: join is for elastic jobs; give least or most, or node_rank in its place")
            return
        if not 1 <= self.at_least <= self.at_most:
            raise NetError(f"launch: least and most must be 1 <= least <= most, got {self.least} and {self.most}")
        if len(self.hosts) > 1 or self.node_rank:
            raise NetError(
                f"launch: hosts of an elastic job must name the first one alone, got {list(self.hosts)}; others come "
                "with join, in place of node_rank"
            )
        if self.join and not self.hosts:
            raise NetError("launch: join needs hosts, with the name of the first host")

    @property
    def is_elastic(self) -> bool:
        """Whether the job outlives the loss of processes, and takes new ones."""
        return self.least is not None or self.most is not None

    @property
    def at_least(self) -> int:
        """The fewest processes with which the job goes on."""
        return 1 if self.least is None else self.least

    @property
    def at_most(self) -> int:
        """The most processes that it takes."""
        return _MOST if self.most is None else self.most

    @property
    def is_first(self) -> bool:
        """Whether this host serves the store."""
        return self.node_rank == 0 and not self.join

    @property
    def is_local(self) -> bool:
        """Whether all processes run on this host."""
        return not self.hosts if self.is_elastic else self.nodes == 1

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return max(1, len(self.hosts))

    @property
    def size(self) -> int:
        """Number of processes on all nodes."""
        return self.nodes * self.processes
