"""The steps of a plan, with copies of values that a kernel reads in another layout or at another location."""

from __future__ import annotations

from netbuilder.ops.core.contexts import Deferred, Prepared
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.engines.layouts import Location, prepare_reorder
from netbuilder.runtime.plan.dead_outputs import deferred_value
from netbuilder.runtime.plan.node_context import NodeContext
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.plain_kernels import transfer
from netbuilder.runtime.plan.static_segment import with_known
from netbuilder.runtime.plan.values import Node, Step, StepKind, Value

__all__ = ["StepList"]


class StepList:
    """The steps so far; before a step, inserts copies of inputs that it reads in another layout or at another location.

    Attributes:
        steps: the steps of each run.
        constant_steps: the steps that copy constants, which run when the plan is made.
    """

    def __init__(self, values: list[Value], options: PlanOptions) -> None:
        self.steps: list[Step] = []
        self.constant_steps: list[Step] = []
        self._values = values
        self._enabled = options.enabled

    def add(self, node: Node, prepared: Prepared, lane: int, ctx: NodeContext) -> None:
        """Append the step of a node, after the copies that it reads."""
        ins = [
            None if expected is None else self._converted(value, expected, node.input_location(i), node, lane, ctx)
            for i, (value, expected) in enumerate(zip(node.inputs, prepared.inputs))
        ]
        if not self._enabled("inplace"):
            prepared.inplace = ()
        step = Step(node, prepared, ins, [*node.outputs], lane)
        conversions: list[Step] = []
        for j, value in enumerate(node.outputs):
            spec = prepared.outputs[j] if j < len(prepared.outputs) else None
            if spec is None:
                step.outputs[j] = None
                if j in prepared.deferred:
                    _defer(value, prepared.deferred[j], node, ctx)
                continue
            value.spec = with_known(spec, value.spec)
            value.producer = step
            if j in prepared.deferred:
                _defer(value, prepared.deferred[j], node, ctx)
                continue
            if value.spec.layout is not None and not self._enabled("blocked_layouts"):
                conversions.append(self._emit_plain(step, j, ctx))
        _share(step)
        self.steps += [step, *conversions]

    def _emit_plain(self, step: Step, j: int, ctx: NodeContext) -> Step:
        """Make a step write output ``j`` to an intermediate value; return the step that converts it to plain order."""
        value = step.outputs[j]
        assert value is not None and value.spec is not None
        written, value.spec = value.spec, value.spec.plain
        intermediate = Value(value.name, value.version, written, None, value.location, producer=step, intermediate=True)
        self._values.append(intermediate)
        step.outputs[j] = intermediate
        made = Step(
            step.node,
            prepare_reorder(ctx, written, value.spec, value.location),
            [intermediate],
            [value],
            step.lane,
            StepKind.RESTORE,
        )
        value.producer = made
        return made

    def _converted(
        self, value: Value, expected: TensorSpec, location: Location, node: Node, lane: int, ctx: NodeContext
    ) -> Value:
        """Return ``value`` in the layout and at the location where a kernel reads it: itself, or a copy, made once."""
        assert value.spec is not None
        if value.spec.dtype == STRING:
            return value
        if value.location != location:  # only row-major values are copied between devices
            value = self._copy(value, value.spec.plain, value.location, node, lane, ctx)
            value = self._copy(value, expected.plain, location, node, lane, ctx)
        return self._copy(value, expected, location, node, lane, ctx)

    def _copy(
        self, value: Value, expected: TensorSpec, location: Location, node: Node, lane: int, ctx: NodeContext
    ) -> Value:
        if value.spec == expected and value.location == location:
            return value
        key = (expected.layout, location)
        copy = value.copies.get(key)
        if copy is None or not self._enabled("shared_copies"):
            assert value.spec is not None
            if location != value.location:
                prepared, kind = transfer(value.spec, value.location, location), StepKind.TRANSFER
            else:
                prepared, kind = prepare_reorder(ctx, value.spec, expected, location), StepKind.REORDER
            copy = Value(value.name, value.version, expected, None, location)
            copy.published, copy.constant = value.published, value.constant
            step = Step(node, prepared, [value], [copy], lane, kind)
            copy.producer = step
            value.copies[key] = copy
            self._values.append(copy)
            (self.steps if copy.constant is None else self.constant_steps).append(step)
        return copy


def _defer(value: Value, deferred: Deferred, node: Node, ctx: NodeContext) -> None:
    """Set how a value that no kernel writes is computed when it is fetched."""
    value.lazy = deferred_value(deferred, node.inputs, ctx.threads, node.first.location)
    value.lazy_reads = tuple(node.inputs[i] for i in deferred.reads)
    value.guarded = True


def _share(step: Step) -> None:
    """Let outputs share the buffer of an input of the same name, where the kernel can overwrite it."""
    allowed = set() if step.prepared.copies_in_place else set(step.prepared.inplace)
    for j, out in enumerate(step.outputs):
        if out is None:
            continue
        for i, value in enumerate(step.inputs):
            if value is None or value.name != out.name or (i, j) not in allowed:
                continue
            original = step.node.inputs[i]
            if value is original and value.spec == out.spec and value.location == out.location:
                if value.version == out.version - 1:
                    out.shares = value
                    break
