"""The communicator over MPI, by mpi4py, which is imported when it is first needed."""

from __future__ import annotations

import faulthandler
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.data.forking import loading
from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.host_sums import LEAST_BYTES, HostSums, host_sums
from netbuilder.distributed.transport.launchers import place_in
from netbuilder.distributed.transport.mpi_abort import abort_over
from netbuilder.distributed.transport.start_watch import watched_start
from netbuilder.distributed.transport.time_limits import time_limits
from netbuilder.proto import DeviceError, DistributedError
from netbuilder.proto.extras import how_to_install

__all__ = ["MpiCommunicator", "mpi", "mpi_runs", "mpi_world", "require_mpi4py"]

Array = np.ndarray[Any, np.dtype[Any]]

_INSTALL = f"{how_to_install('mpi')}, or mpi4py with the MPI of this machine"

_YIELD_SECONDS = 0.02  # all ranks are there and move data
_YIELD_SECONDS_PATIENT = 2e-4  # other ranks may still be computing
_POSTED = (1 << 15) - 1  # tag of messages that are posted; the least upper bound that MPI may set
_AT_ONCE = 16 << 20
"""Bytes that one allreduce of MPI is of: where the ranks are on one host, much larger ones take twice as long for each
byte, since their copies leave the caches, and with smaller ones the ranks wait for each other more often."""
_PAUSE, _LONGEST_PAUSE, _LONGEST_PAUSE_PATIENT = 5e-5, 5e-5, 1e-3
_LONGEST_PAUSE_UNASKED = 2e-4
"""Where either ranks are late or data move: half of the processor time of the first, hardly longer than the second."""
_OF_USUAL, _LATE = 1.5, 1e-3
"""A call is awaited without pauses, in which nothing moves, for this many times the seconds that it takes when all are
there, if they were in the call before: it took no longer, but for so many seconds."""


@functools.cache
def mpi() -> Any:
    """Return the module mpi4py.MPI; MPI is initialized at the first call.

    Raises:
        DeviceError: mpi4py or an MPI library is missing.
        DistributedError: MPI has been initialized without support for threads.
    """
    with loading:
        require_mpi4py()
        try:
            found: Any = _start_mpi_with_all_ranks()
        except (ImportError, RuntimeError) as error:
            raise DeviceError(f"mpi4py finds no MPI library ({error}): {_INSTALL}") from error
    level = found.Query_thread()
    if level < found.THREAD_SERIALIZED:
        raise DistributedError(
            "MPI was initialized for calls from the main thread only; set mpi4py.rc.thread_level = 'serialized' before "
            "mpi4py.MPI is imported, or let netbuilder import it"
        )
    return found


def require_mpi4py() -> None:
    """Raise DeviceError if mpi4py is missing; MPI is not started."""
    try:
        importlib.import_module("mpi4py")
    except ImportError as error:
        raise DeviceError(f"several processes exchange values by MPI, and mpi4py is missing: {_INSTALL}") from error


def _start_mpi_with_all_ranks() -> Any:
    """Import mpi4py.MPI: MPI waits for all processes, and lets no other thread of Python run meanwhile.

    If one of this host has ended, ``watched_start`` ends the job. If others do not come, faulthandler prints where the
    threads are, and ends this process, and so the job.
    """
    if "mpi4py.MPI" in sys.modules:
        return importlib.import_module("mpi4py.MPI")
    if (limit := time_limits().first) is not None:
        faulthandler.dump_traceback_later(limit, exit=True, file=sys.__stderr__ or 2)
    try:
        with watched_start(place_in(os.environ).local_size):
            return importlib.import_module("mpi4py.MPI")
    finally:
        faulthandler.cancel_dump_traceback_later()


def mpi_runs() -> bool:
    """Whether this process has started MPI, or has ended it."""
    found = sys.modules.get("mpi4py.MPI")
    return found is not None and found.Is_initialized()


def mpi_world() -> MpiCommunicator:
    """Return the communicator of all processes that were started together, which the program may use, too."""
    return MpiCommunicator(mpi().COMM_WORLD)


