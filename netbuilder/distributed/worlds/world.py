"""Common worlds: the objects in blobs over which operators exchange values, and the session of the process."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.data.forking import after_fork, new_lock
from netbuilder.distributed.failure.abort import end_job, fails, install
from netbuilder.distributed.failure.roll_call import State
from netbuilder.distributed.failure.watchdog import Watchdog
from netbuilder.distributed.stores.store import Store
from netbuilder.distributed.transport.communicator import Communicator, OneRank
from netbuilder.distributed.transport.lane import FORKED, Lane
from netbuilder.distributed.transport.launchers import ATTEMPT, has_process_manager, job_store, place_in
from netbuilder.distributed.transport.mpi import mpi, mpi_runs, mpi_world
from netbuilder.distributed.transport.mpi_abort import abort_mpi
from netbuilder.distributed.transport.nccl_communicator import NcclCommunicator, connect_by_nccl
from netbuilder.distributed.transport.start import meet
from netbuilder.distributed.transport.start_over_store import leave_manager, started_over_store
from netbuilder.distributed.transport.time_limits import time_limits
from netbuilder.distributed.worlds.promises import Votes
from netbuilder.distributed.worlds.session import Collective, Session
from netbuilder.proto import DeviceError, DistributedError, NetError
from netbuilder.proto.extras import how_to_install

__all__ = ["CommonWorld", "create_world", "report_failure", "share_store", "warn_if_oversubscribed"]

_log = logging.getLogger("netbuilder")
T = TypeVar("T")

Work = Callable[[Communicator, bool], T]
"""What an operator does: is given the communicator, and whether all ranks store the values in the same layouts."""


class CommonWorld(BlobObject):
    """The ranks of a run as operators see them; several worlds of a run keep their messages apart.

    Args:
        name: of the blob, for messages.
        communicator: carries the values.
        session: the agreement of the ranks; None for a single rank.
        timeout: seconds that an operator waits for other ranks at most; None: those of ``time_limits``.

    Attributes:
        at_barrier: what all ranks must agree on at the next Barrier.
        patient: see ``Collective``.
    """

    __slots__ = ("at_barrier", "closed", "communicator", "name", "patient", "session", "timeout")

    def __init__(
        self, name: str, communicator: Communicator, session: Session | None, timeout: float | None = None
    ) -> None:
        self.name, self.communicator, self.session, self.timeout = name, communicator, session, timeout
        self.closed = self.patient = False
        self.at_barrier = ""

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def size(self) -> int:
        return self.communicator.size

    def begin(self, call: Collective, work: Work[T]) -> Callable[[], T]:
        """Begin to exchange values; return a function that waits, and returns the result.

        Raises:
            DistributedError: the world was destroyed or the session is over; or, by the function, the ranks do not
                agree, or one of them has failed.
        """
        self._require_open(call)
        if self.session is None:
            result = work(self.communicator, True)
            return lambda: result
        return self.session.submit(call, lambda same: work(self.communicator, same)).result

    def run(self, call: Collective, work: Work[T]) -> T:
        """Exchange values, and return the result."""
        return self.begin(call, work)()

    def run_between_two(self, call: Collective, work: Callable[[Communicator], T]) -> T:
        """Send to one rank, or receive from one; the others take no part."""
        self._require_open(call)
        if self.session is None:
            return work(self.communicator)
        return self.session.submit_between_two(call, lambda: work(self.communicator)).result()

    def _require_open(self, call: Collective) -> None:
        if self.closed:
            raise DistributedError(f"{call.what}: common world {self.name!r} was destroyed by DestroyCommonWorld")

    def call(
        self,
        what: str,
        blob: str,
        terms: str = "",
        layouts: str = "",
        *,
        nbytes: int = 0,
        located: Callable[[Exception], Exception] | None = None,
        votes: Votes | None = None,
    ) -> Collective:
        """Return the description of a collective over this world."""
        over = f"over {self.name!r}"
        terms = f"{terms}, {over}" if terms else over
        return Collective(what, blob, terms, layouts, self.timeout, nbytes, self.patient, located, votes)

    def clone(self, name: str) -> CommonWorld:
        """Return a world of the same ranks whose messages are apart from those of this one."""
        communicator = self.run(self.call("CloneCommonWorld", name), lambda comm, _: comm.clone())
        return CommonWorld(name, communicator, self.session, self.timeout)

    def close(self) -> None:
        """Free what the engine has for the world; all ranks do it. A second call does nothing."""
        if not self.closed:
            self.run(self.call("DestroyCommonWorld", self.name), lambda comm, _: comm.close())
            self.closed = True


class _Process:
    """The lane and the session of this process, and the worlds by name."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.lane = Lane()
        self.identity = (1, 0)
        self.session: Session | None = None
        self.worlds: dict[str, CommonWorld] = {}
        self.forked = False
        self.store: Store | None = None
        self.connections = 0  # by NCCL so far


