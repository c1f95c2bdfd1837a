"""The steps of a plan, with copies of values that a kernel reads in another layout or at another location.

Small work of many operators becomes few steps, where their kernels say how (``Joinable``). Values that are there before
the plan runs, such as parameters, are copied to other layouts together, before the first copy is read; other values,
such as gradients, together with what the same kernel reads. What kernels leave to a later one (``Rest``), such as the
running averages of normalizations, is done together, as late as possible: before it is read or overwritten, or at the
end.
"""

from __future__ import annotations

from netbuilder.engines.layouts import Location, prepare_reorder
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import CopiesInPlace, Deferred, DeferredOutputs, Joinable, Rest
from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.runtime.plan.dead_outputs import deferred_value
from netbuilder.runtime.plan.node_context import NodeContext
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.plain_kernels import transfer
from netbuilder.runtime.plan.static_range import with_known
from netbuilder.runtime.plan.values import Node, Step, StepKind, Value

__all__ = ["StepList"]

_Key = tuple[str, int, Location]
"""Work that may be one step: of one kind, in one lane, at one location."""

_Copies = dict[_Key, tuple[Step, list[Joinable]]]
"""The step of copies that others can become part of, and the work of all of them."""


class _Left:
    """What kernels have left to a later one.

    Attributes:
        works: what it has to do.
        inputs, outputs: what that reads and writes.
        parts: the operators.
        ctx: of one of them.
    """

    def __init__(self) -> None:
        self.works: list[Joinable] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.parts: list[Instruction] = []
        self.ctx: NodeContext | None = None
        self._written: set[Value] = set()
        self._names: set[str] = set()  # of outputs
        self._touched: set[str] = set()  # names of inputs and outputs

    def add(self, node: Node, rest: Rest, ctx: NodeContext) -> None:
        values = [*node.inputs, *node.outputs]
        reads, writes = [values[i] for i in rest.reads], [node.outputs[j] for j in rest.writes]
        self.works.append(rest.work)
        self.parts.append(node.first)
        self.inputs += reads
        self.outputs += writes
        self.ctx = ctx
        self._written.update(writes)
        self._names |= {value.name for value in writes}
        self._touched |= {value.name for value in (*reads, *writes)}

    def must_precede(self, node: Node) -> bool:
        """Whether a later node reads what is left, or overwrites what that is computed from."""
        return (
            any(value in self._written for value in node.inputs)
            or any(value.name in self._touched for value in node.outputs)
            or any(name in self._names for part in node.parts for name in part.control)
        )


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
        self._joins = options.enabled("joined_small_kernels")
        self._joins_copies = self._joins and options.memory_budget is None  # which makes a copy again by itself
        self._of_plan: _Copies = {}
        self._of_node: _Copies = {}
        self._joined: list[tuple[Step, list[Joinable]]] = []
        self._left: dict[_Key, _Left] = {}

    def add(self, node: Node, prepared: Prepared, lane: int, ctx: NodeContext) -> None:
        """Append the step of a node, after the copies that it reads."""
        for key, left in [*self._left.items()]:
            if left.must_precede(node):
                self._do_rest(key)
        self._append(node, prepared, lane, ctx)
        rest = prepared.get(Rest)
        if rest is not None:
            key = (rest.work.kind, lane, node.first.location)
            self._left.setdefault(key, _Left()).add(node, rest, ctx)
            if not self._joins:
                self._do_rest(key)

    def finish(self) -> None:
        """Do what is left, after all nodes have been added."""
        for key in [*self._left]:
            self._do_rest(key)
        for step, works in self._joined:
            if len(works) > 1:
                step.prepared = works[0].make([work.member for work in works])

    def _do_rest(self, key: _Key) -> None:
        """Append the step that does what kernels have left."""
        left = self._left.pop(key)
        assert left.ctx is not None
        node = Node(left.parts, left.inputs, left.outputs, locations=[left.parts[0].location] * len(left.inputs))
        prepared = left.works[0].make([work.member for work in left.works])
        self._append(node, prepared, key[1], left.ctx, StepKind.REST)

    def _append(
        self, node: Node, prepared: Prepared, lane: int, ctx: NodeContext, kind: StepKind = StepKind.COMPUTE
    ) -> None:
        self._of_node = {}
        ins = [
            None if expected is None else self._converted(value, expected, node.input_location(i), node, lane, ctx)
            for i, (value, expected) in enumerate(zip(node.inputs, prepared.inputs))
        ]
        if not self._enabled("inplace"):
            prepared.inplace = ()
        step = Step(node, prepared, ins, [*node.outputs], lane, kind)
        conversions: list[Step] = []
        deferred = prepared.get(DeferredOutputs)
        recipes = deferred.recipes if deferred is not None else {}
        for j, value in enumerate(node.outputs):
            spec = prepared.outputs[j] if j < len(prepared.outputs) else None
            if spec is None:
                step.outputs[j] = None
                if j in recipes:
                    _defer(value, recipes[j], node, ctx)
                continue
            value.spec = with_known(spec, value.spec)
            value.producer = step
            if j in recipes:
                _defer(value, recipes[j], node, ctx)
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
            if not self._is_joined(step, value, copy):
                (self.steps if copy.constant is None else self.constant_steps).append(step)
        return copy

    def _is_joined(self, step: Step, value: Value, copy: Value) -> bool:
        """Whether the copy of a value has become part of an earlier step; later ones may become part of this one.

        The earlier one is before the first copy of the plan, or before the first one that the same node reads.
        """
        work = step.prepared.get(Joinable)
        if work is None or not self._joins_copies or copy.constant is not None:
            return False
        copies = self._of_plan
        if value.producer is not None:
            if not any(value is each for each in step.node.inputs):
                return False  # it has just been copied to this location
            copies = self._of_node
        key = (work.kind, step.lane, copy.location)
        if key not in copies:
            copies[key] = step, []
            self._joined.append(copies[key])
        first, works = copies[key]
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
    allowed = set() if step.prepared.get(CopiesInPlace) else set(step.prepared.inplace)
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
