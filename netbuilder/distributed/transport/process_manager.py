"""The process manager of one rank: a program that answers MPI from a store, and ends a rank whose job has failed.

MPI needs a process manager so that ranks can tell one another their addresses, by a few lines of text (PMI-1, the
protocol of MPICH and its relatives). A rank that no manager has started starts this program, see ``start_over_store``.
It is a process, as MPI's start lets no thread of Python run, and as it sees the end of its rank, however that comes.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from netbuilder.distributed.stores.store import Store

__all__ = ["ENDED", "HOST", "JOB", "LEAVES", "PLACE", "Beginning", "PmiServer", "announce", "host_mapping"]

ENDED = "ended"
"""Key that is there once a rank has failed, with the reason; ``ended/RANK`` says which one."""
LEAVES = b"leaves\n"
"""What a rank writes to its manager when it needs the others no more: nothing ends it from then on."""
HOST = "NETBUILDER_HOST"
"""Name of the host of a process, where its own does not tell: ranks whose hosts have the same name share memory."""
PLACE = ("PMI_FD", "PMI_RANK", "PMI_SIZE")
"""Variables by which MPI finds its process manager, and the place of a process."""

_MAPPING = "PMI_process_mapping"  # key under which MPI asks which ranks share a host
JOB = "job"
"""Key of a text that no other job has; rank 0 sets it."""

_LOOK, _PAUSE = 0.4, 0.005  # seconds between two looks at the store: for failures, and in a barrier
_TERMINATING = 3.0  # seconds between SIGTERM and SIGKILL
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
        given.store.set(JOB, secrets.token_hex(8).encode())


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
        fail: is given the reason when the rank aborts, or waits for others too long.
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
        if command == "get_my_kvsname":  # MPI names shared memory by it, which a killed run leaves behind
            return f"cmd=my_kvsname kvsname=netbuilder-{store.get(JOB).decode()} rc=0"
        if command == "get_universe_size":
            return f"cmd=universe_size size={self._given.size} rc=0"
        if command == "abort":
            self._fail(f"it has called MPI's Abort with status {fields.get('exitcode', '?')}")
            return ""
        self.finalized = self.finalized or command == "finalize"
        return _ANSWERS.get(command, f"cmd={command}_result rc=-1 msg=unknown_command")

    def serve(self, connection: socket.socket) -> None:
        """Answer until MPI, or the rank, has closed its connection."""
        with connection, connection.makefile("rw", newline="\n") as lines:
            for line in lines:
                if reply := self.answer(line):
                    lines.write(reply + "\n")
                    lines.flush()

    def _mapping(self) -> bytes:
        """Return which ranks share a host, and so memory."""
        patience = 1e9 if self._given.patience is None else self._given.patience
        hosts = [self._given.store.get(f"host/{rank}", patience).decode() for rank in range(self._given.size)]
        return host_mapping(hosts).encode()

    def _wait(self) -> bool:
        """Wait until all ranks have come to the same barrier; return whether they have."""
        store, size = self._given.store, self._given.size
        self._barriers += 1
        store.set(f"at/{self._given.rank}", b"%d" % self._barriers)
        key, begin = f"barrier/{self._barriers}", time.monotonic()
        come = store.add(key)
        while come < size:
            if self._given.patience is not None and time.monotonic() - begin > self._given.patience:
                at = [int(store.peek(f"at/{rank}") or 0) for rank in range(size)]
                missing = [str(rank) for rank, number in enumerate(at) if number < self._barriers]
                self._fail(
                    f"rank {', '.join(missing)} has not started MPI within {self._given.patience:g} s of this one"
                )
                return False
            time.sleep(_PAUSE)
            come = int(store.peek(key) or 0)
        return True


class _Manager:
    """Looks after one rank, which is the parent of this process."""

    def __init__(self, beginning: Beginning, told: IO[bytes]) -> None:
        self._given, self._told, self._process = beginning, told, os.getppid()
        self._server = PmiServer(beginning, self._report)
        self._leaves = False

    def run(self, connection: socket.socket) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        self._server.serve(connection)
        self._ended()

    def _listen(self) -> None:
        """Wait for what the rank says by the pipe; its end is the end of the rank, or of all that hold the pipe."""
        self._leaves = self._told.readline() == LEAVES

    def _watch(self) -> None:
        """End the rank once another one has failed; end with the rank."""
        while not self._is_over():
            if self._given.ends_rank and (problem := self._problem()) and not (self._done() or self._is_over()):
                self._end_rank(problem)
            time.sleep(_LOOK)
        self._ended()

    def _problem(self) -> str:
        from netbuilder.proto.errors import DistributedError

        try:
            reason = self._given.store.peek(ENDED)
        except DistributedError as error:
            time.sleep(1.0)  # the rank that serves it may have ended as this one ends
            return f"the rank that serves the store has ended, or its host is gone ({error})"
        return "" if reason is None else reason.decode()

    def _done(self) -> bool:
        return self._leaves or self._server.finalized

    def _is_over(self) -> bool:
        return os.getppid() != self._process

    def _report(self, reason: str) -> None:
        """Tell the other ranks' managers that this rank has failed; the first reason holds."""
        store = self._given.store
        if store.add("failures") == 1:
            where = f"rank {self._given.rank} of {self._given.size} ({socket.gethostname()}, process {self._process})"
            store.set(ENDED, f"{where}: {reason}".encode())
        store.set(f"{ENDED}/{self._given.rank}", b"1")

    def _ended(self) -> None:
        """End this process; the rank has ended, or closed its connection, as it does where MPI starts no more."""
        while not self._is_over():
            time.sleep(_LOOK)
        from netbuilder.proto.errors import DistributedError

        try:
            if not self._done():
                self._report("it has ended before the end of its exchanges with the others")
        except DistributedError:
            pass  # the store has ended, which the others see, too
        os._exit(0)

    def _end_rank(self, reason: str) -> None:
        print(f"rank {self._given.rank}: the job ends; {reason}", file=sys.stderr, flush=True)
        end = time.monotonic() + _TERMINATING
        os.kill(self._process, signal.SIGTERM)
        while not self._is_over():
            if time.monotonic() > end:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.05)
        os._exit(0)


def main() -> None:
    """Look after the parent of this process, which writes the module path and a ``Beginning`` to standard input."""
    told = sys.stdin.buffer
    sys.path[:] = json.loads(told.readline())
    _Manager(pickle.load(told), told).run(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    # What is pickled names this module, and not the program that Python calls ``__main__``.
    sys.modules["netbuilder.distributed.transport.process_manager"] = sys.modules["__main__"]
    main()
