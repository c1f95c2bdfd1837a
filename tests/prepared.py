"""Runs prepared kernels without a plan: makes them ready, converts layouts, binds them to buffers and calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netbuilder.engines import onednn
from netbuilder.engines.arrays import aligned_empty
from netbuilder.ops.core.operator import TensorSpec, spec_of
from netbuilder.proto import OperatorDef


@dataclass
class Value:
    """A value in some layout: its spec, its bytes, and what its producer published about it."""

    spec: TensorSpec
    buffer: Any
    notes: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(array: Any) -> Value:
        array = np.asarray(array)
        spec = spec_of(array)
        value = Value(spec, _buffer(spec))
        value.buffer[...] = array
        return value

    def plain(self) -> Any:
        """The value as an ordinary array (a copy)."""
        return self.to(self.spec.plain).buffer.copy()

    def to(self, spec: TensorSpec) -> Value:
        """The same value in another layout."""
        if spec == self.spec:
            return self
        moved = Value(spec, _buffer(spec), self.notes)
        change = onednn.reorder(FakePlan(), self.spec, spec)
        change.bind([self.buffer], [moved.buffer], aligned_empty(change.scratch))()
        return moved


def _buffer(spec: TensorSpec) -> Any:
    raw = aligned_empty(spec.nbytes)
    raw[:] = 0xFF  # NaN for floats, so that elements that are not written are noticed
    return raw if spec.layout is not None else raw.view(spec.dtype).reshape(spec.shape)


@dataclass
class FakePlan:
    """The part of a plan that kernels see while they are made ready."""

    threads: int = 1
    precision: str = "float32"
    image_order: str = "any order"
    device_id: int = 0
    allow_tf32: bool = False
    builds_later: bool = False
    op_def: OperatorDef = field(default_factory=OperatorDef)
    run: Any = None
    inputs: Sequence[Value] = ()
    constants: Sequence[int] = ()
    trains: bool = True
    engines: Sequence[str] = ("LLVM", "ONEDNN")
    demands: dict[int, str] = field(default_factory=dict)
    notes: dict[int, dict[str, Any]] = field(default_factory=dict)

    def together(self, jobs: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Do jobs one after another."""

        def call() -> None:
            for job in jobs:
                job()

        return call

    def publish(self, output: int, key: str, value: Any) -> None:
        self.notes.setdefault(output, {})[key] = value

    def published(self, input: int, key: str) -> Any:
        return self.inputs[input].notes.get(key) if input < len(self.inputs) else None

    def demand(self, output: int, reads: Sequence[int] = ()) -> str:
        return self.demands.get(output, "run")

    def is_constant(self, input: int) -> bool:
        return input in self.constants

    def may_be_read_by(self, output: int, op_type: str) -> bool:
        return self.trains

    def ends_early(self, output: int, reads: Sequence[int]) -> bool:
        return False

    def repeats(self, input: int) -> bool:
        return False

    def enabled(self, optimization: str) -> bool:
        return True

    def uses_engine(self, name: str) -> bool:
        return name in self.engines


@dataclass
class Bound:
    """A prepared kernel bound to buffers."""

    prepared: Any
    call: Any
    outputs: list[Value]
    reorders: int


def bind(
    make: Any, op: Any, inputs: Sequence[Value], *, inplace: bool | int = False, threads: int = 1,
    precision: str = "float32", op_def: OperatorDef | None = None, context: Any = None, image_order: str = "any order",
    constants: Sequence[int] = (), trains: bool = True, engines: Sequence[str] = FakePlan.engines, **options: Any,
) -> Any:  # fmt: skip
    """Make a kernel ready and bind it; None if it does not serve.

    Args:
        make: ``make(op, ctx, *specs) -> Prepared | None``.
        context: what a kernel that calls plain code runs with.
        constants: the inputs that are declared constant.
        trains: whether operators of the backward pass may read the outputs.
        engines: that may be used.
        inplace: give pairs that the kernel allows one buffer (the inputs are copied first): with True the first pair of
            each output, with a number the pair of this index alone.
    """
    plan = FakePlan(
        threads, precision, image_order, op_def=op_def or OperatorDef(), run=context, inputs=inputs,
        constants=constants, trains=trains, engines=engines,
    )  # fmt: skip
    ready = make(op, plan, *(v.spec for v in inputs), **options)
    if ready is None:
        return None
    assert len(ready.inputs) == len(inputs)
    reorders = sum(1 for have, want in zip(inputs, ready.inputs) if want is not None and want != have.spec)
    ins = [None if want is None else have.to(want).buffer for have, want in zip(inputs, ready.inputs)]
    outs = [None if spec is None else _buffer(spec) for spec in ready.outputs]
    if inplace is not False:
        first = {j: (i, j) for i, j in reversed(ready.inplace)}
        for i, j in first.values() if inplace is True else [ready.inplace[inplace]]:
            assert ready.inputs[i] == ready.outputs[j], "a pair that shares memory has one spec"
            outs[j][...] = ins[i]
            ins[i] = outs[j]
    scratch = aligned_empty(ready.scratch) if ready.scratch else None
    if scratch is not None:
        scratch.fill(0xFF)  # NaN, as other kernels may leave it
    call = ready.bind(ins, outs, scratch)
    values = [Value(s, b, plan.notes.get(j, {})) for j, (s, b) in enumerate(zip(ready.outputs, outs)) if s is not None]
    return Bound(ready, call, values, reorders)


def run(make: Any, op: Any, inputs: Sequence[Value], **options: Any) -> list[Value]:
    """Make ready, bind and call; return the outputs."""
    bound = bind(make, op, inputs, **options)
    assert bound is not None, f"{make.__name__} does not serve {op} of {[v.spec for v in inputs]}"
    bound.call()
    return bound.outputs
