"""Iteration counters, and the mutex that guards them in Caffe2's nets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.ops.control.timers import statistics_of_process
from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AtomicIter", "CreateMutex", "Iter"]


@register
@dataclass(frozen=True)
class Iter(Operator):
    """Add one to a counter in place. Without an input, the counter is the output itself, and starts at 1."""

    signature = """
        iter? {1}: int32|int64
        -> iter: as iter, without an input (1) of int64
    """
    must_inplace = ((0, 0),)
    stateful = True
    effects = ""

    def infer(self, *counter: TensorSpec) -> tuple[TensorSpec, ...]:
        return super().infer(*counter) if counter else (TensorSpec((1,), np.dtype(np.int64)),)


@kernel(Iter)
def count(op: Iter, ctx: RunContext, counter: Any = None) -> tuple[Any, ...]:
    if counter is None:
        name, workspace = ctx.op_def.output[0], ctx.workspace
        if workspace is None or not workspace.has(name) or workspace.spec(name) is None:
            return (ctx.xp.ones((1,), np.int64),)
        counter = ctx.xp.asarray(workspace.fetch(name))
    return (counter + 1,)


def _nothing() -> None:
    pass


def _prepare_counter(counter: TensorSpec, position: int, report: Callable[[], None] = _nothing) -> Prepared:
    """Prepare the increment of the input ``position``, which is followed by a call of ``report``."""
    spec = counter.plain

    def bind(inputs: Any, outputs: Any, scratch: Any) -> Any:
        old, new = inputs[position].reshape(1), outputs[0].reshape(1)

        def call() -> None:
            new[0] = old[0] + 1
            report()

        return call

    return Prepared([None] * position + [spec], [spec], bind, inplace=((position, 0),), name="number on the host")


@prepare(Iter, device=CPU)
def prepare_count(op: Iter, ctx: PlanContext, *counter: TensorSpec) -> Prepared | None:
    return _prepare_counter(counter[0], 0) if counter else None


@register
@dataclass(frozen=True)
class AtomicIter(Operator):
    """Add one to a counter in place, under a mutex that other operators of the workspace may share.

    The process's registry of statistics counts the runs on the host, under ``atomic_iter/stats/<iter>/num_iter``.
    """

    signature = "mutex: object, iter {1}: int32|int64 -> iter: as iter"
    must_inplace = ((1, 0),)
    stateful = True
    effects = ""


def _statistics_report(op_def: OperatorDef) -> Callable[[], None]:
    one = [(f"atomic_iter/stats/{op_def.input[1]}/num_iter".encode(), 1)]
    return partial(statistics_of_process().add, one)


@kernel(AtomicIter)
def count_under_mutex(op: AtomicIter, ctx: RunContext, mutex: Any, counter: Any) -> tuple[Any, ...]:
    _statistics_report(ctx.op_def)()
    with mutex:
        return (counter + 1,)


@prepare(AtomicIter, device=CPU)
def prepare_count_under_mutex(
    op: AtomicIter, ctx: PlanContext, mutex: TensorSpec, counter: TensorSpec
) -> Prepared | None:
    # A plan orders the operators that write one blob, and the interpreter makes the addition atomic.
    return _prepare_counter(counter, 1, _statistics_report(ctx.op_def))


@register
@dataclass(frozen=True)
class CreateMutex(Operator):
    """Create a mutex."""

    signature = "-> mutex_ptr: object"
    stateful = True
    effects = ""


@kernel(CreateMutex)
def create_mutex(op: CreateMutex, ctx: RunContext) -> tuple[Any, ...]:
    return (new_lock(),)
