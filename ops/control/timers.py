"""Timers, the time of day, and the registry of statistics that timers add to."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.data.forking import new_lock
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.objects import OnHost, shared_object
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "StatRegistryCreate",
    "StatRegistryExport",
    "StatRegistryUpdate",
    "Statistics",
    "TimerBegin",
    "TimerEnd",
    "TimerGet",
    "TimerGetAndEnd",
    "WallClockTime",
    "statistics_of_process",
]

Arrays = tuple[Any, ...]
_OBJECT = TensorSpec((), STRING)
_INT64 = np.dtype(np.int64)


class Statistics(BlobObject):
    """Integers by name, to which threads add."""

    def __init__(self) -> None:
        self._sums: dict[bytes, int] = {}
        self._lock = new_lock()

    def add(self, items: Iterable[tuple[bytes, int]]) -> None:
        """Add to the numbers; a new name starts at 0."""
        with self._lock:
            for name, value in items:
                self._sums[name] = self._sums.get(name, 0) + value

    def read(self, *, reset: bool) -> list[tuple[bytes, int]]:
        """Return names and numbers, in the order of their first use; with ``reset``, set the numbers to 0."""
        with self._lock:
            items = list(self._sums.items())
            if reset:
                self._sums = dict.fromkeys(self._sums, 0)
        return items


_of_process = Statistics()
"""The process's registry, used by operators that are not given one, as in Caffe2."""


def statistics_of_process() -> Statistics:
    """Return the process's registry, used by operators that are not given one."""
    return _of_process


class _Timer(BlobObject):
    def __init__(self, name: str) -> None:
        self.name = name
        self.began: int | None = time.perf_counter_ns()


@register
@dataclass(frozen=True)
class TimerBegin(OnHost):
    """Start a timer.

    When it is stopped, its time in nanoseconds is added to the statistic ``<counter_name>/time_ns/sum``, and 1 to
    ``<counter_name>/time_ns/count``; the default name is that of the output.
    """

    signature = "-> timer: object"
    counter_name: str = ""


@kernel(TimerBegin)
def timer_begin(op: TimerBegin, ctx: RunContext) -> Arrays:
    return (_Timer(op.counter_name or ctx.op_def.output[0]),)


@dataclass(frozen=True)
class _OnTimer(OnHost):
    signature = "timer -> nanos"
    result: ClassVar[tuple[TensorSpec, ...]] = ()


@register
@dataclass(frozen=True)
class TimerEnd(_OnTimer):
    """Stop a timer."""

    signature = "timer: object ->"


@register
@dataclass(frozen=True)
class TimerGet(_OnTimer):
    """nanos = the time since a timer was started, in nanoseconds."""

    signature = "timer: object -> nanos (): int64"
    result = (TensorSpec((), _INT64),)


@register
@dataclass(frozen=True)
class TimerGetAndEnd(_OnTimer):
    """Stop a timer; nanos = the time since it was started, in nanoseconds."""

    signature = "timer: object -> nanos (1): int64"
    result = (TensorSpec((1,), _INT64),)


def _nanoseconds(op: Operator, value: Any, *, end: bool = False) -> int:
    timer = shared_object(op, value, _Timer, "TimerBegin")
    if timer.began is None:
        raise NetError(f"{op.type}: the timer {timer.name!r} has already been stopped; start one with TimerBegin")
    passed = time.perf_counter_ns() - timer.began
    if end:
        timer.began = None
        name = f"{timer.name}/time_ns".encode()
        _of_process.add([(name + b"/count", 1), (name + b"/sum", passed)])
    return passed


@kernel(TimerEnd)
def timer_end(op: TimerEnd, ctx: RunContext, timer: Any) -> Arrays:
    _nanoseconds(op, timer, end=True)
    return ()


@kernel(TimerGet)
def timer_get(op: TimerGet, ctx: RunContext, timer: Any) -> Arrays:
    return (np.array(_nanoseconds(op, timer), np.int64),)


@kernel(TimerGetAndEnd)
def timer_get_and_end(op: TimerGetAndEnd, ctx: RunContext, timer: Any) -> Arrays:
    return (np.array([_nanoseconds(op, timer, end=True)], np.int64),)


@register
@dataclass(frozen=True)
class WallClockTime(OnHost):
    """time = the time of day, in nanoseconds since the start of 1970 (UTC)."""

    signature = "-> time (): int64"


@kernel(WallClockTime)
def wall_clock_time(op: WallClockTime, ctx: RunContext) -> Arrays:
    return (np.array(time.time_ns(), np.int64),)


@register
@dataclass(frozen=True)
class StatRegistryCreate(OnHost):
    """Create a registry of statistics."""

    signature = "-> handle: object"


@register
@dataclass(frozen=True)
class StatRegistryExport(OnHost):
    """The names and numbers of a registry, and the time in nanoseconds; with ``reset``, the numbers are set to 0.

    Without an input, it is the registry of the process, which timers add to.
    """

    signature = "handle?: object -> keys (N): string, values (N): int64, timestamps (N): int64"
    dynamic = True
    reset: bool = True


@register
@dataclass(frozen=True)
class StatRegistryUpdate(OnHost):
    """Add numbers to a registry, by name; without a third input, to that of the process."""

    signature = "keys (N): string, values (N): int64, handle?: object ->"


def _registry(op: Operator, handle: Any) -> Statistics:
    return _of_process if handle is None else shared_object(op, handle, Statistics, "StatRegistryCreate")


@kernel(StatRegistryCreate)
def stat_registry_create(op: StatRegistryCreate, ctx: RunContext) -> Arrays:
    return (Statistics(),)


@kernel(StatRegistryExport)
def stat_registry_export(op: StatRegistryExport, ctx: RunContext, handle: Any = None) -> Arrays:
    items = _registry(op, handle).read(reset=op.reset)
    keys = np.empty(len(items), object)
    keys[:] = [name for name, _ in items]
    values = np.array([value for _, value in items], np.int64)
    return keys, values, np.full(len(items), time.time_ns(), np.int64)


@kernel(StatRegistryUpdate)
def stat_registry_update(op: StatRegistryUpdate, ctx: RunContext, keys: Any, values: Any, handle: Any = None) -> Arrays:
    _registry(op, handle).add(zip(keys.tolist(), ctx.host(values).tolist()))
    return ()
