"""The answers to MPI's questions about the other ranks, from a store: PMI-1, the protocol of MPICH and its relatives.

MPI needs a process manager so that ranks can tell one another their addresses, by a few lines of text. One of
netbuilder's own is the parent of a rank (``launch.rank_process``) or a child of it (``process_manager``).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from netbuilder.distributed.stores.meeting import Meeting
from netbuilder.distributed.stores.store import Store
from netbuilder.proto.errors import DistributedError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["HOST", "PLACE", "Beginning", "PmiServer", "announce", "host_mapping"]

HOST = "NETBUILDER_HOST"
"""Name of the host of a process, where its own does not tell: ranks whose hosts have the same name share memory."""
PLACE = ("PMI_FD", "PMI_RANK", "PMI_SIZE")
"""Variables by which MPI finds its process manager, and the place of a process."""

_JOB = "job"  # key of a text that no other job has; rank 0 sets it
_MAPPING = "PMI_process_mapping"  # what MPI calls the ranks that share a host
_NO_LIMIT = 1e9  # seconds
_ANSWERS = {
    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=256 vallen_max=4096 rc=0",
    "get_appnum": "cmd=appnum appnum=0 rc=0",
    "finalize": "cmd=finalize_ack rc=0",
}


@dataclass(frozen=True)
class Beginning:
    """What a rank tells its manager at first.

    Args:
        store: one that all ranks see, with a prefix of the run.
        size, rank: the number of ranks, and that of this one.
        patience: seconds that MPI waits in a barrier; None: for ever.
        ends_rank: end the rank when another one has failed.
    """

    store: Store
    size: int
    rank: int
    patience: float | None
    ends_rank: bool = True


def announce(given: Beginning) -> None:
    """Put into the store what the ranks need of this one before MPI starts."""
    given.store.set(f"host/{given.rank}", _host().encode())
    if given.rank == 0:
        given.store.set(_JOB, secrets.token_hex(8).encode())


def host_mapping(hosts: Sequence[str]) -> str:
    """Return which ranks share a host, as MPI asks for it: runs of (first host, hosts, ranks on each).

    Args:
        hosts: the name of the host of each rank.

    >>> host_mapping(["a", "a", "b", "a"])
    '(vector,(0,1,2),(1,1,1),(0,1,1))'
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    runs = [(numbers[host], len(list(ranks))) for host, ranks in groupby(hosts)]
    return f"(vector,{','.join(f'({number},1,{count})' for number, count in runs)})"


def _host() -> str:
    """Return a name that processes have in common which can share memory: of one system, and one folder for it."""
    if given := os.environ.get(HOST):
        return given
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(os.stat("/dev/shm").st_dev))
    return "/".join(parts)


class PmiServer:
    """Answers the lines of one rank.

    Args:
        beginning: its place, and the store.
        fail: is given the reason when the rank aborts or waits for others too long, or the store does not answer.

    Attributes:
        finalized: MPI has ended in the rank.
    """

    def __init__(self, beginning: Beginning, fail: Callable[[str], None]) -> None:
        self._given, self._fail = beginning, fail
        self._barriers = 0
        self.finalized = False

    def answer(self, line: str) -> str:
        """Return the answer to a line, without its end; "" for none."""
        fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
        command, store = fields.get("cmd", ""), self._given.store
        if command == "put":
            store.set(f"kv/{fields['key']}", fields["value"].encode())
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            value = self._mapping() if fields["key"] == _MAPPING else store.peek(f"kv/{fields['key']}")
            if value is None:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={value.decode()}"
        if command == "barrier_in":
            return "cmd=barrier_out rc=0" if self._wait() else "cmd=barrier_out rc=-1"
        if command == "get_my_kvsname":  # MPI names its shared memory after it, and a run that is killed leaves that
            return f"cmd=my_kvsname kvsname=netbuilder-{store.get(_JOB).decode()} rc=0"
        if command == "get_universe_size":
            return f"cmd=universe_size size={self._given.size} rc=0"
        if command == "abort":
            self._fail(f"it has called MPI's Abort with status {fields.get('exitcode', '?')}")
            return ""
        self.finalized = self.finalized or command == "finalize"
        return _ANSWERS.get(command, f"cmd={command}_result rc=-1 msg=unknown_command")

    def serve(self, connection: socket.socket) -> None:
        """Answer until MPI, or the rank, has closed its connection, or the store fails; MPI then ends the rank."""
        with connection, connection.makefile("rw", newline="\n") as lines, suppress(BrokenPipeError):
            for line in lines:
                try:
                    reply = self.answer(line)
                except DistributedError as error:
                    self._fail(f"MPI cannot start without the store: {error}")
                    return
                if reply:
                    lines.write(reply + "\n")
                    lines.flush()

    @property
    def _patience(self) -> float:
        return _NO_LIMIT if self._given.patience is None else self._given.patience

    def _mapping(self) -> bytes:
        """Return which ranks share a host, and so memory; the first that asks finds it for all."""
        store = self._given.store
        if store.add("mapping_asked") == 1:
            hosts = [store.get(f"host/{rank}", self._patience).decode() for rank in range(self._given.size)]
            store.set("mapping", host_mapping(hosts).encode())
        return store.get("mapping", self._patience)

    def _wait(self) -> bool:
        """Wait until all ranks have come to the same barrier; return whether they have."""
        self._barriers += 1
        given = self._given
        meeting = Meeting(given.store.with_prefix(f"barrier/{self._barriers}"), given.size, given.rank)
        meeting.enter()
        if meeting.wait(self._patience) is not None:
            return True
        missing = ", ".join(map(str, meeting.missing()))
        self._fail(f"rank {missing} has not started MPI within {given.patience:g} s of this one")
        return False
