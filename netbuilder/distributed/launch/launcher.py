"""Starting the processes of a job on one node or several, and ending all of them when one fails."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from netbuilder.distributed.launch.installed_mpi import InstalledMpi, installed_mpi
from netbuilder.distributed.launch.relay import Relay, relayed
from netbuilder.distributed.stores import Store, TcpStore, TcpStoreServer
from netbuilder.distributed.stores.heartbeat import Heartbeat, Heartbeats
from netbuilder.distributed.stores.secret import SECRET, check_secret
from netbuilder.distributed.transport import launchers, time_limits
from netbuilder.proto.cores import core_count
from netbuilder.proto.errors import DeviceError, DistributedError, NetError, StoreTimeoutError, counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Job", "Node", "launch", "warn_if_cores_are_few"]

_PORT = 29400
_MOST_ON_CORE = 64  # processes; more are a slip, and block the machine before they could be stopped
_MOST_THREADS, _MOST_GPUS = 1 << 12, 1 << 10  # of a process
_NODES = "nodes"
_AFTER_FAILURE = 3.0  # seconds that the other ranks have to end after one has failed
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAME = 0.5  # seconds in which a second signal is the same request
_AFTER_GRACE = 3.0  # seconds after which processes that should have been killed are killed from here
_PAUSE = 0.05  # seconds between two looks at processes
_SIGN, _SILENCE = 1.0, 10.0  # seconds between two heartbeats of a node, and without one until it counts as lost
_READING = 10.0  # seconds in which the other nodes read how the job has ended
_AFTER_ALL = 10.0  # seconds that mpiexec has to end after all of its processes
_LAST_WORDS = 20.0  # seconds that a node may take to say how it has ended


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
        if self.nodes > 1 and not self.secret:
            raise NetError(
                f"launch: {self.nodes} hosts need a secret, the same on all of them, by which they know one another; "
                "write one into a file that only you can read"
            )
        if self.secret is not None:
            check_secret(self.secret, "launch: secret")
        if self.engine not in (None, "MPI", "NCCL"):
            raise NetError(f"launch: engine must be 'MPI' or 'NCCL', got {self.engine!r}")
        if self.pin and self.processes > cores:
            raise NetError(
                f"launch: {self.processes} processes cannot have cores of their own on {counted(cores, 'core')}; start "
                "fewer, or do not pin them"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return max(1, len(self.hosts))

    @property
    def size(self) -> int:
        """Number of processes on all nodes."""
        return self.nodes * self.processes


def launch(job: Job) -> int:
    """Run a job to its end, and return its exit status: 0, or that of the first process that failed.

    A process that fails ends the job: the others get SIGTERM and a few seconds. SIGINT, SIGTERM and SIGHUP are passed
    on to all processes on all nodes, which have ``job.grace`` seconds. It must be called from the main thread.

    Raises:
        DeviceError: the engine's library is missing.
        DistributedError: the other nodes do not answer.
    """
    mpi = _mpi(job)
    if job.node_rank == 0:
        warn_if_cores_are_few(job, mpi)
    by_mpiexec = mpi if mpi is not None and not mpi.starts_over_store else None
    with _store(job) as (address, secret, store), _signals() as signals, relayed() as relay:
        variables = {
            launchers.STORE: address,
            SECRET: os.fsdecode(secret),
            launchers.ENGINE: "MPI" if mpi else "NCCL",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if job.collective_timeout is not None:
            variables[time_limits.VARIABLE] = repr(job.collective_timeout)
        node = Node(job, by_mpiexec, store, signals, _inherited() | variables, relay)
        with Heartbeat(store.with_prefix(_NODES), job.node_rank, interval=_SIGN):
            node.meet()
            attempt = 0
            while (status := node.attempt(attempt)) and attempt < job.restarts and not (signals or node.lost):
                attempt += 1
                if job.node_rank == 0:
                    _say(f"starting the job again, {attempt} of {counted(job.restarts, 'restart')}")
            return status


class Node:
    """What the launcher of one node does.

    Args:
        mpi: its mpiexec starts the processes; None: they are started from here.
    """

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
        self.first = job.node_rank == 0
        if job.run_id is None and self.first:
            store.set("run_id", secrets.token_hex(6).encode())
        self.lost: list[int] = []  # nodes that send no heartbeats any more
        self._listen_at = 0.0
        self._life = Heartbeats(store.with_prefix(_NODES), job.nodes)
        self._stop_sent: int | None = None

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
        given = self.job.run_id
        self.environment[launchers.RUN_ID] = given if given is not None else self.store.get("run_id", 10).decode()

    def attempt(self, number: int) -> int:
        """Run the job once; return its status."""
        self.environment[launchers.ATTEMPT] = str(number)
        store = self.store.with_prefix(str(number))
        if self.first:
            self.store.delete(launchers.STOPPING)
            store.set("start", b"")
        store.wait(["start"], 60)
        self._stop_sent = None
        begin = time.monotonic()
        status = self._run(store)
        self.relay.drain()
        if not self.first:
            return self._outcome(store, status)
        store.set(f"node_ended/{self.job.node_rank}", str(status).encode())
        status = self._judge(store, status, time.monotonic() - begin)
        store.set("outcome", str(status).encode())
        end, unread = time.monotonic() + _READING, range(1, self.job.nodes)
        while time.monotonic() < end and (unread := [each for each in unread if each not in self._lost_nodes()]):
            with contextlib.suppress(StoreTimeoutError):  # they read it before the store goes
                store.wait([f"node_read/{rank}" for rank in unread], _SIGN)
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
            _say(f"the processes of this node have ended well; how those of the others have is not known: {error}")
            return 0

    def _run(self, store: Store) -> int:
        """Start the processes of this node, and wait for their end; none of them is left."""
        command, starts = _rank_command(self.job), [self._place(i) for i in range(self.job.processes)]
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

    def _place(self, local_rank: int) -> dict[str, str]:
        job = self.job
        return {
            launchers.RANK: str(job.node_rank * job.processes + local_rank),
            launchers.WORLD_SIZE: str(job.size),
            launchers.LOCAL_RANK: str(local_rank),
            launchers.LOCAL_SIZE: str(job.processes),
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
        )

    def _watch(self, store: Store, processes: list[subprocess.Popen[bytes]]) -> int:
        """Wait for the processes of this node, pass signals on, and end all when one fails; return the first status."""
        failed, kill_at, killed = 0, float("inf"), False
        while None in [process.poll() for process in processes]:
            if self.signals:
                grace = self.job.grace if len(self.signals) == 1 else 0.0
                if self._stop_sent != len(self.signals):
                    self._stop(self.signals[0], grace)
                    kill_at = time.monotonic() + grace + _AFTER_GRACE
            failed = failed or next((p.returncode for p in processes if p.returncode), 0)
            if kill_at == float("inf"):
                if failed or store.peek("failed") is not None or self._lost_nodes():
                    self._stop(signal.SIGTERM, _AFTER_FAILURE)
                    kill_at = time.monotonic() + _AFTER_FAILURE + _AFTER_GRACE
                elif self._all_ended(store):
                    kill_at = time.monotonic() + _AFTER_ALL
            if time.monotonic() > kill_at:
                _kill(processes, signal.SIGKILL if killed else signal.SIGTERM)
                killed, kill_at = True, time.monotonic() + 1
            time.sleep(_PAUSE)
        return failed or next((p.returncode for p in processes if p.returncode), 0)

    def _lost_nodes(self) -> list[int]:
        """Return the nodes that are silent; only the first node listens."""
        if self.first and self.job.nodes > 1 and time.monotonic() > self._listen_at:
            self._listen_at = time.monotonic() + _SIGN
            self.lost = self._life.silent(_SILENCE)
        return self.lost

    def _all_ended(self, store: Store) -> bool:
        return int(store.peek("ended") or 0) >= self.job.size

    def _all_ended_well(self, store: Store) -> bool:
        return all(store.peek(f"ended/{rank}") == b"0" for rank in range(self.job.size))

    def _stop(self, number: int, grace: float) -> None:
        """Let all ranks on all nodes get a signal."""
        self._stop_sent = len(self.signals)
        self.store.set(launchers.STOPPING, json.dumps({"signal": int(number), "grace": grace}).encode())

    def _judge(self, store: Store, status: int, seconds: float) -> int:
        """Return the status of the job, when this node's part has ended with ``status``; say what has failed."""
        for rank in range(1, self.job.nodes):
            status = self._end_of(rank, store, status) or status
        found = store.peek("failed")
        if found is not None:
            failure = json.loads(found)
            _say(f"rank {failure['rank']} on {failure['host']} {_ended(failure['status'])}; all processes were ended")
            return _status(failure["status"])
        if status and self.signals:
            _say(f"all processes have ended after {signal.Signals(self.signals[0]).name}")
            return 128 + self.signals[0]
        if status and not self.lost and self._all_ended_well(store):
            _say(f"mpiexec has failed, with status {_status(status)}, after all processes had ended well")
            return 0
        if status:
            _say(f"mpiexec or a node has failed, with status {_status(status)} after {seconds:.1f} s")
        return _status(status)

    def _end_of(self, rank: int, store: Store, status: int) -> int:
        """Return with which status a node's part has ended, as soon as the node says so; 1 if it does not."""
        host, begin = self.job.hosts[rank], time.monotonic()
        while rank not in self._lost_nodes():
            with contextlib.suppress(StoreTimeoutError):
                return int(store.get(f"node_ended/{rank}", _SIGN))
            if (status or self.signals) and time.monotonic() > begin + _AFTER_FAILURE + _LAST_WORDS:
                _say(f"node {rank} ({host}) does not say how it has ended")
                return 1
        _say(
            f"node {rank} ({host}) has sent no heartbeat for {_SILENCE:g} s: its launcher was killed, or the node "
            "or its network has failed; all processes are ended"
        )
        return 1


