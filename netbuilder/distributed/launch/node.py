"""What the launcher of one host does: starting its processes, watching them, and ending all of them when one fails."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netbuilder.distributed.launch.installed_mpi import InstalledMpi
from netbuilder.distributed.launch.job import Job
from netbuilder.distributed.launch.relay import Relay
from netbuilder.distributed.stores import Store
from netbuilder.distributed.stores.heartbeat import Heartbeat, Heartbeats
from netbuilder.distributed.transport import launchers
from netbuilder.proto.errors import DistributedError, StoreTimeoutError, counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NODES", "SIGN", "SILENCE", "Node", "Part", "kill", "say", "status_of"]

NODES = "nodes"
"""Prefix of the launchers' heartbeats in the store."""
_AFTER_FAILURE = 3.0  # seconds that the other ranks have to end after one has failed
_AFTER_GRACE = 3.0  # seconds after which processes that should have been killed are killed from here
_PAUSE = 0.05  # seconds between two looks at processes
SIGN, SILENCE = 1.0, 10.0
"""Seconds between two heartbeats of a launcher, and without one until it counts as lost."""
_READING = 10.0  # seconds in which the other nodes read how the job has ended
_AFTER_ALL = 10.0  # seconds that mpiexec has to end after all of its processes
_LAST_WORDS = 20.0  # seconds that a node may take to say how it has ended


@dataclass(frozen=True)
class Part:
    """The processes of one host: the rank of the first, and how many there are."""

    first: int
    count: int