class MpiCommunicator(Communicator):
    """A communicator over an mpi4py communicator, which it owns.

    Calls start a nonblocking operation and ask at intervals whether it is complete. A blocking call would keep a core
    busy until the last rank has arrived; this gives it to other threads meanwhile, and can be interrupted.

    Where all ranks are on one host, they add large arrays by themselves, see ``HostSums``.
    """

    engine = "MPI"

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._comm = comm
        self._in_place = mpi().IN_PLACE
        self._posted: list[Any] = []
        self._punctual = False  # the others were there in the last call before which nobody asked
        self._of_host: HostSums | None = None  # of all communicators of these ranks

    def clone(self) -> Communicator:
        comm, request = self._comm.Idup()  # Dup waits where nothing can end the wait
        self._finish(request, patient=True)
        made = self._with(comm)
        made._of_host = self._of_host
        return made

    def split(self, color: int, key: int) -> Communicator:
        made = self._with(self._comm.Split(color, key))
        made._of_host = host_sums(made) if made.size > 1 else None
        return made

    def _with(self, comm: Any) -> MpiCommunicator:
        made = MpiCommunicator(comm)
        made.check = self.check
        return made

    def close(self) -> None:
        self._comm.Free()

    def post(self, data: bytes, to: int) -> None:
        self._posted = [request for request in self._posted if not request.Test()]
        self._posted.append(self._comm.Isend([data, mpi().BYTE], to, _POSTED))

    def poll(self) -> tuple[int, bytes] | None:
        library = mpi()
        status = library.Status()
        if library.Is_finalized() or not self._comm.Iprobe(library.ANY_SOURCE, _POSTED, status):
            return None
        data = bytearray(status.Get_count(library.BYTE))
        self._comm.Recv([data, library.BYTE], status.Get_source(), _POSTED)
        return status.Get_source(), bytes(data)

    def abort(self, code: int) -> None:
        abort_over(self._comm, code)

    def _finish(self, request: Any, *, patient: bool = False, status: Any = None) -> None:
        unasked, begun = self.unasked, time.perf_counter()
        longest = _LONGEST_PAUSE_PATIENT if patient else _LONGEST_PAUSE if unasked is None else _LONGEST_PAUSE_UNASKED
        until = begun + (_YIELD_SECONDS if not patient and unasked is None else _YIELD_SECONDS_PATIENT)
        if unasked is not None and self._punctual:
            until += _OF_USUAL * unasked
        self._wait(functools.partial(request.Test, status), until, longest)
        if unasked is not None:
            self._punctual = time.perf_counter() < begun + _OF_USUAL * unasked + _LATE

    def _wait(self, is_done: Callable[[], bool], until: float, longest: float) -> None:
        """Wait until ``is_done()``: without pauses ``until`` this time, then with pauses of so many seconds at most."""
        pause = _PAUSE
        while not is_done():
            if time.perf_counter() < until:
                os.sched_yield()
                continue
            self.check()
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _meet(self, is_done: Callable[[], bool], begun: bool) -> None:
        """Wait for ranks of this host: nothing moves by asking more often, so that pauses come soon."""
        longest = _LONGEST_PAUSE if begun or self.unasked is None else _LONGEST_PAUSE_UNASKED
        self._wait(is_done, time.perf_counter() + _YIELD_SECONDS_PATIENT, longest)

    def _host_sums(self, array: Array) -> HostSums | None:
        return self._of_host if array.nbytes >= LEAST_BYTES else None

    def _sum_in_order(self, flat: Array, bfloat16: bool) -> None:
        if (of_host := self._host_sums(flat)) is not None:
            of_host.add(flat, self._meet, bfloat16=bfloat16)
        else:
            super()._sum_in_order(flat, bfloat16)

    def _allreduce(self, array: Array, maximum: bool, patient: bool) -> None:
        if not maximum and (of_host := self._host_sums(array)) is not None:
            of_host.add(array, self._meet)
            return
        op = mpi().MAX if maximum else mpi().SUM
        count = -(-array.nbytes // _AT_ONCE)
        step = -(-array.size // count)
        for start in range(0, array.size, step):
            part = array if count == 1 else array[start : start + step]
            self._finish(self._comm.Iallreduce(self._in_place, part, op), patient=patient)

    def _reduce(self, array: Array, root: int) -> None:
        given = (self._in_place, array) if self.rank == root else (array, None)
        self._finish(self._comm.Ireduce(*given, mpi().SUM, root))

    def _broadcast(self, array: Array, root: int) -> None:
        self._finish(self._comm.Ibcast(array, root))

    def _allgather(self, own: Array, out: Array, counts: Sequence[int]) -> None:
        sizes = [count * own.itemsize for count in counts]
        self._finish(self._comm.Iallgatherv(_bytes(own), [_bytes(out), sizes, None, mpi().BYTE]))

    def _alltoall(self, array: Array, counts: Sequence[int], out: Array, received: Sequence[int]) -> None:
        sent, taken = ([count * array.itemsize for count in each] for each in (counts, received))
        given = [_bytes(array), sent, None, mpi().BYTE]
        self._finish(self._comm.Ialltoallv(given, [_bytes(out), taken, None, mpi().BYTE]))

    def _barrier(self) -> None:
        self._finish(self._comm.Ibarrier(), patient=True)

    def _send(self, array: Array, to: int, tag: int) -> None:
        self._finish(self._comm.Isend(array, to, tag), patient=True)

    def _receive(self, out: Array, source: int | None, tag: int | None) -> tuple[int, int]:
        library = mpi()
        status = library.Status()
        wanted = library.ANY_SOURCE if source is None else source, library.ANY_TAG if tag is None else tag
        self._finish(self._comm.Irecv(out, *wanted), patient=True, status=status)
        return status.Get_source(), status.Get_tag()


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