_process = _Process()


def create_world(
    name: str,
    size: int,
    rank: int,
    timeout: float | None = None,
    store: Store | None = None,
    gpus: Sequence[int] = (),
) -> CommonWorld:
    """Return the common world of a name; all ranks call it.

    A second call returns the same world, unless it was destroyed or an error has ended the session.

    Args:
        name: of its blob.
        size: the number of ranks; 0: as many as MPI has started, numbered as by MPI.
        rank: the number of this process, from 0.
        timeout: see ``CommonWorld``.
        store: one that all ranks see, with a prefix of the run; None: that of ``share_store``, or of netbuilder-launch.
            Ranks meet in it for NCCL, and for MPI if no process manager has started them.
        gpus: NCCL connects the ranks, with these GPUs of the process; none: MPI does.

    Raises:
        DeviceError: mpi4py or MPI is missing, or NCCL.
        DistributedError: MPI runs another number of processes, or the ranks of the processes are not 0 to size - 1.
    """
    if not gpus and size != 1 and _process.session is None and not _process.forked:
        _start_mpi(size, rank, store)
    if size == 0:
        comm = mpi().COMM_WORLD
        size, rank = _process.lane.submit(lambda: (comm.Get_size(), comm.Get_rank())).result()
    if size == 1:
        return CommonWorld(name, OneRank(), None, timeout)
    with _process.lock:
        session = _session(size, rank, store, gpus)
    world = _process.worlds.get(name)
    if world is None or world.session is not session or world.closed:
        call = Collective("CreateCommonWorld", name, f"{size} ranks", timeout=timeout)
        communicator = session.submit(call, lambda same: _cloned(session.control, gpus)).result()
        communicator.check = session.check
        world = _process.worlds[name] = CommonWorld(name, communicator, session, timeout)
    world.timeout = timeout
    return world


def _cloned(control: Communicator, gpus: Sequence[int]) -> Communicator:
    """Return a communicator of the same ranks that connects the GPUs of a common world."""
    if gpus and isinstance(control, NcclCommunicator):
        control.connect(gpus)
    return control.clone()


def report_failure(values: Iterable[object], error: BaseException) -> None:
    """Make the next collective of the other ranks raise an error, as this one has failed.

    Args:
        values: those of them that are common worlds say which ranks; without one it is those of the process.
        error: the error.
    """
    worlds = [value for value in values if isinstance(value, CommonWorld)]
    for session in {world.session for world in worlds} if worlds else {_process.session}:
        if session is not None:
            session.report_failure(error)


def _session(size: int, rank: int, store: Store | None, gpus: Sequence[int]) -> Session:
    if _process.forked:
        raise DistributedError(FORKED)
    session = _process.session
    if session is not None and session.over is None:
        if _process.identity != (size, rank):
            raise NetError(
                f"CreateCommonWorld: this process is rank {_process.identity[1]} of {_process.identity[0]} in its "
                f"other common worlds, got rank={rank}, size={size}"
            )
        return session
    _process.lane.check()
    shared, answers = _process.store or _store_of_attempt(), True
    if not gpus:
        library = mpi()  # in this thread, mostly the main one, which also finalizes MPI
        install(rank, size, abort_mpi)
        control = _process.lane.submit(lambda: _control(size, rank)).result()
        answers = library.Query_thread() == library.THREAD_MULTIPLE
    else:
        control = _connected(size, rank, gpus, store or shared)
        install(rank, size, control.abort)
    if session is None:
        atexit.register(_close)
    else:
        session.unwatch()
    if rank == 0 and not gpus:
        warn_if_oversubscribed(size)
    session = Session(control, _process.lane)
    if answers:
        session.answer_when_idle()
    session.watch(shared)
    _process.identity, _process.session = (size, rank), session
    return session


def _connected(size: int, rank: int, gpus: Sequence[int], store: Store | None) -> Communicator:
    """Return the communicator of all processes by NCCL."""
    if store is None:
        raise NetError(
            "CreateCommonWorld: engine 'NCCL' needs a store, in which rank 0 puts NCCL's unique id; give kv_handler, "
            "start the processes with netbuilder-launch, or call RunInitNet, which has that of the rendezvous"
        )
    found = store
    _process.connections += 1
    name = f"nccl_{_process.connections}"

    def connect() -> Communicator:
        return connect_by_nccl(found, size, rank, gpus, name)

    connecting = _process.lane.submit(connect)
    with _limited(time_limits().first, f"CreateCommonWorld: rank {rank} of {size}"):
        return connecting.result()


