"""Nets whose operators may wait (for a queue): splitting such a net into parts, and running others while one waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context

from netbuilder.data.forking import renew_after_fork
from netbuilder.data.waiting import Cancellation, CancelledError, FairLock, lock_of_this_thread, wait
from netbuilder.graph.defuse import dependencies
from netbuilder.graph.versions import reads_of
from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.threads import Thread

__all__ = ["Part", "PartsRun", "parts_of"]

_ENDING_SECONDS = 10.0  # for other threads to end after an interrupt


@dataclass(frozen=True)
class Part:
    """The operators from ``start`` to before ``end``, in order; ``after`` are the indices of parts they depend on."""

    start: int
    end: int
    after: frozenset[int]


def parts_of(net: NetDef, program: Sequence[Instruction]) -> tuple[Part, ...]:
    """Return the parts of a net; none if no operator may wait, or if all operators are one part.

    An operator whose shapes depend on data is a part of its own. The operators between two such operators are one part,
    so that they are planned together, with two exceptions. Operators that neither depend on one that may wait, nor
    share a value with an operator that does, are another part, which can run during the wait. And operators that depend
    on different waits for this net itself (one reads a queue, another writes it) are separate parts: the first may be
    what the second waits for.
    """
    waiting = [_may_wait([instruction.op_def]) for instruction in program]
    if not any(waiting):
        return ()
    before = dependencies(net)
    alone = [instruction.op.dynamic for instruction in program]
    late = _after_a_wait(before, waiting, alone)
    inner = _inner_waits(before, waiting, program)
    starts = [
        k
        for k in range(len(program))
        if k == 0 or alone[k] or alone[k - 1] or late[k] != late[k - 1] or inner[k] != inner[k - 1]
    ]
    if len(starts) < 2:
        return ()
    ends = [*starts[1:], len(program)]
    number = [part for part, (start, end) in enumerate(zip(starts, ends)) for _ in range(start, end)]
    return tuple(
        Part(start, end, frozenset(number[k] for k in set().union(*before[start:end])) - {part})
        for part, (start, end) in enumerate(zip(starts, ends))
    )


def _may_wait(ops: Iterable[OperatorDef]) -> bool:
    return any(
        is_registered(op.type) and (find(op.type).waits or any(_may_wait(inner.op) for inner in subgraphs(op)))
        for op in ops
    )


def _after_a_wait(before: Sequence[set[int]], waiting: Sequence[bool], alone: Sequence[bool]) -> list[bool]:
    """Return which operators depend on one that may wait, or share a value with one that does.

    Args:
        before: for each operator, those that it depends on.
        waiting: whether each may wait.
        alone: whether each is a part of its own.
    """
    late: list[bool] = []
    linked: list[set[int]] = [set() for _ in before]
    for index, sources in enumerate(before):
        late.append(any(waiting[source] or late[source] for source in sources))
        for source in sources:
            if not alone[index] and not alone[source]:
                linked[index].add(source)
                linked[source].add(index)
    stack = [index for index, is_late in enumerate(late) if is_late]
    while stack:
        for other in linked[stack.pop()]:
            if not late[other]:
                late[other] = True
                stack.append(other)
    return late


def _inner_waits(
    before: Sequence[set[int]], waiting: Sequence[bool], program: Sequence[Instruction]
) -> list[frozenset[int]]:
    """Return for each operator those that it depends on and that wait for operators of the same net.

    Such an operator has an input, a queue, that an operator of another type has too.
    """
    users: dict[str, set[str]] = {}  # blob -> types of the dynamic operators that read it
    for instruction in program:
        if instruction.op.dynamic:
            for name in reads_of(instruction.op_def):
                users.setdefault(name, set()).add(instruction.op_def.type)
    found: list[frozenset[int]] = []
    for index, sources in enumerate(before):
        own = waiting[index] and any(len(users.get(name, ())) > 1 for name in reads_of(program[index].op_def))
        found.append(frozenset().union(*(found[source] for source in sources), [index] if own else []))
    return found


class PartsRun:
    """One run of the parts of a net, for ``data.waiting.Parts``.

    Only one thread computes at a time, the one that holds the lock, so nothing that a run uses has to be thread-safe.
    It runs the first part whose predecessors are done. A thread that waits releases the lock for another one, which is
    started if there is a part to run; after the wait, it acquires the lock again.

    Args:
        net: the name of the net, for messages.
        parts: its parts.
        run_part: runs one of them.
    """

    def __init__(self, net: str, parts: Sequence[Part], run_part: Callable[[Part], object]) -> None:
        self.lock = lock_of_this_thread() or FairLock()
        self._net = net
        self._parts = parts
        self._run_part = run_part
        self._left = list(range(len(parts)))
        self._done: set[int] = set()
        self._active: set[int] = set()  # threads that run parts and do not wait
        self._helpers: set[Thread] = set()
        self._ended = threading.Condition()  # a helper has ended
        self._cancellation = Cancellation(net, parts=self)
        self._over = False
        self._failure: BaseException | None = None

    def renew(self) -> None:
        """Drop the remaining parts: the other threads do not exist in a forked process."""
        self._left, self._over = [], True

    def run(self) -> None:
        """Run all parts.

        Raises:
            BaseException: the first error of a part, after the others have ended.
        """
        renew_after_fork(self)
        nested = self.lock.held_here()
        with self._cancellation.current():
            try:
                if not nested:
                    self.lock.acquire()
                self._active.add(threading.get_ident())
                self._run_parts()
                self._await_helpers()
            except BaseException as error:
                self._fail(error)
                self._end(None if isinstance(error, Exception) else _ENDING_SECONDS)
                if nested and not self.lock.held_here():
                    self.lock.acquire()
            finally:
                if not nested and self.lock.held_here():
                    self.lock.release()
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure

    def _run_parts(self) -> None:
        while (number := self._next()) is not None:
            self._left.remove(number)
            self._run_part(self._parts[number])
            self._done.add(number)
            self.lock.yield_to_waiters()

    def _next(self) -> int | None:
        """Return the first part that can run."""
        if self._over:
            return None
        return next((number for number in self._left if self._parts[number].after <= self._done), None)

    def _await_helpers(self) -> None:
        try:
            with self._ended:
                while self._helpers:
                    wait(self._ended)
        except CancelledError:
            self._end(None)  # threads that wait raise the same error, which names their operator
            raise

    def _fail(self, error: BaseException) -> None:
        """End the run with this error, unless an earlier error has ended it."""
        if not self._over:
            self._over, self._failure = True, error
            self._cancellation.cancel(error)

    def _end(self, seconds: float | None) -> None:
        """Wait for the helpers to end, at most ``seconds``."""
        if self.lock.held_here():
            self.lock.release()
        with self._ended:
            self._ended.wait_for(lambda: not self._helpers, seconds)

    # Called by a thread that waits, see ``data.waiting.Parts``.

    def suspend(self) -> bool:
        this = threading.get_ident()
        if this not in self._active:
            return False
        self._active.discard(this)
        if not self._active and self._next() is not None:
            helper = Thread(target=copy_context().run, args=(self._help,), name=f"netbuilder-{self._net}", daemon=True)
            helper.start()  # it begins when it has acquired the lock
            assert helper.ident is not None
            self._helpers.add(helper)
            self._active.add(helper.ident)
        return True

    def resume(self) -> None:
        self._active.add(threading.get_ident())

    def _help(self) -> None:
        self.lock.acquire()
        try:
            self._run_parts()
        except BaseException as error:
            self._fail(error)
        finally:
            self._active.discard(threading.get_ident())
            self.lock.release()
            with self._ended:
                self._helpers.discard(threading.current_thread())
                self._ended.notify_all()
