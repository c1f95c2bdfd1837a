"""``ops`` adds operators, loops and branches to the current builder."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.jobs.blocks import (
    Branch,
    BranchNet,
    ConditionNet,
    ElseNet,
    Loop,
    LoopNet,
    ReporterBuilder,
    SetupBuilder,
    StopGuard,
)
from netbuilder.caffe2.jobs.net_builder import NetBuilder
from netbuilder.caffe2.jobs.task import Task, TaskGroup
from netbuilder.graph import Net

__all__ = ["Operations", "ops"]


class Operations:
    """Every operator is a method that adds it to the current net of the current builder.

    >>> with NetBuilder("sum") as builder:
    ...     total = ops.Const(0)
    ...     with ops.loop(4) as loop:
    ...         _ = ops.Add([total, loop.iter()], [total])
    """

    def net(self, net: Net | None = None, name: str | None = None) -> Net:
        """Return the current net; with a name a new one; or add ``net``."""
        if net is not None:
            NetBuilder.current().add(net)
            return net
        current: Net = NetBuilder.current().current_net(name=name)
        return current

    def __getattr__(self, op_type: str) -> Any:
        if op_type.startswith("__"):
            raise AttributeError(op_type)
        return getattr(self.net(), op_type)

    def task_group(self) -> Any:
        """Return a block of tasks that run here, as a part of the current task."""
        return _InnerGroup(NetBuilder.current())

    def stop(self) -> None:
        """End the current block here; a loop is not repeated."""
        self.stop_if(self.Const(True))

    def stop_if(self, blob: Any) -> None:
        """End the current block here if ``blob`` is true."""
        NetBuilder.current().stop_if(blob)

    def loop(self, iters: Any = None, name: str | None = None) -> Loop:
        """Return a block that runs ``iters`` times, a number or a blob; None: until it stops."""
        block: Loop = NetBuilder.current().add(Loop(iters, name=name))
        return block

    def stop_guard(self, has_stopped_blob: Any = None, name: str | None = None) -> StopGuard:
        """Return a block that runs once; its ``has_stopped()`` is the blob that is true if it was stopped."""
        block: StopGuard = NetBuilder.current().add(StopGuard(has_stopped_blob, name))
        return block

    def If(self, cond: Any, name: str | None = None) -> Branch:
        """Return a block that runs if a blob is true; its ``Elif(blob)`` and ``Else()`` return blocks too."""
        block: Branch = NetBuilder.current().add(Branch(cond, name=name))
        return block

    def IfNet(self, cond: Any, name: str | None = None) -> BranchNet:
        """Return a block whose operators become the net of an operator If; needs ``_use_control_ops``."""
        block: BranchNet = NetBuilder.current().add(BranchNet(cond, name=name))
        return block

    def Else(self, name: str | None = None) -> ElseNet:
        """Return a block that belongs to the IfNet before it."""
        block: ElseNet = NetBuilder.current().add(ElseNet(name=name))
        return block

    def WhileNet(self, name: str | None = None) -> LoopNet:
        """Return a block whose operators become the net of an operator While; needs ``_use_control_ops``."""
        block: LoopNet = NetBuilder.current().add(LoopNet(name=name))
        return block

    def Condition(self, name: str | None = None) -> ConditionNet:
        """Return the block in a WhileNet whose last operator computes the condition."""
        block: ConditionNet = NetBuilder.current().add(ConditionNet(name=name))
        return block

    def task_init(self) -> SetupBuilder:
        """Return a block that runs once, before the task."""
        return self._setup(Task.TASK_SETUP, SetupBuilder.INIT)

    def task_exit(self) -> SetupBuilder:
        """Return a block that runs once, after the task."""
        return self._setup(Task.TASK_SETUP, SetupBuilder.EXIT)

    def task_instance_init(self) -> SetupBuilder:
        """Return a block that runs before each copy of the task."""
        return self._setup(Task.TASK_INSTANCE_SETUP, SetupBuilder.INIT)

    def task_instance_exit(self) -> SetupBuilder:
        """Return a block that runs after each copy of the task."""
        return self._setup(Task.TASK_INSTANCE_SETUP, SetupBuilder.EXIT)

    def local_init(self) -> SetupBuilder:
        """Return a block that runs once, before all tasks of the group."""
        return self._setup(TaskGroup.LOCAL_SETUP, SetupBuilder.INIT)

    def local_exit(self, name: str | None = None) -> SetupBuilder:
        """Return a block that runs once, after all tasks of the group."""
        return self._setup(TaskGroup.LOCAL_SETUP, SetupBuilder.EXIT, name)

    def _setup(self, key: str, kind: str, name: str | None = None) -> SetupBuilder:
        block = SetupBuilder(kind, name)
        self.net().add_attribute(key, block)
        return block

    def task_reporter(self, interval_ms: int = 1000, name: str | None = None) -> ReporterBuilder:
        """Return a block that runs every ``interval_ms`` while the task runs, and once when it ends."""
        return ReporterBuilder(interval_ms, net=self.net(), name=name)

    def local_reporter(self, interval_ms: int = 1000, name: str | None = None) -> ReporterBuilder:
        """Return a block that runs every ``interval_ms`` while the tasks of the group run, and once when they end."""
        return ReporterBuilder(interval_ms, name=name)


class _InnerGroup(TaskGroup):
    """A group of tasks whose steps become a part of a builder when the block ends."""

    def __init__(self, builder: NetBuilder) -> None:
        super().__init__()
        self._builder = builder

    def __exit__(self, etype: Any, *args: Any) -> Any:
        result = super().__exit__(etype, *args)
        if etype is None:
            self._builder.add(self.to_task().get_step())
        return result


ops = Operations()
"""The object that adds operators inside the block of a builder."""
