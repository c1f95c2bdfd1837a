"""Nets, steps, plans, tasks, groups of tasks and jobs as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from netbuilder.caffe2.jobs.job import Job
from netbuilder.caffe2.jobs.task import Task, TaskGroup
from netbuilder.caffe2.visitor import Visitor
from netbuilder.graph import ExecutionStep, Net, Plan
from netbuilder.graph.listing import (
    argument_items,
    call_text,
    common_prefix,
    device_text,
    factored,
    listing,
    net_arguments,
)
from netbuilder.proto import DeviceOption, NetDef, OperatorDef

__all__ = [
    "Printer",
    "Text",
    "call",
    "commonprefix",
    "debug_net",
    "factor_prefix",
    "format_device_option",
    "format_value",
    "print_job",
    "print_net",
    "print_net_def",
    "print_op",
    "print_step",
    "print_task",
    "print_task_group",
    "to_string",
]


class Text:
    """Lines, indented by the blocks that they are in.

    >>> text = Text()
    >>> with text.context("loop()"):
    ...     text.add("step")
    >>> print(text)
    with loop():
        step
    """

    def __init__(self) -> None:
        self._indent = 0
        self._lines_in_context = [0]
        self.lines: list[str] = []

    @contextmanager
    def context(self, text: str | None) -> Iterator[None]:
        """Indent the lines added in the block, under ``with <text>:``; None: do not indent."""
        if text is not None:
            self.add(f"with {text}:")
            self._indent += 4
            self._lines_in_context.append(0)
        yield
        if text is not None:
            if not self._lines_in_context[-1]:
                self.add("pass")
            self._indent -= 4
            self._lines_in_context.pop()

    def add(self, text: str) -> None:
        """Append a line."""
        self._lines_in_context[-1] += 1
        self.lines.append(" " * self._indent + text)

    def __str__(self) -> str:
        return "\n".join(self.lines)


class Printer(Visitor, Text):
    """Text built from the objects that it is called with.

    Args:
        factor_prefixes: write a scope that all blobs share only once.
        c2_syntax: write operators as the Python code that creates them; else as assignments.
    """

    def __init__(self, factor_prefixes: bool = False, c2_syntax: bool = True) -> None:
        super().__init__()
        self.factor_prefixes = factor_prefixes
        self.c2_syntax = c2_syntax
        self.c2_net_name: str | None = None


def to_string(obj: Any, **kwargs: Any) -> str:
    """Return a net, an operator, a step, a plan, a task or a group of tasks as text.

    Args:
        obj: one of these, or a list.
        kwargs: those of ``Printer``.
    """
    printer = Printer(**kwargs)
    printer(obj)
    return str(printer)


def debug_net(net: Any) -> str:
    """Print a net's operators, each with the line of code that created it; return the text."""
    text = listing(net, lines=True)
    print(text)
    return text


def commonprefix(m: Sequence[str]) -> str:
    """Return the common prefix of all names, up to the last slash or letter."""
    return common_prefix(list(m))


def factor_prefix(vals: Sequence[str], do_it: bool) -> str:
    """Return the names separated by commas; with ``do_it``, a scope that all share is written once, before brackets."""
    return factored(list(vals), do_it)


def call(
    op: str, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None, factor_prefixes: bool = False
) -> str:
    """Return ``outputs = op(inputs)``."""
    return call_text(op, inputs, outputs, factor_prefixes)


def format_value(val: Any) -> str:
    """Return a value as text; a list as the texts of its elements."""
    if isinstance(val, (list, tuple)):
        return str([format_value(each) for each in val])
    return str(val)


def format_device_option(dev_opt: DeviceOption) -> str | None:
    """Return a device as text; None for the CPU without an id."""
    return device_text(dev_opt)


@Printer.register(OperatorDef)
def print_op(text: Printer, op: OperatorDef) -> None:
    """Add an operator, and its subnets below it."""
    _add_call(text, op)
    for name, held in net_arguments(op):
        with text.context(f"arg: {name}"):
            text(held)


def _add_call(text: Printer, op: OperatorDef) -> None:
    items = [f"{name}={value}" for name, value in argument_items(op)]
    if text.c2_syntax and text.c2_net_name:
        blobs = [str(list(op.input)), str(list(op.output))]
        text.add(call_text(f"{text.c2_net_name}.{op.type}", [*blobs, *items]))
        return
    inputs = [factored(list(op.input), text.factor_prefixes)] if op.input else []
    outputs = [factored(list(op.output), text.factor_prefixes)] if op.output else []
    text.add(call_text(op.type, [*inputs, *items], outputs))


@Printer.register(NetDef)
def print_net_def(text: Printer, net_def: NetDef) -> None:
    """Add a net's operators."""
    around = text.c2_net_name
    if text.c2_syntax:
        text.add(f"{net_def.name} = core.Net({net_def.name!r})")
        text.c2_net_name = net_def.name
    else:
        text.add(f"# net: {net_def.name}")
    for op in net_def.op:
        text(op)
    text.c2_net_name = around


@Printer.register(Net)
def print_net(text: Printer, net: Net) -> None:
    """Add a net's operators."""
    text(net.Proto())


@Printer.register(ExecutionStep)
def print_step(text: Printer, step: ExecutionStep) -> None:
    """Add a step, with its nets and substeps."""
    proto = step.Proto()
    repeats = proto.num_iter if proto.HasField("num_iter") and proto.num_iter != 1 else None
    loops = proto.HasField("should_stop_blob") or repeats is not None
    with text.context(call_text("loop", [str(repeats)] if repeats is not None else []) if loops else None):
        with text.context("parallel()" if proto.concurrent_substeps else None):
            if proto.report_net:
                with text.context(call_text("report_net", [str(proto.report_interval)])):
                    net = step.get_net(proto.report_net)
                    text(net) if net is not None else text.add(proto.report_net)
            for part in [*step.Substeps(), *step.Nets()]:
                text(part)
                if proto.should_stop_blob and proto.concurrent_substeps:
                    text.add(call_text("yield stop_if", [proto.should_stop_blob]))
            if proto.should_stop_blob and not proto.concurrent_substeps:
                text.add(call_text("yield stop_if", [proto.should_stop_blob]))


@Printer.register(Plan)
def _print_plan(text: Printer, plan: Plan) -> None:
    """Add a plan's steps."""
    with text.context(call_text("Plan", [repr(plan.Name())])):
        for step in plan.Steps():
            text(step)


@Printer.register(Task)
def print_task(text: Printer, task: Task) -> None:
    """Add a task with its step."""
    outputs = ", ".join(str(name) for output in task.outputs() for name in output.names)
    items = [("node", task.node), ("name", task.name), ("outputs", f"Output[{outputs}]" if outputs else None)]
    with text.context(call_text("Task", [f"{name}={value}" for name, value in items if value is not None])):
        text(task.get_step())


@Printer.register(TaskGroup)
def print_task_group(text: Printer, tg: TaskGroup, header: str | None = None) -> None:
    """Add the tasks of a group, one per node."""
    with text.context(header or call_text("TaskGroup")):
        for task in tg.tasks_by_node().tasks():
            text(task)


@Printer.register(Job)
def print_job(text: Printer, job: Job) -> None:
    """Add the groups of a job: init, epoch and exit."""
    text(job.init_group, "Job.init_group")
    text(job.epoch_group, "Job.epoch_group")
    with text.context("Job.stop_conditions"):
        for signal in job.stop_conditions:
            text.add(str(signal))
    text(job.exit_group, "Job.exit_group")
