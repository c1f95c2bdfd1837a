"""Blocks of a NetBuilder: loops, branches, guards, reporters, setup and exit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from netbuilder.caffe2.jobs.net_builder import NetBuilder
from netbuilder.caffe2.jobs.task import Task, TaskGroup
from netbuilder.graph import BlobReference, Net, execution_step
from netbuilder.model.helpers.control import cond, loop
from netbuilder.proto import NetError

__all__ = [
    "Branch",
    "BranchNet",
    "ConditionNet",
    "ElseNet",
    "Loop",
    "LoopNet",
    "ReporterBuilder",
    "RunOnce",
    "SetupBuilder",
    "StopGuard",
]


def _net() -> Net:
    net: Net = NetBuilder.current().current_net()
    return net


def _stop() -> None:
    builder = NetBuilder.current()
    builder.stop_if(builder.current_net().Const(True))


class RunOnce(NetBuilder):
    """A block that runs once and may be left by ``stop_if``."""

    def __exit__(self, etype: Any, *args: Any) -> Any:
        if etype is None and self._stop_blob is not None:
            _stop()
        return super().__exit__(etype, *args)


class StopGuard(RunOnce):
    """A block that runs once; the blob ``has_stopped()`` is true if it was left by ``stop_if``."""

    def __init__(self, has_stopped_blob: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self._given = has_stopped_blob
        self._ran_to_end: Any = None

    def __enter__(self) -> StopGuard:
        super().__enter__()
        self._ran_to_end = self.current_net().Const(True, blob_out=self._given)
        return self

    def __exit__(self, etype: Any, *args: Any) -> Any:
        if etype is None:
            self.current_net().Const(False, blob_out=self._ran_to_end)
        return super().__exit__(etype, *args)

    def has_stopped(self) -> BlobReference:
        """Return the blob that is true if the block was left before its end."""
        blob: BlobReference = self._ran_to_end
        return blob


class Loop(NetBuilder):
    """A block that is repeated a number of times, or until it stops."""

    def __init__(self, iters: Any = None, name: str | None = None) -> None:
        super().__init__(name, _stop_blob_required=True)
        self._count = self._limit = self._one = None
        if iters is not None:
            net = _net()
            self._one = net.Const(1)
            self._count = net.Const(0)
            self._limit = iters if isinstance(iters, BlobReference) else net.Const(iters)

    def iter(self) -> BlobReference:
        """Return the number of the iteration, from 0 on, int64.

        Raises:
            NetError: the loop has no number of iterations.
        """
        if self._count is None:
            raise NetError(f"loop {self} has no iteration number, since it was not given a number of iterations")
        return self._count

    def __enter__(self) -> Loop:
        super().__enter__()
        if self._count is not None:
            self.stop_if(self.current_net().GE([self._count, self._limit]))
        return self

    def __exit__(self, etype: Any, *args: Any) -> Any:
        if etype is None and self._count is not None:
            self.current_net().Add([self._count, self._one], [self._count])
        return super().__exit__(etype, *args)


class Branch(RunOnce):
    """A block that runs if its condition holds and no earlier branch has run; see ``Elif`` and ``Else``."""

    def __init__(self, cond_blob: Any = None, name: str | None = None, _already_ran: Any = None) -> None:
        if cond_blob is None and _already_ran is None:
            raise NetError("If needs a condition")
        super().__init__(name)
        self._is_else = cond_blob is None
        if self._is_else:
            self._skip = _already_ran
        else:
            self._skip = _net().Not(cond_blob)
            if _already_ran is not None:
                self._skip = _net().Or([_already_ran, self._skip])
        self._already_ran = _net().Const(False) if _already_ran is None else _already_ran

    def __enter__(self) -> Branch:
        super().__enter__()
        self.stop_if(self._skip)
        self.current_net().Const(True, blob_out=self._already_ran)
        return self

    def Elif(self, cond: Any, name: str | None = None) -> Branch:
        """Return a block for another condition, which is evaluated if this one does not hold."""
        if self._is_else:
            raise NetError("Elif must not follow Else")
        branch: Branch = NetBuilder.current().add(Branch(cond, name or self.name, self._already_ran))
        return branch

    def Else(self, name: str | None = None) -> Branch:
        """Return a block for the case that no condition holds."""
        if self._is_else:
            raise NetError("Else: there is already one")
        branch: Branch = NetBuilder.current().add(Branch(None, name or self.name, self._already_ran))
        return branch


class _Subgraph(NetBuilder):
    """A block whose operators become a subgraph of an operator."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name, _use_control_ops=True)

    def net(self) -> Net:
        """Return the block's net."""
        children = self.get()
        return children[0] if children else Net("empty")