class Node:
    """What the launcher of one node does.

    Args:
        mpi: its mpiexec starts the processes; None: they are started from here.

    Attributes:
        number: of this host.
        parts: the processes of each host, by its number.
    """

    after_failure = _AFTER_FAILURE
    harmless: Sequence[int] = (0,)
    """Exit statuses of processes that have not failed."""

    def __init__(
        self,
        job: Job,
        mpi: InstalledMpi | None,
        store: Store,
        signals: list[int],
        environment: dict[str, str],
        relay: Relay,
    ) -> None:
        self.relay = relay
        self.job, self.mpi, self.store, self.signals, self.environment = job, mpi, store, signals, environment
        self.first, self.number = job.is_first, job.node_rank
        self.parts = {rank: Part(rank * job.processes, job.processes) for rank in range(job.nodes)}
        if job.run_id is None and self.first:
            store.set("run_id", secrets.token_hex(6).encode())
        self.lost: list[int] = []  # nodes that send no heartbeats any more
        self._listen_at = 0.0
        self._life = Heartbeats(store.with_prefix(NODES), job.nodes)
        self._stop_sent: int | None = None
        self.kept_open: Sequence[int] = ()  # descriptors that the processes have, too

    @property
    def size(self) -> int:
        """Number of processes on all hosts."""
        return sum(part.count for part in self.parts.values())

    def _host(self, number: int) -> str:
        return self.job.hosts[number]

    def run(self) -> int:
        """Run the job, and again after a failure; return its status."""
        with Heartbeat(self.store.with_prefix(NODES), self.number, interval=SIGN):
            self.meet()
            attempt = 0
            while (status := self.attempt(attempt)) and attempt < self.job.restarts and not (self.signals or self.lost):
                attempt += 1
                if self.first:
                    say(f"starting the job again, {attempt} of {counted(self.job.restarts, 'restart')}")
            return status

    def meet(self) -> None:
        """Wait for the launchers of the other nodes."""
        self.store.set(f"node/{self.job.node_rank}", socket.gethostname().encode())
        try:
            self.store.wait([f"node/{rank}" for rank in range(self.job.nodes)], self.job.start_timeout)
        except StoreTimeoutError:
            missing = [
                f"{rank} ({host})"
                for rank, host in enumerate(self.job.hosts)
                if self.store.peek(f"node/{rank}") is None
            ]
            raise DistributedError(
                f"nodes {', '.join(missing)} have not started within {self.job.start_timeout:g} s; run the same "
                "command there with their --node-rank"
            ) from None
        self.set_run_id()

    def set_run_id(self) -> None:
        """Let the processes know the id of the run."""
        given = self.job.run_id
        self.environment[launchers.RUN_ID] = given if given is not None else self.store.get("run_id", 10).decode()

    def attempt(self, number: int) -> int:
        """Run the job once; return its status."""
        store = self.store.with_prefix(str(number))
        if self.first:
            store.set("start", b"")
        store.wait(["start"], 60)
        begin = time.monotonic()
        status = self._run(number, store)
        if not self.first:
            return self._outcome(store, status)
        store.set(f"node_ended/{self.job.node_rank}", str(status).encode())
        status = self._judge(store, status, time.monotonic() - begin)
        store.set("outcome", str(status).encode())
        end, unread = time.monotonic() + _READING, [*range(1, self.job.nodes)]
        while time.monotonic() < end and (unread := [each for each in unread if each not in self._lost_nodes()]):
            with contextlib.suppress(StoreTimeoutError):  # they read it before the store goes
                store.wait([f"node_read/{rank}" for rank in unread], SIGN)
                break
        return status

    def _outcome(self, store: Store, status: int) -> int:
        """Tell the first node how this node's part has ended; return the status of the job, as the first node says."""
        try:
            store.set(f"node_ended/{self.job.node_rank}", str(status).encode())
            outcome = int(store.get("outcome", self.job.grace + _LAST_WORDS))
            store.set(f"node_read/{self.job.node_rank}", b"")
            return outcome
        except DistributedError as error:
            if status:
                raise
            say(f"the processes of this node have ended well; how those of the others have is not known: {error}")
            return 0

    def _run(self, number: int, store: Store) -> int:
        """Start the processes of this node for an attempt, and wait for their end; none of them is left."""
        self.environment[launchers.ATTEMPT], self._stop_sent = str(number), None
        command, starts = _rank_command(self.job), [self._place(i) for i in range(self.parts[self.number].count)]
        if self.mpi is not None:
            command, starts = [*self.mpi.command(self.job.processes), *command], [self.mpi.environment()]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes += (self._start(command, more) for more in starts)
            return self._watch(store, processes)
        except DistributedError:  # the store does not answer, and is needed no more if all is done
            if any(process.poll() != 0 for process in processes):
                raise
            return 0
        finally:
            _end(processes)
            self.relay.drain()

    def _place(self, local_rank: int) -> dict[str, str]:
        part = self.parts[self.number]
        return {
            launchers.RANK: str(part.first + local_rank),
            launchers.WORLD_SIZE: str(self.size),
            launchers.LOCAL_RANK: str(local_rank),
            launchers.LOCAL_SIZE: str(part.count),
        }

    def _start(self, command: Sequence[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
        terminal = sys.stdin is None or sys.stdin.closed or sys.stdin.isatty()
        return subprocess.Popen(
            command,
            env=self.environment | more,
            stdin=subprocess.DEVNULL if terminal else None,  # another session may not read from the terminal
            start_new_session=True,  # Ctrl-C comes here, and is passed on from here
            stdout=self.relay.out,
            stderr=self.relay.err,
            pass_fds=self.kept_open,
        )

    def _watch(self, store: Store, processes: list[subprocess.Popen[bytes]]) -> int:
        """Wait for the processes of this node, pass signals on, and end all when one fails; return the first status."""
        failed, kill_at, killed = 0, float("inf"), False
        while None in [process.poll() for process in processes]:
            if self.signals:
                grace = self.job.grace if len(self.signals) == 1 else 0.0
                if self._stop_sent != len(self.signals):
                    self._stop(store, processes, self.signals[0], grace)
                    kill_at = time.monotonic() + grace + _AFTER_GRACE
            failed = failed or self._failure(processes)
            if kill_at == float("inf"):
                if failed or store.peek("failed") is not None or self._lost_nodes():
                    self._stop(store, processes, signal.SIGTERM, self.after_failure)
                    kill_at = time.monotonic() + self.after_failure + _AFTER_GRACE
                elif self._all_ended(store):
                    kill_at = time.monotonic() + _AFTER_ALL
            if time.monotonic() > kill_at:
                kill(processes, signal.SIGKILL if killed else signal.SIGTERM)
                killed, kill_at = True, time.monotonic() + 1
            time.sleep(_PAUSE)
        return failed or self._failure(processes) or next((p.returncode for p in processes if p.returncode), 0)

    def _failure(self, processes: Sequence[subprocess.Popen[bytes]]) -> int:
        """Return the status of a process that has failed; 0 if none has."""
        return next((p.returncode for p in processes if p.returncode not in (None, *self.harmless)), 0)

    def _lost_nodes(self) -> list[int]:
        """Return the nodes that are silent; only the first node listens."""
        if self.first and len(self.parts) > 1 and time.monotonic() > self._listen_at:
            self._listen_at = time.monotonic() + SIGN
            self.lost = self._life.silent(SILENCE)
        return self.lost

    def _all_ended(self, store: Store) -> bool:
        return int(store.peek("ended") or 0) >= self.size

    def _all_ended_well(self, store: Store) -> bool:
        return all(store.peek(f"ended/{rank}") == b"0" for rank in range(self.size))

    def _stop(self, store: Store, processes: Sequence[subprocess.Popen[bytes]], number: int, grace: float) -> None:
        """Let all ranks on all nodes get a signal."""
        self._stop_sent = len(self.signals)
        store.set(launchers.STOPPING, json.dumps({"signal": int(number), "grace": grace}).encode())

    def _judge(self, store: Store, status: int, seconds: float) -> int:
        """Return the status of the job, when this node's part has ended with ``status``; say what has failed."""
        for rank in [each for each in self.parts if each != self.number]:
            status = self._end_of(rank, store, status) or status
        found = store.peek("failed")
        if found is not None:
            failure = json.loads(found)
            say(f"rank {failure['rank']} on {failure['host']} {_ended(failure['status'])}; all processes were ended")
            return status_of(failure["status"])
        if status in self.harmless:
            return status
        if self.signals:
            say(f"all processes have ended after {signal.Signals(self.signals[0]).name}")
            return 128 + self.signals[0]
        if not self.lost and self._all_ended_well(store):
            say(f"mpiexec has failed, with status {status_of(status)}, after all processes had ended well")
            return 0
        say(f"mpiexec or a node has failed, with status {status_of(status)} after {seconds:.1f} s")
        return status_of(status)

    def _end_of(self, rank: int, store: Store, status: int) -> int:
        """Return with which status a node's part has ended, as soon as the node says so; 1 if it does not."""
        host, begin = self._host(rank), time.monotonic()
        while rank not in self._lost_nodes():
            with contextlib.suppress(StoreTimeoutError):
                return int(store.get(f"node_ended/{rank}", SIGN))
            if (status or self.signals) and time.monotonic() > begin + _AFTER_FAILURE + _LAST_WORDS:
                say(f"node {rank} ({host}) does not say how it has ended")
                return 1
        self._say_lost(rank)
        return 1

    def _say_lost(self, number: int) -> None:
        say(
            f"node {number} ({self._host(number)}) has sent no heartbeat for {SILENCE:g} s: its launcher was killed, "
            "or the node or its network has failed; all processes are ended"
        )


def _rank_command(job: Job) -> list[str]:
    options: dict[str, Any] = {
        "prefix": list(job.prefix),
        "only_first": job.only_first,
        "grace": job.grace,
        "threads": job.threads,
        "gpus": job.gpus,
        "pin": job.pin,
    }
    script = str(Path(__file__).with_name("rank_process.py"))
    return [sys.executable, script, json.dumps(options), *job.command]


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes that still run, and wait for them."""
    end = time.monotonic() + _AFTER_FAILURE
    kill(processes, signal.SIGTERM)
    while None in [process.poll() for process in processes] and time.monotonic() < end:
        time.sleep(_PAUSE)
    kill(processes, signal.SIGKILL)
    for process in processes:
        process.wait()


def kill(processes: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """Send a signal to processes that run, and to those that they have started."""
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def status_of(status: int) -> int:
    """Return the exit status of a process that a signal may have ended."""
    return status if status >= 0 else 128 - status


def _ended(status: int) -> str:
    number = -status if status < 0 else status - 128 if status > 128 else 0
    try:
        name = signal.Signals(number).name if number else ""
    except ValueError:
        name = ""
    if not name:
        return f"ended with status {status}"
    hint = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"


def say(text: str) -> None:
    """Print a line of the launcher's own."""
    print(f"netbuilder-launch: {text}", file=sys.stderr, flush=True)
