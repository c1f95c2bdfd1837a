"""The loop over a sequence: the arrays of a step net's blobs in each step, and the calls of all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from netbuilder.engines.joined_calls import joined
from netbuilder.ops.core.contexts import BoundStep, CompiledSubgraph, PlanContext, Subgraph
from netbuilder.ops.core.instructions import Instruction, run_in_order
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.recurrent.links import Link
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BoundLoop", "Loop", "LoopOperators", "Stack", "Views", "assign", "fixed", "rows", "step_of"]

Array = Any
View = Callable[[int], Array]


def rows(array: Array, link: Link) -> View:
    """Return the function from a step to the rows of a link."""
    return lambda time: array[time + link.offset : time + link.offset + link.window]


def step_of(array: Array) -> View:
    """Return the function from a step to its element along the first axis of an array."""
    return lambda time: array[time, ...]


def fixed(array: Array) -> View:
    """Return the function that returns the same array in all steps."""
    return lambda time: array


@dataclass(frozen=True)
class Stack:
    """An array with the values of all steps, or of a segment of so many at a time.

    Args:
        array: the array; along its first axis it has the steps, or the rows to which links refer.
        length: the number of steps; the value of step t is that of t % length.
    """

    array: Array
    length: int

    def rows(self, link: Link) -> View:
        """Return the function from a step to the rows of a link."""
        of_segment = rows(self.array, link)
        return lambda time: of_segment(time % self.length)

    def step_of(self) -> View:
        """Return the function from a step to its element along the first axis."""
        return lambda time: self.array[time % self.length, ...]


class Views:
    """The arrays of a step net's blobs in each step."""

    def __init__(self, timestep: str, steps: int) -> None:
        self._of: dict[str, View] = {}
        numbers = np.arange(steps, dtype=np.int32).reshape(steps, 1)
        self._of[timestep] = lambda time: numbers[time]

    def __setitem__(self, name: str, view: View) -> None:
        self._of[name] = view

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def at(self, time: int) -> Callable[[str], Array]:
        """Return the function from a blob to its array in a step."""
        return lambda name: self._of[name](time)


@dataclass(frozen=True, eq=False)
class LoopOperators:
    """The operators of a loop.

    Args:
        net: the step net's name.
        before: operators that run once, before the first step.
        body: operators that run in each step.
        after: operators that run once, after the last step.
        specs: of all blobs.
        stored: the blobs that the loop has arrays for, because others than the operators that write them read them.
        fixed: external blobs that are the same in all steps.
        timestep: the blob that holds the step number, on the host.
    """

    net: str
    before: Sequence[Instruction]
    body: Sequence[Instruction]
    after: Sequence[Instruction]
    specs: Mapping[str, TensorSpec]
    stored: frozenset[str]
    fixed: frozenset[str]
    timestep: str


class Loop:
    """The operators of a loop, compiled.

    Args:
        operators: which they are.
        ctx: the plan context of the operator that holds the step net.
    """

    def __init__(self, operators: LoopOperators, ctx: PlanContext) -> None:
        def compiled(selected: Sequence[Instruction], fixed: frozenset[str] = frozenset()) -> CompiledSubgraph:
            host = frozenset([operators.timestep])
            return ctx.compile_subgraph(
                Subgraph(operators.net, selected, operators.specs, operators.stored, fixed=fixed, on_host=host)
            )

        self.before = compiled(operators.before)
        self.body = compiled(operators.body, operators.fixed)
        self.after = compiled(operators.after)
        parts = (self.body, self.before, self.after)
        self.scratch = max(each.scratch for each in parts)
        self.name = next((each.name for each in parts if each.engine), self.body.name)
        self.engine = next((each.engine for each in parts if each.engine), "")
        self.capturable = all(each.capturable for each in parts)
        self.own = [array for each in parts for array in each.own]


class BoundLoop:
    """The calls of a loop, in order.

    Args:
        loop: the operators; None: the loop runs only calls that are added with ``add``.
        views: the arrays.
        scratch: ``loop.scratch`` bytes.
    """

    def __init__(self, loop: Loop | None, views: Views, scratch: Array | None) -> None:
        self._loop, self._views, self._scratch = loop, views, scratch
        self._calls: list[Callable[[], object]] = []
        self._failed: list[Callable[[Exception], BaseException] | None] = []

    def add(self, call: Callable[[], object]) -> None:
        """Append a call."""
        self._calls.append(call)
        self._failed.append(None)

    def add_loop(self, loop: BoundLoop) -> None:
        """Append the calls of another loop."""
        self._calls += loop._calls
        self._failed += loop._failed

    def before(self) -> None:
        """Append the calls before the first step."""
        if self._loop is not None:
            self._extend(self._loop.before.bind(self._views.at(0), self._scratch))
            self._extend(self._loop.body.copies(self._views.at(0), self._scratch))

    def step(self, time: int) -> None:
        """Append the calls of a step."""
        if self._loop is not None:
            self._extend(self._loop.body.bind(self._views.at(time), self._scratch, time))

    def after(self) -> None:
        """Append the calls after the last step."""
        if self._loop is not None:
            self._extend(self._loop.after.bind(self._views.at(0), self._scratch))

    def _extend(self, steps: Iterable[BoundStep]) -> None:
        for call, failed in steps:
            self._calls.append(call)
            self._failed.append(failed)

    def run(self) -> None:
        """Run all calls.

        Raises:
            NetError, DeviceError, OperatorError: one failed; the message says which operator in which step.
        """
        calls, indices = self._joined
        run_in_order(calls, lambda index, error: self._located(indices[index], error))

    @cached_property
    def _joined(self) -> tuple[Sequence[Callable[[], object]], Sequence[int]]:
        """The calls that run, and the indices of the first ones in each."""
        found = [*joined(self._calls)]
        return [call for call, _ in found], [index for _, index in found]

    def _located(self, index: int, error: Exception) -> BaseException:
        failed = self._failed[index]
        return error if failed is None else failed(error)


def assign(out: Array, value: Array) -> None:
    """Copy ``value``, or what it broadcasts to, into ``out``."""
    out[...] = value
