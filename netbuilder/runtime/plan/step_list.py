"""The steps of a plan, with a copy before each that wants a value in another layout or place."""

from __future__ import annotations

from netbuilder.ops.core.contexts import Later, Prepared
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.engines.layouts import HOST, Location, prepare_reorder
from netbuilder.runtime.plan.dead_outputs import late_value
from netbuilder.runtime.plan.node_context import NodeContext
from netbuilder.runtime.plan.options import Setting
from netbuilder.runtime.plan.plain_kernels import transfer
from netbuilder.runtime.plan.static_segment import with_known
from netbuilder.runtime.plan.values import Node, Step, StepKind, Value

__all__ = ["StepList"]


class StepList:
    """The steps so far; puts a copy before a step wherever it wants a value in another layout or place.

    Copies of constants are kept in ``once``, apart from the steps of each run.
    """

    def __init__(self, values: list[Value], setting: Setting) -> None:
        self.made: list[Step] = []
        self.once: list[Step] = []
        self._values = values
        self._does = setting.does

    def add(self, node: Node, prepared: Prepared, lane: int, ctx: NodeContext) -> None:
        """Append the step of a node, behind the copies that it reads."""
        ins = [
            None if wanted is None else self._in_form(value, wanted, _wanted_at(node, i), node, lane, ctx)
            for i, (value, wanted) in enumerate(zip(node.inputs, prepared.inputs))
        ]
        if not self._does("inplace"):
            prepared.inplace = ()
        step = Step(node, prepared, ins, [*node.outputs], lane)
        straightened: list[Step] = []
        for j, value in enumerate(node.outputs):
            spec = prepared.outputs[j] if j < len(prepared.outputs) else None
            if spec is None:
                step.outputs[j] = None
                if j in prepared.later:
                    _leave(value, prepared.later[j], node, ctx)
                continue
            value.spec = with_known(spec, value.spec)
            value.producer = step
            if value.spec.layout is not None and not self._does("blocked_layouts"):
                straightened.append(self._straightened(step, j, ctx))
        _share(step)
        self.made += [step, *straightened]

    def _straightened(self, step: Step, j: int, ctx: NodeContext) -> Step:
        """Let a step write what nobody else reads, and return the one that puts it in plain order."""
        value = step.outputs[j]
        assert value is not None and value.spec is not None
        written, value.spec = value.spec, value.spec.plain
        passing = Value(value.name, value.version, written, None, value.location, producer=step, passing=True)
        self._values.append(passing)
        step.outputs[j] = passing
        made = Step(
            step.node,
            prepare_reorder(ctx, written, value.spec, value.location),
            [passing],
            [value],
            step.lane,
            StepKind.RESTORE,
        )
        value.producer = made
        return made

    def _in_form(
        self, value: Value, wanted: TensorSpec, location: Location, node: Node, lane: int, ctx: NodeContext
    ) -> Value:
        """Return ``value`` in the layout and place that a kernel wants: itself, or a copy, made once."""
        assert value.spec is not None
        if value.spec.dtype == STRING:
            return value
        if value.location != location:  # only plain values travel
            value = self._copy(value, value.spec.plain, value.location, node, lane, ctx)
            value = self._copy(value, wanted.plain, location, node, lane, ctx)
        return self._copy(value, wanted, location, node, lane, ctx)

    def _copy(
        self, value: Value, wanted: TensorSpec, location: Location, node: Node, lane: int, ctx: NodeContext
    ) -> Value:
        if value.spec == wanted and value.location == location:
            return value
        key = (wanted.layout, location)
        copy = value.copies.get(key)
        if copy is None or not self._does("shared_copies"):
            assert value.spec is not None
            if location != value.location:
                prepared, kind = transfer(value.spec, value.location, location), StepKind.TRANSFER
            else:
                prepared, kind = prepare_reorder(ctx, value.spec, wanted, location), StepKind.REORDER
            copy = Value(value.name, value.version, wanted, None, location)
            copy.published, copy.constant = value.published, value.constant
            step = Step(node, prepared, [value], [copy], lane, kind)
            copy.producer = step
            value.copies[key] = copy
            self._values.append(copy)
            (self.made if copy.constant is None else self.once).append(step)
        return copy


def _wanted_at(node: Node, index: int) -> Location:
    """Return where the kernel of a node wants an input."""
    own = node.first.location
    place = "here" if own == HOST else node.first.op.input_place(index)
    return own if place == "here" else HOST if place == "host" else node.inputs[index].location


def _leave(value: Value, later: Later, node: Node, ctx: NodeContext) -> None:
    """Leave a value to be computed when it is fetched."""
    value.lazy = late_value(later, node.inputs, ctx.threads)
    value.lazy_reads = tuple(node.inputs[i] for i in later.reads)
    value.guarded = True


def _share(step: Step) -> None:
    """Let outputs that overwrite an input of the same name keep its buffer, where the kernel can."""
    allowed = set(step.prepared.inplace)
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
