"""Starting the processes of a job on one node or several, and ending all of them when one fails."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator

from netbuilder.distributed.launch.elastic_node import ElasticNode
from netbuilder.distributed.launch.installed_mpi import InstalledMpi, installed_mpi
from netbuilder.distributed.launch.job import Job
from netbuilder.distributed.launch.node import Node, say
from netbuilder.distributed.launch.relay import relayed
from netbuilder.distributed.stores import Store, TcpStore, TcpStoreServer
from netbuilder.distributed.stores.secret import SECRET
from netbuilder.distributed.transport import launchers, time_limits
from netbuilder.proto.cores import core_count
from netbuilder.proto.errors import DeviceError, NetError, counted

__all__ = ["Job", "launch", "warn_if_cores_are_few"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAME = 0.5  # seconds in which a second signal is the same request


def launch(job: Job) -> int:
    """Run a job to its end, and return its exit status: 0, or that of the first process that failed.

    A process that fails ends the job: the others get SIGTERM and a few seconds. SIGINT, SIGTERM and SIGHUP are passed
    on to all processes on all nodes, which have ``job.grace`` seconds. It must be called from the main thread. Elastic
    jobs: see ``ElasticNode``.

    Raises:
        DeviceError: the engine's library is missing.
        DistributedError: the other nodes do not answer.
    """
    mpi = _mpi(job)
    if job.is_first:
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
        environment = _inherited() | variables
        make = ElasticNode if job.is_elastic else Node
        return make(job, by_mpiexec, store, signals, environment, relay).run()


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
        say(
            f"{error}. The processes are started without MPI: they can exchange values by NCCL on GPUs, and nets on "
            "CPUs cannot"
        )
        return None
    if (job.nodes > 1 or job.is_elastic) and not found.starts_over_store:
        what = "elastic jobs" if job.is_elastic else "several nodes"
        raise DeviceError(
            f"launch: {what} need MPICH, and mpi4py loads {found.name}; pip install mpich in its place, or start the "
            "program with that MPI's own mpiexec and a list of hosts, or with srun"
        )
    return found


def warn_if_cores_are_few(job: Job, mpi: InstalledMpi | None) -> None:
    """Say so on standard error where a job has more processes than this machine has cores."""
    cores = core_count()
    if job.processes > cores:
        slower = "; MPICH keeps a core busy while it waits, so exchanges become many times slower" if mpi else ""
        say(
            f"{counted(job.processes, 'process', 'processes')} on {counted(cores, 'core')}: they take turns{slower}. "
            f"At most {cores} should run here"
        )
    if mpi is not None and mpi.note:
        say(mpi.note)


@contextlib.contextmanager
def _store(job: Job) -> Iterator[tuple[str, bytes, Store]]:
    """Serve the store, or connect to that of the first node; yield its address, its secret, and a client."""
    single = job.is_local
    secret = job.secret or secrets.token_hex(32).encode()
    server = None
    if job.is_first:
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
