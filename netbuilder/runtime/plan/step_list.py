"""The steps of a plan, with copies of values that a kernel reads in another layout or at another location.

Small work of many operators becomes few steps, where their kernels say how (``Joinable``). Values that are there before
the plan runs, such as parameters, are copied to other layouts together, before the first copy is read. What kernels
leave to a later one (``Rest``), such as the running averages of normalizations, is done together, as late as possible:
before it is read or overwritten, or at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from netbuilder.ops.core.contexts import Deferred, Joinable, Prepared, Rest
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.engines.layouts import Location, prepare_reorder
from netbuilder.runtime.plan.dead_outputs import deferred_value
from netbuilder.runtime.plan.node_context import NodeContext
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.plain_kernels import transfer
from netbuilder.runtime.plan.static_segment import with_known
from netbuilder.runtime.plan.values import Node, Step, StepKind, Value

__all__ = ["StepList"]

_Key = tuple[str, int, Location]
"""Work that may be one step: of one kind, in one lane, at one location."""


@dataclass(frozen=True, eq=False)
class _Left:
    """What the kernel of a node has left to a later one."""

    node: Node
    rest: Rest
    ctx: NodeContext

    @property
    def reads(self) -> list[Value]:
        values = [*self.node.inputs, *self.node.outputs]
        return [values[i] for i in self.rest.reads]

    @property
    def writes(self) -> list[Value]:
        return [self.node.outputs[j] for j in self.rest.writes]

    def must_precede(self, node: Node) -> bool:
        """Whether a later node reads what is left, or overwrites what that is computed from."""
        written, names = self.writes, {value.name for value in (*self.reads, *self.writes)}
        if any(value is each for value in node.inputs for each in written):
            return True
        control = {name for part in node.parts for name in part.control}
        return any(value.name in names for value in node.outputs) or any(value.name in control for value in written)


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
        joins = options.enabled("joined_small_kernels")
        self._joins_rests = joins
        self._joins_copies = joins and options.memory_budget is None  # each must be made again by itself
        self._copies: dict[_Key, tuple[Step, list[Joinable]]] = {}
        self._left: dict[_Key, list[_Left]] = {}

    def add(self, node: Node, prepared: Prepared, lane: int, ctx: NodeContext) -> None:
        """Append the step of a node, after the copies that it reads."""
        for key, left in [*self._left.items()]:
            if any(each.must_precede(node) for each in left):
                self._do_rest(key)
        self._append(node, prepared, lane, ctx)
        if prepared.rest is not None:
            key = (prepared.rest.work.kind, lane, node.first.location)
            self._left.setdefault(key, []).append(_Left(node, prepared.rest, ctx))
            if not self._joins_rests:
                self._do_rest(key)

    def finish(self) -> None:
        """Do what is left, after all nodes have been added."""
        for key in [*self._left]:
            self._do_rest(key)
        for step, works in self._copies.values():
            if len(works) > 1:
                step.prepared = works[0].make([work.member for work in works])

    def _do_rest(self, key: _Key) -> None:
        """Append the step that does what kernels have left."""
        left = self._left.pop(key)
        inputs = [value for each in left for value in each.reads]
        outputs = [value for each in left for value in each.writes]
        location = left[0].node.first.location
        node = Node([each.node.first for each in left], inputs, outputs, locations=[location] * len(inputs))
        prepared = left[0].rest.work.make([each.rest.work.member for each in left])
        self._append(node, prepared, key[1], left[-1].ctx, StepKind.REST)

    def _append(
        self, node: Node, prepared: Prepared, lane: int, ctx: NodeContext, kind: StepKind = StepKind.COMPUTE
    ) -> None:
        ins = [
            None if expected is None else self._converted(value, expected, node.input_location(i), node, lane, ctx)
            for i, (value, expected) in enumerate(zip(node.inputs, prepared.inputs))
        ]
        if not self._enabled("inplace"):
            prepared.inplace = ()
        step = Step(node, prepared, ins, [*node.outputs], lane, kind)
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
            if not self._joined(step, value, copy):
                (self.steps if copy.constant is None else self.constant_steps).append(step)
        return copy

    def _joined(self, step: Step, value: Value, copy: Value) -> bool:
        """Whether the copy of a value has become part of an earlier step; later ones may become part of this one."""
        work = step.prepared.joinable
        if work is None or not self._joins_copies or value.producer is not None or copy.constant is not None:
            return False
        first, works = self._copies.setdefault((work.kind, step.lane, copy.location), (step, []))
        works.append(work)
        if first is not step:
            first.inputs.append(value)
            first.outputs.append(copy)
            copy.producer = first
        return first is not step


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
