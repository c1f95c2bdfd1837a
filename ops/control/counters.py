"""Counters and booleans that operators share by reference; Caffe2's execution steps count and stop with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.data.counter import Counter
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.objects import OnHost, shared_object
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "AtomicBool",
    "AtomicFetchAdd",
    "AtomicFetchAdd64",
    "CheckAtomicBool",
    "CheckCounterDone",
    "ConditionalSetAtomicBool",
    "CountDown",
    "CountUp",
    "CreateAtomicBool",
    "CreateCounter",
    "ResetCounter",
    "RetrieveCount",
]

Arrays = tuple[Any, ...]


class AtomicBool(BlobObject):
    """A bool, initially false, that several nets may set at the same time."""

    def __init__(self) -> None:
        self.value = False


@register
@dataclass(frozen=True)
class CreateCounter(OnHost):
    """Create a counter with the initial value ``init_count``."""

    signature = "-> counter: object"
    effects = ""
    init_count: int = 0


@kernel(CreateCounter)
def create_counter(op: CreateCounter, ctx: RunContext) -> Arrays:
    return (Counter(op.init_count),)


@dataclass(frozen=True)
class _OnCounter(OnHost):
    signature = "counter ->"
    effects = ""


@register
@dataclass(frozen=True)
class CountUp(_OnCounter):
    """Add one to a counter; previous_count = the value before."""

    signature = "counter: object -> previous_count (): int64"


@register
@dataclass(frozen=True)
class CountDown(_OnCounter):
    """Subtract one from a counter; done = whether it is below 0 now."""

    signature = "counter: object -> done (): bool"


@register
@dataclass(frozen=True)
class CheckCounterDone(_OnCounter):
    """done = whether a counter is 0 or less."""

    signature = "counter: object -> done (): bool"


@register
@dataclass(frozen=True)
class ResetCounter(_OnCounter):
    """Set a counter to ``init_count``; previous_value = the value before."""

    signature = "counter: object -> previous_value? (): int64"
    init_count: int = 0


@register
@dataclass(frozen=True)
class RetrieveCount(_OnCounter):
    """count = the value of a counter."""

    signature = "counter: object -> count (): int64"


def _counter(op: Operator, value: Any) -> Counter:
    return shared_object(op, value, Counter, "CreateCounter")


@kernel(CountUp)
def count_up(op: CountUp, ctx: RunContext, counter: Any) -> Arrays:
    return (np.array(_counter(op, counter).add(1), np.int64),)


@kernel(CountDown)
def count_down(op: CountDown, ctx: RunContext, counter: Any) -> Arrays:
    return (np.array(_counter(op, counter).add(-1) <= 0),)


@kernel(CheckCounterDone)
def check_counter_done(op: CheckCounterDone, ctx: RunContext, counter: Any) -> Arrays:
    return (np.array(_counter(op, counter).count <= 0),)


@kernel(ResetCounter)
def reset_counter(op: ResetCounter, ctx: RunContext, counter: Any) -> Arrays:
    return (np.array(_counter(op, counter).reset(op.init_count), np.int64),)[: op.n_out]


@kernel(RetrieveCount)
def retrieve_count(op: RetrieveCount, ctx: RunContext, counter: Any) -> Arrays:
    return (np.array(_counter(op, counter).count, np.int64),)


@register
@dataclass(frozen=True)
class CreateAtomicBool(OnHost):
    """Create a shared bool, initially false."""

    signature = "-> atomic_bool: object"
    effects = ""


@register
@dataclass(frozen=True)
class ConditionalSetAtomicBool(OnHost):
    """Set a shared bool to true if ``condition`` is true; else leave it unchanged."""

    signature = "atomic_bool: object, condition {1}: bool ->"
    effects = ""


@register
@dataclass(frozen=True)
class CheckAtomicBool(OnHost):
    """value = a shared bool."""

    signature = "atomic_bool: object -> value (1): bool"
    effects = ""


@kernel(CreateAtomicBool)
def create_atomic_bool(op: CreateAtomicBool, ctx: RunContext) -> Arrays:
    return (AtomicBool(),)


@kernel(ConditionalSetAtomicBool)
def conditional_set_atomic_bool(op: ConditionalSetAtomicBool, ctx: RunContext, shared: Any, condition: Any) -> Arrays:
    flag = shared_object(op, shared, AtomicBool, "CreateAtomicBool")
    if ctx.host(condition).item():
        flag.value = True
    return ()


@kernel(CheckAtomicBool)
def check_atomic_bool(op: CheckAtomicBool, ctx: RunContext, shared: Any) -> Arrays:
    return (np.array([shared_object(op, shared, AtomicBool, "CreateAtomicBool").value]),)


@dataclass(frozen=True)
class _FetchAdd(Operator):
    signature = "mutex_ptr, mut_value, increment -> mut_value, fetched_value"
    must_inplace = ((1, 0),)
    stateful = True


@register
@dataclass(frozen=True)
class AtomicFetchAdd(_FetchAdd):
    """Add ``increment`` to ``mut_value`` in place, under a mutex; fetched_value = the value before. For int32."""

    signature = """
        mutex_ptr: object
        mut_value {1}: int32
        increment {1}: int32
        -> mut_value: as mut_value
        -> fetched_value: as mut_value
    """
    effects = ""


@register
@dataclass(frozen=True)
class AtomicFetchAdd64(_FetchAdd):
    """AtomicFetchAdd for int64."""

    signature = """
        mutex_ptr: object
        mut_value {1}: int64
        increment {1}: int64
        -> mut_value: as mut_value
        -> fetched_value: as mut_value
    """
    effects = ""


def _fetch_add(op: _FetchAdd, ctx: RunContext, mutex: Any, value: Any, increment: Any) -> Arrays:
    with mutex:
        return value + increment.reshape(value.shape), value.copy()


kernel(AtomicFetchAdd)(_fetch_add)
kernel(AtomicFetchAdd64)(_fetch_add)