@contextlib.contextmanager
def _limited(first: float | None, who: str) -> Iterator[None]:
    """In the block, let ranks meet and NCCL connect them for at most twice this, in seconds; None: for ever."""
    if first is None:
        yield
        return
    seconds = 2 * first  # half of it to meet
    text = f"{who} has waited {seconds:g} s for NCCL to connect the ranks; run with NCCL_DEBUG=INFO to see why"
    timer = threading.Timer(seconds, _process.lane.give_up, [DistributedError(text)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def share_store(store: Store) -> None:
    """Let the ranks send heartbeats by a store, with a prefix of the run, from the next first common world on."""
    _process.store = store


def _store_of_attempt() -> Store | None:
    """Return the store of netbuilder-launch, with a prefix of this start of the job; None: there is none."""
    store = job_store(os.environ)
    return None if store is None else store.with_prefix(os.environ.get(ATTEMPT, "0"))


def _start_mpi(size: int, rank: int, store: Store | None) -> None:
    """Start MPI with all ranks, if it does not run: by a store where no process manager has started them.

    Raises:
        StoreTimeoutError: some have not come; the message names them. MPI's own start names none.
        DistributedError: one has ended.
    """
    place, job, shared = place_in(os.environ), job_store(os.environ), store or _process.store or _store_of_attempt()
    if size == 0:
        size, rank = place.size, place.rank
    install(rank, size, abort_mpi)  # a process that fails here must not wait for the others at its end
    if job is not None:
        meet(job.with_prefix(os.environ.get(ATTEMPT, "0")), place.size, place.rank)
    if size > 1 and shared is not None and not has_process_manager(os.environ, size) and not mpi_runs():
        _process.store = _process.store or shared
        with started_over_store(shared, size, rank):
            library = mpi()
        if library.COMM_WORLD.Get_size() != size:
            raise DeviceError(
                f"{library.Get_library_version().split(',')[0].strip()} connects only processes that its own mpiexec "
                f"has started (or srun with PMIx); MPICH also those that meet in a store: {how_to_install('mpi')}"
            )


def _control(size: int, rank: int) -> Communicator:
    """Return the communicator of all processes, numbered by the ranks that they give."""
    call, everyone = Collective("CreateCommonWorld"), mpi_world()
    watchdog = Watchdog(everyone, _process.lane, lambda: State(str(call)))
    everyone.check = watchdog.check
    with watchdog.waiting(call, time_limits().first):
        processes = everyone.clone()
        given = processes.allgather(np.array([size, rank], np.int64)).reshape(-1, 2).tolist()
    watchdog.look()  # what ranks have asked that came earlier
    count = len(given)
    if any(each != count for each, _ in given):
        sizes = sorted({each for each, _ in given})
        raise DistributedError(
            f"CreateCommonWorld: size is {' and '.join(map(str, sizes))}, but MPI has started {count} "
            f"process{'es' if count > 1 else ''} together; start as many as size says, by netbuilder-launch or "
            "mpiexec, or give the rendezvous a store in which they meet"
        )
    ranks = [each for _, each in given]
    if sorted(ranks) != list(range(count)):
        raise DistributedError(
            f"CreateCommonWorld: the ranks (shard ids) of {count} processes must be 0 to {count - 1}, each once, got "
            f"{ranks}"
        )
    return processes.split(0, rank)


def warn_if_oversubscribed(size: int) -> None:
    """Warn if this host has fewer cores than ranks: MPI waits by polling, so each exchange takes milliseconds.

    The launcher that has started these ranks says how many of them this host has, not one around it.
    """
    place, cores = place_in(os.environ), os.cpu_count() or 1
    if place.size == size and place.local_size > cores:
        warnings.warn(
            f"{place.local_size} ranks share the {cores} cores of this host, so that they wait for one another in each "
            "exchange; start at most one rank per core",
            RuntimeWarning,
            stacklevel=2,
        )


def _close() -> None:
    """End the session at the end of the program: the other ranks hear that this one exchanges nothing more.

    If the program ends with a failure that they have not been told of, the whole job ends next, without them.
    """
    session = _process.session
    if session is not None and not _process.forked and not (fails() and session.over is None):
        try:
            session.close()
            leave_manager()
        except DistributedError as error:
            _log.warning("at the end of the program of rank %d: %s", session.rank, error)
            if session.lane.interrupted is not None:  # a rank is stopped, and MPI would wait for it
                end_job(1)


@after_fork
def _leave() -> None:
    _process.forked = _process.forked or _process.session is not None
    _process.session = None
    _process.worlds = {}
