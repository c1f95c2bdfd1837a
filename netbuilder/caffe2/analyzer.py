"""Checks that nets, steps, tasks and jobs read only blobs that exist by then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from netbuilder.caffe2.jobs.job import Job
from netbuilder.caffe2.jobs.task import Task, TaskGroup
from netbuilder.caffe2.visitor import Visitor
from netbuilder.graph import ExecutionStep, Net
from netbuilder.graph.versions import reads_of, writes_of
from netbuilder.proto import NetDef, OperatorDef, UsageError

__all__ = [
    "Analyzer",
    "analyze",
    "analyze_job",
    "analyze_net",
    "analyze_op",
    "analyze_step",
    "analyze_task",
    "analyze_task_group",
]


class Analyzer(Visitor):
    """Visits operators in the order in which they run, and raises an error if one reads a blob that does not exist."""

    PREFIXES_TO_IGNORE = {"distributed_ctx_init"}

    def __init__(self) -> None:
        self.in_task = False
        self._seen: dict[str, int] = {}
        self._others: dict[Any, dict[str, int]] = {}

    @property
    def workspace(self) -> dict[str, int]:
        """The blobs that exist -> how many times each has been written."""
        return self._seen

    @contextmanager
    def set_workspace(self, node: Any = None, ws: dict[str, int] | None = None, do_copy: bool = False) -> Iterator[Any]:
        """Use the blobs of a node, or ``ws``, in the block; with ``do_copy``, a copy that is dropped after it."""
        before = self._seen
        found = ws if ws is not None else self._others.setdefault(str(node), {}) if node is not None else before
        self._seen = dict(found) if do_copy else found
        try:
            yield self._seen
        finally:
            self._seen = before

    def define_blob(self, blob: Any) -> None:
        """Note that a blob is written."""
        self.workspace[str(blob)] = self.workspace.get(str(blob), 0) + 1

    def need_blob(self, blob: Any) -> None:
        """Check that a blob exists.

        Raises:
            UsageError: it does not.
        """
        name = str(blob)
        if name not in self.workspace and not any(name.startswith(prefix) for prefix in self.PREFIXES_TO_IGNORE):
            raise UsageError(f"Blob undefined: {name}")


def analyze(obj: Any) -> None:
    """Check that only existing blobs are read: those written before, and, for a single net, its external inputs.

    Args:
        obj: a net, a step, a task, a group of tasks, or a job.

    Raises:
        UsageError: a blob that does not exist is read, or two tasks write the same blob.
    """
    Analyzer()(obj)


@Analyzer.register(OperatorDef)
def analyze_op(analyzer: Analyzer, op: OperatorDef) -> None:
    """Visit an operator: its inputs must exist, its outputs exist after it."""
    for name in reads_of(op):
        analyzer.need_blob(name)
    for name in writes_of(op):
        analyzer.define_blob(name)


@Analyzer.register(Net)
def analyze_net(analyzer: Analyzer, net: Net) -> None:
    """Visit a net's operators; outside of tasks, its external inputs exist."""
    proto: NetDef = net.Proto()
    if not analyzer.in_task:
        for name in proto.external_input:
            analyzer.define_blob(name)
    for op in proto.op:
        analyzer(op)


@Analyzer.register(ExecutionStep)
def analyze_step(analyzer: Analyzer, step: ExecutionStep) -> None:
    """Visit a step's nets and steps; those that run at the same time do not see each other's blobs.

    Raises:
        UsageError: two steps that run at the same time write the same blob.
    """
    proto = step.Proto()
    if proto.report_net:
        net = step.get_net(proto.report_net)
        with analyzer.set_workspace(do_copy=True):
            analyzer(net) if net is not None else None
    before, made = dict(analyzer.workspace), dict[str, int]()
    for part in [*step.Substeps(), *step.Nets()]:
        with analyzer.set_workspace(do_copy=bool(proto.concurrent_substeps)) as seen:
            analyzer(part)
        new = {blob: times for blob, times in seen.items() if blob not in before}
        if proto.concurrent_substeps and (twice := sorted(made.keys() & new.keys())):
            raise UsageError(f"step {proto.name!r}: steps that run at the same time write the same blobs {twice}")
        made.update(new)
    analyzer.workspace.update(made)
    if proto.should_stop_blob:
        analyzer.need_blob(proto.should_stop_blob)


@Analyzer.register(Task)
def analyze_task(analyzer: Analyzer, task: Task) -> None:
    """Visit a task, with the blobs of its node; after it, its outputs must exist."""
    plan_step = task.get_step()
    before, analyzer.in_task = analyzer.in_task, True
    try:
        with analyzer.set_workspace(node=task.node):
            analyzer(plan_step)
            for output in task.outputs():
                for name in output.names:
                    analyzer.need_blob(name)
    finally:
        analyzer.in_task = before


@Analyzer.register(TaskGroup)
def analyze_task_group(analyzer: Analyzer, tg: TaskGroup) -> None:
    """Visit the tasks of a group, one for each node."""
    for task in tg.tasks_by_node().tasks():
        analyzer(task)


@Analyzer.register(Job)
def analyze_job(analyzer: Analyzer, job: Job) -> None:
    """Visit the groups of a job, one after the other."""
    for group in (job.init_group, job.epoch_group, job.exit_group):
        analyzer(group)