def _mpi(job: Job) -> InstalledMpi | None:
    """Return the MPI that the job uses; None: none.

    Raises:
        DeviceError: it is missing, or cannot do this.
    """
    if job.engine == "NCCL":
        return None
    try:
        found = installed_mpi()
    except DeviceError as error:
        if job.engine == "MPI":
            raise
        _say(
            f"{error}. The processes are started without MPI: they can exchange values by NCCL on GPUs, and nets on "
            "CPUs cannot"
        )
        return None
    if job.nodes > 1 and not found.starts_over_store:
        raise DeviceError(
            f"launch: several nodes need MPICH, and mpi4py loads {found.name}; pip install mpich in its place, or "
            "start the program with that MPI's own mpiexec and a list of hosts, or with srun"
        )
    return found


def warn_if_cores_are_few(job: Job, mpi: InstalledMpi | None) -> None:
    """Say so on standard error where a job has more processes than this machine has cores."""
    cores = core_count()
    if job.processes > cores:
        slower = "; MPICH keeps a core busy while it waits, so exchanges become many times slower" if mpi else ""
        _say(
            f"{counted(job.processes, 'process', 'processes')} on {counted(cores, 'core')}: they take turns{slower}. "
            f"At most {cores} should run here"
        )
    if mpi is not None and mpi.note:
        _say(mpi.note)