def _add(helper: Any, net: Net, condition: Any, known: set[str], first: Net, second: Net | None) -> None:
    around: Any = SimpleNamespace(net=net)
    helper(around, condition, sorted(known), first, second)


class BranchNet(_Subgraph):
    """A block that becomes the first net of an operator If."""

    def __init__(self, cond_blob: Any, name: str | None = None) -> None:
        super().__init__(name)
        self._condition = cond_blob
        self.other: ElseNet | None = None

    def add_to(self, net: Net, known: set[str]) -> None:
        """Append the operator to ``net``; ``known`` are the blobs that exist outside of the block."""
        other = self.other.net() if self.other is not None else None
        _add(cond, net, self._condition, known, self.net(), other)


class ElseNet(_Subgraph):
    """A block that becomes the second net of the operator If before it."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        before = NetBuilder.current().last_child()
        if not isinstance(before, BranchNet) or before.other is not None:
            raise NetError("Else must follow an IfNet")
        before.other = self

    def add_to(self, net: Net, known: set[str]) -> None:
        """Do nothing: the block before this one has added the operator."""


class LoopNet(_Subgraph):
    """A block that becomes the net of an operator While; it begins with a ``Condition`` block."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.condition: ConditionNet | None = None

    def add_to(self, net: Net, known: set[str]) -> None:
        """Append the operator to ``net``; ``known`` are the blobs that exist outside of the block.

        Raises:
            NetError: there is no condition.
        """
        if self.condition is None:
            raise NetError("WhileNet needs a block `with ops.Condition():`, whose last operator computes the condition")
        checks = self.condition.net()
        condition = BlobReference(checks.Proto().op[-1].output[0])
        net.Const(False, blob_out=condition)
        _add(loop, net, condition, known, self.net(), checks)


class ConditionNet(_Subgraph):
    """The block in a ``WhileNet`` whose last operator computes the condition."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        around = NetBuilder.current()
        if not isinstance(around, LoopNet) or around.condition is not None:
            raise NetError("Condition must be inside a WhileNet, which has only one")
        around.condition = self

    def add_to(self, net: Net, known: set[str]) -> None:
        """Do nothing: the loop runs it."""


class ReporterBuilder(NetBuilder):
    """A block that runs periodically while a task runs, and once at the end.

    Args:
        interval_ms: milliseconds between runs.
        net: a net of the task; None: run while the tasks of the enclosing group run.
        name: its name.
    """

    def __init__(self, interval_ms: int, net: Net | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self._net = net
        self.interval_ms = interval_ms

    def __exit__(self, etype: Any, *args: Any) -> Any:
        if etype is None:
            step = execution_step(self.name or "report", self.get(), run_every_ms=self.interval_ms)
            if self._net is None:
                TaskGroup.current().add_report(step)
            else:
                self._net.add_attribute(Task.REPORT_STEP, step)
        return super().__exit__(etype, *args)


class SetupBuilder(NetBuilder):
    """A block that runs once, before or after its task or group."""

    INIT = "init"
    EXIT = "exit"

    def __init__(self, type: str, name: str | None = None) -> None:
        super().__init__(name)
        self.type = type

    def setup(self, net: Net) -> SetupBuilder | None:
        """Return the block if it runs before."""
        return self if self.type == SetupBuilder.INIT else None

    def exit(self, net: Net) -> SetupBuilder | None:
        """Return the block if it runs after."""
        return self if self.type == SetupBuilder.EXIT else None
