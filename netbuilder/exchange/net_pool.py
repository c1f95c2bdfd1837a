"""NetPool: a created net that several threads run at the same time, each on inputs and results of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection

from netbuilder.data.forking import new_lock, renew_after_fork
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import all_operators, subgraphs
from netbuilder.proto import PROTO_CUDA, NetDef, NetError, OperatorDef
from netbuilder.proto.cores import core_count
from netbuilder.runtime import Workspace

__all__ = ["NetPool", "Seat", "check_threads"]


class Seat:
    """A workspace with the net, and the thread that runs it there; 0: none.

    ``preprocessing`` is the operator that precedes the net in the second one that ``Predictor.run_pixels`` runs; None:
    there is no such net.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.preprocessing: OperatorDef | None = None
        self.lock = new_lock()
        self.thread = 0


class _Waiter:
    """A thread that waits for a seat."""

    def __init__(self, first: bool) -> None:
        self.first = first  # it needs the first seat
        self.thread = threading.get_ident()
        self.lock = threading.Lock()  # it waits for this
        self.lock.acquire()
        self.seat: Seat | None = None
        self.looks = False  # it was woken, and has not looked for a free seat yet
        self.overtaken = False  # it has looked, and another thread was faster

    def wake(self) -> None:
        """Have the thread look for a free seat."""
        if not self.looks:
            self.looks = True
            self.lock.release()


class NetPool:
    """Workspaces with the same net, one for each thread that runs it at the same time; they share its parameters.

    The first is the given one: a thread that runs the net alone uses no other. Another is made when a thread finds all
    of them in use, up to the limit; then threads wait. A net whose runs depend on each other (it changes what it keeps,
    draws random numbers, or has effects besides its outputs), or that is on a GPU, has one workspace only, so that its
    runs take turns.

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
        self._net, self.create_net, self._parameters = net, create, parameters
        why = _why_in_turn(net, workspace, parameters)
        if why and threads is not None and threads > 1:
            raise NetError(f"net {net.name!r} {why}, so its runs must take turns; give threads=1, or omit it")
        self.limit = 1 if why else threads or core_count()
        self.seats = [Seat(workspace)]
        self._making = 0
        self.waiting: deque[_Waiter] = deque()
        self.guard = threading.Lock()  # of these two
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the threads that waited: they do not exist in a forked process."""
        self.guard = threading.Lock()
        self._making = 0
        self.waiting.clear()

    def take(self, *, first: bool = False) -> Seat:
        """Return a seat that no other thread has until ``give_back``; ``first``: that of the given workspace.

        A free seat is taken at once, even if other threads wait: to wake one takes longer than a run of a small net. A
        thread that was woken and found that another was faster is handed the next seat.
        """
        return self._free(first) or self._wait(first)

    def give_back(self, seat: Seat) -> None:
        """End the use of a seat."""
        seat.thread = 0
        seat.lock.release()
        if self.waiting:
            with self.guard:
                self._offer(seat)

    def _offer(self, seat: Seat) -> None:
        """Wake the thread that has waited longest for this seat, or hand it over if the thread was overtaken before."""
        waiter = next((waiter for waiter in self.waiting if not waiter.first or seat is self.seats[0]), None)
        if waiter is None or waiter.looks:
            return
        if not waiter.overtaken:
            waiter.wake()
        elif seat.lock.acquire(False):
            waiter.seat, seat.thread = seat, waiter.thread
            self.waiting.remove(waiter)
            waiter.lock.release()

    def _free(self, first: bool) -> Seat | None:
        for seat in self.seats:
            if seat.lock.acquire(False):
                seat.thread = threading.get_ident()
                return seat
            if first:
                break
        return None

    def _wait(self, first: bool) -> Seat:
        """Wait for a seat, or make another one."""
        if any(seat.thread == threading.get_ident() for seat in self.seats):
            raise NetError(f"net {self._net.name!r}: an operator of it runs the same predictor again")
        waiter = _Waiter(first)
        try:
            while not self._found(waiter):
                waiter.lock.acquire()
        except BaseException:  # such as KeyboardInterrupt
            self._leave(waiter)
            raise
        return waiter.seat or self._made()

    def _found(self, waiter: _Waiter) -> bool:
        """Whether a thread has found a seat, or may make one; otherwise it waits."""
        with self.guard:
            if waiter.seat is not None:  # handed over
                return True
            if waiter not in self.waiting:
                self.waiting.append(waiter)  # before it looks, so that it is offered what is given back afterwards
            waiter.seat = self._free(waiter.first)
            if waiter.seat is None:
                if waiter.first or len(self.seats) + self._making >= self.limit:
                    waiter.overtaken, waiter.looks = waiter.overtaken or waiter.looks, False
                    return False
                self._making += 1
            self.waiting.remove(waiter)
            self._offer_free()
            return True

    def _offer_free(self) -> None:
        """Offer a free seat, if there is one: each thread that was woken wakes the next one."""
        free = next((seat for seat in self.seats if not seat.lock.locked()), None) if self.waiting else None
        if free is not None:
            self._offer(free)

    def _leave(self, waiter: _Waiter) -> None:
        """End the wait of a thread that was interrupted; what it was offered is for the next one."""
        with self.guard:
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            self._offer_free()
        if waiter.seat is not None:
            self.give_back(waiter.seat)

    def _made(self) -> Seat:
        """Return a new seat, in use by this thread."""
        try:
            seat = Seat(self._copy())
            seat.lock.acquire()
            seat.thread = threading.get_ident()
            self.seats.append(seat)
            return seat
        finally:
            with self.guard:
                self._making -= 1
                if self.waiting:
                    self.waiting[0].wake()  # it may make one, if this failed

    def _copy(self) -> Workspace:
        """Return a workspace with the net and the same parameters."""
        first = self.seats[0].workspace
        copy = Workspace(engines=first.engines, threads=first.threads, seed=first.seed, without=first.without)
        copy.root_folder = first.root_folder
        with self.guard:
            copy.share_blobs(first, self._parameters)
        self.create_net(copy)
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
    for op in all_operators(net):
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