@contextlib.contextmanager
def _store(job: Job) -> Iterator[tuple[str, bytes, Store]]:
    """Serve the store, or connect to that of the first node; yield its address, its secret, and a client."""
    single = job.nodes == 1
    secret = job.secret or secrets.token_hex(32).encode()
    server = None
    if job.node_rank == 0:
        server = TcpStoreServer("127.0.0.1" if single else "", 0 if single else job.port, secret=secret)
    host, port = ("127.0.0.1" if single else job.hosts[0]), (server.port if server is not None else job.port)
    store: Store | None = None
    try:
        store = TcpStore("127.0.0.1" if server else host, port, secret=secret, connect_timeout=job.start_timeout)
        yield f"{host}:{port}", secret, store
    finally:
        if store is not None:
            store.close()
        if server is not None:
            server.close()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that end a job in place of ending this process; yield the list that they come into.

    A closed terminal sends SIGHUP more than once, and ``nohup`` has it ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        raise NetError("launch must be called from the main thread, which gets the signals; start it as a process")
    came: list[int] = []
    last = 0.0

    def note(number: int, frame: object) -> None:
        nonlocal last
        now = time.monotonic()
        if not came or number != signal.SIGHUP and now - last > _SAME:
            came.append(number)
            last = now

    numbers = [
        number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP
    ]
    before = [signal.signal(number, note) for number in numbers]
    try:
        yield came
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def _inherited() -> dict[str, str]:
    """Return the environment without the place of this process in another job."""
    places = launchers.place_variables()
    return {name: value for name, value in os.environ.items() if name not in places}


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
    _kill(processes, signal.SIGTERM)
    while None in [process.poll() for process in processes] and time.monotonic() < end:
        time.sleep(_PAUSE)
    _kill(processes, signal.SIGKILL)
    for process in processes:
        process.wait()


def _kill(processes: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _status(status: int) -> int:
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


def _say(text: str) -> None:
    print(f"netbuilder-launch: {text}", file=sys.stderr, flush=True)
