"""Fusion: neighboring operators become one kernel where the values between them are not visible.

A value is visible if it is the last version of its name and the name is observable. The engines' tables have the rules
(`netbuilder.engines.fusion.Fusion`), which one matcher applies: it visits the operators in order and tries the rules
whose last operator has this type, from the last operator back along the edges; then again, with the rules that are for
operators as the others have joined them. What every rule needs is checked here:
that nobody misses a value that the kernel does not write, and that operators may move to where the kernel runs.

A ``Dropout`` in test mode is removed: operators that read its output read its input instead. So is an ``AddGradient``
that sums nothing: the gradients are that of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from netbuilder.engines.fusion import Condition, Fusion
from netbuilder.engines.layouts import on_location
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.registry import plain_kernel
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.optimizations import optimization
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["fuse"]


def fuse(graph: PlanGraph) -> None:
    """Fuse neighbors where a kernel for both exists; the inputs of nodes that read the output of a removed one change.

    Raises:
        NetError: the optimization that a fusion belongs to is not in ``runtime.plan.optimizations``.
    """
    fusions = {kind: [each for engine in found for each in engine.fusions()] for kind, found in graph.engines.items()}
    for fusion in (each for found in fusions.values() for each in found):
        optimization(fusion.optimization, f"fusion of {', '.join(fusion.types)}")
    matcher = _Matcher(graph, fusions)
    for of_joined in (False, True):
        for node in matcher.result():
            matcher.visit(node, of_joined=of_joined)
    graph.nodes = matcher.result()


@dataclass(frozen=True, eq=False)
class _Bound:
    """Operators of the types of a rule, connected by its edges.

    Args:
        nodes: the operators, in order.
        values: by name.
        others: what ``*name`` stands for.
    """

    nodes: Sequence[Node]
    values: Mapping[str, Value]
    others: Mapping[str, Sequence[Value]]

    def all(self, names: Iterable[str]) -> list[Value]:
        """Return the values of names."""
        return [each for name in names for each in (self.others[name] if name[0] == "*" else (self.values[name],))]


class _Matcher:
    """The nodes while they are being fused, with the producer and the readers of each value at this point."""

    def __init__(self, graph: PlanGraph, fusions: dict[int, list[Fusion]]) -> None:
        self._graph = graph
        self._by_last: dict[tuple[int, bool, tuple[str, ...]], list[Fusion]] = {}  # and by the last operator's types
        for kind, found in fusions.items():
            for fusion in found:
                if graph.options.enabled(fusion.optimization):
                    self._by_last.setdefault((kind, fusion.of_joined, fusion.parts[-1].types), []).append(fusion)
        self._nodes: list[Node | None] = list(graph.nodes)
        self._index = graph.places()
        self._origin = graph.makers()
        self._maker = dict(self._origin)
        self._readers = {value: [self._index[node] for node in nodes] for value, nodes in graph.readers().items()}
        self._deferring: set[Node] = set()  # those whose kernels let a value be computed when it is fetched
        self._types: dict[Node, tuple[str, ...]] = {}
        self._replacement: dict[Value, Value] = {}  # value -> the one to read instead

    def result(self) -> list[Node]:
        return [node for node in self._nodes if node is not None]

    def visit(self, node: Node, *, of_joined: bool) -> None:
        """Fuse a node with others, or remove it, if possible, by the rules that are for joined operators or not."""
        if self._replacement:
            node.inputs = [self._replacement.get(value, value) for value in node.inputs]
        op: Any = node.first.op
        op_type = node.first.op_def.type
        enabled = self._graph.options.enabled
        if op_type == "Dropout" and enabled("dropout_in_test_mode") and op.is_test:
            self._remove_copy(node, node.outputs[:1])
        if op_type == "AddGradient" and enabled("gradients_of_add"):
            shapes = {value.spec.shape if value.spec is not None else None for value in node.inputs}
            if len(shapes) == 1:
                self._remove_copy(node, node.outputs)
        for fusion in self._by_last.get((node.first.device[0], of_joined, self._types_of(node)), ()):
            bound = self._bind(node, fusion)
            if bound is not None and self._applies(bound, fusion):
                self._apply(bound, fusion)
                return

    def _applies(self, bound: _Bound, fusion: Fusion) -> bool:
        """Whether everything is true that a rule needs."""
        written = bound.all(fusion.outputs)
        return (
            len({value.name for value in written}) == len(written)
            and self._deferring.isdisjoint(bound.nodes)
            and self._nobody_misses(bound, fusion)
            and self._may_move(bound, fusion)
            and all(self._fulfills(bound, name, condition) for name, condition in fusion.conditions.items())
        )

    def _bind(self, last: Node, fusion: Fusion) -> _Bound | None:
        """Return the operators of a rule that end with this one; None if there are none."""
        values: dict[str, Value] = {}
        others: dict[str, Sequence[Value]] = {}
        nodes: list[Node] = []
        for part in reversed(fusion.parts):
            node: Node | None = last
            if nodes:
                node = self._maker.get(next(values[name] for name in part.outputs if name in values))
            if node is None or self._types_of(node) != part.types:
                return None
            inputs = self._later_first(node) if part.either_order else node.inputs
            if node.first.device != last.first.device or not inputs and part.inputs:
                return None
            for names, found in ((part.inputs, inputs), (part.outputs, node.outputs)):
                more = names[-1:] if names and names[-1][0] == "*" else ()
                count = len(names) - len(more)
                if len(found) < count or len(found) > count and not more:
                    return None
                for name, value in zip(names[:count], found):
                    if values.setdefault(name, value) is not value:
                        return None
                for name in more:
                    others[name] = found[count:]
            nodes.append(node)
        return _Bound(nodes[::-1], values, others)

    def _types_of(self, node: Node) -> tuple[str, ...]:
        found = self._types.get(node)
        if found is None:
            found = self._types[node] = tuple(each.op_def.type for each in node.parts)
        return found

    def _later_first(self, node: Node) -> Sequence[Value]:
        """Return the two inputs of a node, first the one that is made later; () if one node, or none, makes them."""
        made = [self._maker.get(value) for value in node.inputs]
        if len(made) != 2 or made[0] is made[1]:
            return ()
        first, second = (-1 if each is None else self._index[each] for each in made)
        return node.inputs if first > second else node.inputs[::-1]

    def _nobody_misses(self, bound: _Bound, fusion: Fusion) -> bool:
        """Whether the values that the kernel does not write are read by these operators alone, and not visible."""
        for number, (part, node) in enumerate(zip(fusion.parts, bound.nodes)):
            for name in part.outputs:
                if name in fusion.outputs:
                    continue
                value = bound.values[name]
                deferred = fusion.conditions.get(name) is Condition.WHEN_FETCHED
                if value.readers != 1 or self._graph.visible(value) and not deferred:
                    return False
                if number == fusion.place and any(each.name == value.name for each in node.inputs):
                    return False  # the operator at whose place the kernel runs is itself in place
        return True

    def _may_move(self, bound: _Bound, fusion: Fusion) -> bool:
        """Whether the operators may run where the kernel does: nothing that they read is missing or overwritten there.

        One that comes later writes the first version of a name there, or overwrites a value that nobody else needs.
        """
        nodes, place = bound.nodes, bound.nodes[fusion.place]
        at, own = self._index[place], {self._index[node] for node in nodes}
        made = [self._maker.get(value) for value in bound.all(fusion.inputs)]
        if any(node is not None and self._index[node] > at for node in made):
            return False
        for node in nodes[: fusion.place]:
            names = {value.name for value in node.inputs}
            between = (self._nodes[i] for i in range(self._index[node] + 1, at) if i not in own)
            if any(value.name in names for each in between if each is not None for value in each.outputs):
                return False
            if any(i < at and i not in own for value in node.outputs for i in self._readers.get(value, ())):
                return False
        return all(
            value.version == 0 or self._overwrites(value, node, place, bound, fusion)
            for node in nodes[fusion.place + 1 :]
            for value in node.outputs
        )

    def _overwrites(self, value: Value, node: Node, place: Node, bound: _Bound, fusion: Fusion) -> bool:
        """Whether an output takes the place of an input that nobody else needs from where the kernel runs on."""
        written = bound.all(fusion.outputs)
        for before in node.inputs:
            if before.name == value.name and before not in written:
                return self._maker.get(before) in bound.nodes or self._ends_at(before, place, node)
        return False

    def _fulfills(self, bound: _Bound, name: str, condition: Condition) -> bool:
        """Whether a condition is true of a value."""
        value, first = bound.values[name], bound.nodes[0]
        if condition is Condition.OVERWRITTEN:
            return self._ends_at(value, first, bound.nodes[-1])
        if condition is Condition.CONSTANT:
            return value.constant is not None
        if condition is Condition.READ_LAST:
            return all(i <= self._index[first] for i in self._readers[value])
        if condition is Condition.OF_ACTIVATION:
            forward = self._origin.get(first.inputs[0])
            return (
                forward is not None
                and f"{forward.first.op_def.type}Gradient" == first.first.op_def.type
                and self._origin.get(forward.inputs[0]) is self._origin.get(value)
            )
        before = _overwritten_by(value, self._maker[value])
        external = before is not None and before.version == 0 and before.blob is not None  # a plan must not alter it
        return not self._graph.visible(value) or before is not None and not external

    def _when_fetched(self, bound: _Bound, name: str) -> Callable[[], None]:
        """Return a function that lets a value be computed when it is fetched."""
        value = bound.values[name]
        node = self._maker[value]
        before, reads = _overwritten_by(value, node), tuple(node.inputs)

        def defer() -> None:
            value.lazy, value.lazy_from, value.lazy_reads, value.guarded = _plain_run(node), before, reads, True

        return defer

    def _apply(self, bound: _Bound, fusion: Fusion) -> None:
        """Replace the operators of a rule by one node."""
        nodes, inputs, outputs = bound.nodes, bound.all(fusion.inputs), bound.all(fusion.outputs)
        operators = [part.op for node in nodes for part in node.parts]
        main, further = nodes[fusion.main].first.op, [operators[i] for i in fusion.further]
        deferred = [
            self._when_fetched(bound, name)
            for name, condition in fusion.conditions.items()
            if condition is Condition.WHEN_FETCHED and self._graph.visible(bound.values[name])
        ]

        def maker(ctx: Any, *specs: Any) -> Prepared | None:
            prepared = fusion.make(main, *further, ctx, *specs)
            for defer in deferred if prepared is not None else ():
                defer()
            return prepared

        named = nodes if fusion.main == 0 else nodes[::-1]  # messages name the main operator
        node = Node([part for each in named for part in each.parts], inputs, outputs, maker, originals=[*nodes])
        if deferred:
            self._deferring.add(node)
        index, old = self._index[nodes[fusion.place]], {self._index[each] for each in nodes}
        for each in old:
            self._nodes[each] = None
        self._nodes[index] = node
        self._index[node] = index
        for value in {value for each in nodes for value in each.inputs}.union(inputs):
            others = [i for i in self._readers.get(value, ()) if i not in old]
            self._readers[value] = sorted([*others, *[index] * inputs.count(value)])
        for value in outputs:
            self._maker[value] = node

    def _ends_at(self, value: Value, front: Node, back: Node) -> bool:
        """Whether nobody needs a value from ``front`` on but ``back``, which will be a part of ``front``."""
        here, own = self._index[front], self._index[back]
        return not self._graph.visible(value) and all(i < here or i == own for i in self._readers[value])

    def _remove_copy(self, node: Node, outputs: Sequence[Value]) -> None:
        """Remove a node of which some outputs equal its first input: their readers read that instead.

        Further outputs are read by nobody.
        """
        x, visible = node.inputs[0], self._graph.visible
        if any(visible(y) or y.readers and y not in outputs for y in node.outputs):
            return
        if any(x.name != y.name for y in outputs) and self._graph.last[x.name] is not x:
            return  # the input might be overwritten before the readers of the outputs run
        own = self._index[node]
        for value in node.inputs:
            value.readers -= 1
            self._readers[value] = [i for i in self._readers.get(value, ()) if i != own]
        for y in outputs:
            x.readers += y.readers
            self._readers[x] = sorted([*self._readers[x], *self._readers.get(y, ())])
            self._replacement[y] = x
        self._nodes[own] = None


def _overwritten_by(value: Value, node: Node) -> Value | None:
    """Return the input that an output of a node overwrites; None if it has a name of its own."""
    return next((before for before in node.inputs if before.name == value.name), None)


def _plain_run(node: Node) -> Callable[[], Any]:
    """Return a function that computes the first output of an operator that was fused away."""
    instruction, inputs = node.first, tuple(node.inputs)
    kernel = plain_kernel(instruction.op_def.type, instruction.device[0])
    context = KernelContext(instruction.op_def, device=instruction.device)
    assert kernel is not None

    def compute() -> Any:
        with on_location(instruction.location):
            return kernel(instruction.op, context, *(value.plain() for value in inputs))[0]

    return compute
