"""NetPool: a created net that several threads run at the same time, each on inputs and results of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator

from netbuilder.data.forking import new_lock, renew_after_fork
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import PROTO_CUDA, NetDef, NetError, OperatorDef
from netbuilder.proto.cores import core_count
from netbuilder.runtime import Workspace

__all__ = ["NetPool", "Seat", "check_threads"]


class Seat:
    """A workspace with the net, and the thread that runs it there; 0: none."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.lock = new_lock()
        self.thread = 0


class NetPool:
    """Workspaces with the same net, one for each thread that runs it at the same time; they share its parameters.

    The first is the given one: a thread that runs the net alone uses no other. Another is made when a thread finds all
    of them in use, up to the limit; then threads wait. A net whose runs depend on each
    other (it changes what it keeps, draws random numbers, or has effects besides its outputs), or that is on a GPU, has
    one workspace only, so that its runs take turns.

    Args:
        workspace: has the parameters and the net.
        net: as it was created there.
        create: creates the net in a workspace.
        parameters: blobs that runs only read; all workspaces have the same.
        threads: how many threads at most run at the same time; None: as many as there are cores.

    Raises:
        NetError: ``threads`` is more than 1, and the runs have to take turns.
    """

    def __init__(
        self,
        workspace: Workspace,
        net: NetDef,
        create: Callable[[Workspace], object],
        parameters: Collection[str],
        threads: int | None,
    ) -> None:
        self._net, self._create, self._parameters = net, create, parameters
        why = _why_in_turn(net, workspace, parameters)
        if why and threads is not None and threads > 1:
            raise NetError(f"net {net.name!r} {why}, so its runs must take turns; give threads=1, or omit it")
        self.limit = 1 if why else threads or core_count()
        self._seats = [Seat(workspace)]
        self._making = self._waiting = self._waiting_for_first = 0
        self._changed = threading.Condition()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the threads that waited: they do not exist in a forked process."""
        self._changed = threading.Condition()
        self._making = self._waiting = self._waiting_for_first = 0

    def take(self, *, first: bool = False) -> Seat:
        """Return a seat that no other thread has until ``give_back``; ``first``: that of the given workspace."""
        seat = self._free(first) if not self._waiting else None
        return self._wait(first) if seat is None else seat

    def give_back(self, seat: Seat) -> None:
        """End the use of a seat."""
        seat.thread = 0
        seat.lock.release()
        if self._waiting:
            with self._changed:
                self._notify()

    def _notify(self) -> None:
        """Wake a thread that waits for any seat, or all if one waits for the first seat."""
        self._changed.notify(self._waiting if self._waiting_for_first else 1)

    def _free(self, first: bool) -> Seat | None:
        for seat in self._seats:
            if seat.lock.acquire(False):
                seat.thread = threading.get_ident()
                return seat
            if first:
                break
        return None

    def _wait(self, first: bool) -> Seat:
        """Wait for a seat, or make another one."""
        if any(seat.thread == threading.get_ident() for seat in self._seats):
            raise NetError(f"net {self._net.name!r}: an operator of it runs the same predictor again")
        with self._changed:
            self._waiting += 1
            self._waiting_for_first += first
            try:
                while (seat := self._free(first)) is None:
                    if not first and len(self._seats) + self._making < self.limit:
                        break
                    self._changed.wait()
            finally:
                self._waiting -= 1
                self._waiting_for_first -= first
            if seat is not None:
                return seat
            self._making += 1
        return self._made()

    def _made(self) -> Seat:
        """Return a new seat, in use by this thread."""
        try:
            seat = Seat(self._copy())
            seat.lock.acquire()
            seat.thread = threading.get_ident()
            self._seats.append(seat)
            return seat
        finally:
            with self._changed:
                self._making -= 1
                self._notify()

    def _copy(self) -> Workspace:
        """Return a workspace with the net and the same parameters."""
        first = self._seats[0].workspace
        copy = Workspace(engines=first.engines, threads=first.threads, seed=first.seed, without=first.without)
        copy.root_folder = first.root_folder
        with self._changed:
            copy.share_blobs(first, self._parameters)
        self._create(copy)
        return copy


def check_threads(threads: int | None, what: str) -> None:
    """Check the option ``threads`` of a predictor.

    Raises:
        NetError: it is not None or a whole number, 1 or more.
    """
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise NetError(f"{what}: threads must be a whole number, 1 or more, or None, got {threads!r}")


def _why_in_turn(net: NetDef, workspace: Workspace, parameters: Collection[str]) -> str:
    """Return why two runs of a net cannot be at the same time; "" if they can."""
    for name in parameters:
        blob = workspace.find(name)
        if blob is not None and blob.spec is None and blob.buffer is not None:
            return f"reads blob {name!r}, an object of type {type(blob.buffer).__name__}, which runs change"
    for op in _all_operators(net):
        device = op.device_option if op.HasField("device_option") else net.device_option
        if device.device_type == PROTO_CUDA:
            return f"runs on GPU {device.device_id}"
        if written := [name for name in op.output if name in parameters]:
            return f"keeps {written[0]!r} from run to run ({op.type} writes it)"
        if is_registered(op.type):
            cls = find(op.type)
            if cls.draws:
                return f"draws random numbers ({op.type})"
            if cls.stateful and not any(True for _ in subgraphs(op)):  # others are judged by the operators they hold
                return f"does more than compute its outputs ({op.type})"
    return ""


def _all_operators(net: NetDef) -> Iterator[OperatorDef]:
    for op in net.op:
        yield op
        for subgraph in subgraphs(op) if op.arg else ():
            yield from _all_operators(subgraph)
