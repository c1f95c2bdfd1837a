"""Values that no kernel writes, because all kernels that read them can compute them (``engines.fusion.Unstored``).

Operators stay what they are: those that read such a value get what it is computed from as further inputs. Whether it is
stored is decided when the kernel of the operators that make it is chosen: all kernels with it and all without it are
made, and the engine says which are faster. Kernels that read the value then are made accordingly.

A value is stored if it is visible, if an operator reads it that has no such kernel, or if something overwrites what it
would be computed from before the last operator reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from netbuilder.engines.fusion import Part, Unstored
from netbuilder.ops.core.contexts import Demand, Prepared
from netbuilder.ops.core.extensions import Rest
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["leave_unstored"]

_PUBLISHED = "unstored"


def leave_unstored(graph: PlanGraph) -> None:
    """Let operators compute what they read, where the engines have rules for that."""
    readers, places = graph.readers(), graph.places()
    making: dict[Node, _Choice] = {}
    reading: dict[Node, _Choice] = {}
    for node in graph.nodes:
        for rule in (each for engine in graph.engines.get(node.first.device[0], ()) for each in engine.unstored()):
            found = None if node in making else _found(graph, rule, node, readers)
            if found is None or any(reader in reading for reader in found.readers):
                continue
            if _overwritten(graph, found, range(places[node] + 1, places[found.readers[-1]] + 1)):
                continue
            making[node] = found
            reading |= dict.fromkeys(found.readers, found)
    instead = {}
    for node in (*making, *reading):
        given = reading.get(node)
        sources = [] if given is None else given.sources
        for value in sources:
            value.readers += 1
        kernel = _Kernel(node, making.get(node), given)
        originals = node.originals if node.fused is not None else [node]
        instead[node] = [Node(node.parts, [*node.inputs, *sources], node.outputs, kernel, originals, node.locations)]
    graph.replace(instead)


@dataclass(eq=False)
class _Choice:
    """Whether a value is stored.

    Args:
        rule: which says how it is computed.
        value: the value.
        sources: what it is computed from.
        maker: the operators that make it.
        readers: those that read it, in order.
        makes: how the kernel of each of these is made.
        computed: whether those that read it compute it.
    """

    rule: Unstored
    value: Value
    sources: list[Value]
    maker: Node
    readers: list[Node]
    makes: dict[Node, Callable[..., Prepared | None]]
    computed: bool = field(default=False, init=False)

    def decide(self, ctx: Any, specs: Sequence[TensorSpec], own: Callable[..., Prepared | None]) -> Prepared | None:
        """Decide it.

        Args:
            ctx: of the operators that make the value.
            specs: of what their kernel is given.
            own: ``own(ctx, stored=)`` returns that kernel.

        Returns:
            The kernel that does not write the value; None: it is stored.
        """
        self.computed = False
        trial = _Trial(ctx, self.maker)
        first, second = own(trial, stored=True), own(trial, stored=False)
        if first is None or second is None:
            return None
        known = {**dict(zip(self.maker.inputs, specs)), **dict(zip(self.maker.outputs, first.outputs))}
        apart, together = [first], [second]
        for node in self.readers:
            given = [known.get(value) or value.spec for value in node.inputs]
            sources = [known.get(value) or value.spec for value in self.sources]
            trial = _Trial(ctx, node)
            stored = _made(node, self.makes[node], trial, given)
            made = self.makes[node](_operators(node), trial, *given, *sources, computes=True, stored=True)
            if stored is None or made is None:
                return None
            apart.append(stored)
            together.append(made)
        what = [_operators(node) for node in (self.maker, *self.readers)]
        key = f"{self.rule.value} stored or computed by {what} of {[str(made.inputs) for made in apart]}"
        self.computed = self.rule.faster(ctx, key, apart, together)
        return second if self.computed else None


class _Kernel:
    """Makes the kernel of operators that make or read a value which may not be stored, or do both.

    Args:
        node: the operators.
        making: the choice for what they make.
        reading: that for what they read.
    """

    def __init__(self, node: Node, making: _Choice | None, reading: _Choice | None) -> None:
        self._node, self._making, self._reading = node, making, reading

    def __call__(self, ctx: Any, *specs: TensorSpec) -> Prepared | None:
        choice = self._making
        if choice is None:
            return self._kernel(ctx, specs, stored=True)
        found = choice.decide(ctx, specs, lambda trial, *, stored: self._kernel(trial, specs, stored=stored))
        # Kernels that read it are made again if this changes.
        ctx.publish(self._node.outputs.index(choice.value), _PUBLISHED, choice.computed)
        return found or self._kernel(ctx, specs, stored=True)

    def _kernel(self, ctx: Any, specs: Sequence[TensorSpec], *, stored: bool) -> Prepared | None:
        node, reading = self._node, self._reading
        computes = reading is not None and reading.computed
        choice = reading if computes or self._making is None else self._making
        assert choice is not None
        if computes or not stored:
            given = specs if computes else specs[: len(node.inputs)]
            made = choice.makes[node](_operators(node), ctx, *given, computes=computes, stored=stored)
        else:
            given = specs[: len(node.inputs)]
            made = None if node.fused is None else node.fused(ctx, *given)
        return None if made is None else _with_unread(made, len(node.inputs), len(specs) - len(given))


def _with_unread(made: Prepared, inputs: int, count: int) -> Prepared:
    """Add inputs that a kernel does not read, after its own."""
    if count:
        made.inputs = [*made.inputs, *[None] * count]
        rest = made.get(Rest)
        if rest is not None:
            reads = [i if i < inputs else i + count for i in rest.reads]
            made.extend(Rest(rest.work, reads, rest.writes))
    return made


class _Trial:
    """The context of a kernel that is made to be compared: nothing else of the plan sees it."""

    def __init__(self, ctx: Any, node: Node) -> None:
        self._ctx, self.op_def = ctx, node.first.op_def

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def publish(self, output: int, key: str, value: Any) -> None:
        pass

    def published(self, input: int, key: str) -> Any:
        return None

    def demand(self, output: int, reads: Sequence[int] = ()) -> Demand:
        return "run"


def _made(
    node: Node, make: Callable[..., Prepared | None], ctx: Any, specs: Sequence[TensorSpec | None]
) -> Prepared | None:
    """Return the kernel of a node that reads all of its inputs."""
    if node.fused is not None:
        return node.fused(ctx, *specs)
    return make(_operators(node), ctx, *specs, computes=False, stored=True)


def _operators(node: Node) -> list[Any]:
    return [part.op for part in node.parts]


def _found(graph: PlanGraph, rule: Unstored, node: Node, readers: Mapping[Value, Sequence[Node]]) -> _Choice | None:
    """Return the choice by a rule for a value that a node makes; None if the rule does not apply."""
    for text, make in rule.makers.items():
        names = _bound(Part.parse(text), node, {})
        value = None if names is None else names[rule.value]
        if names is None or value is None or graph.visible(value) or not readers.get(value):
            continue
        own = list(dict.fromkeys(readers[value]))
        makes = {node: make}
        for reader in own:
            of_reader = next(
                (each for text, each in rule.readers.items() if _bound(Part.parse(text), reader, names)), None
            )
            if of_reader is None or reader.first.device != node.first.device:
                break
            makes[reader] = of_reader
        else:
            return _Choice(rule, value, [names[name] for name in rule.sources.split()], node, own, makes)
    return None


def _bound(part: Part, node: Node, known: Mapping[str, Value]) -> dict[str, Value] | None:
    """Return the values of an operator by their names in a rule; None if it is another one, or has other values."""
    if tuple(each.op_def.type for each in node.parts) != part.types:
        return None
    found = dict(known)
    for names, values in ((part.inputs, node.inputs), (part.outputs, node.outputs)):
        open_ended = bool(names) and names[-1][0] == "*"
        own = names[:-1] if open_ended else names
        if len(values) < len(own) or len(values) > len(own) and not open_ended:
            return None
        if any(found.setdefault(name, value) is not value for name, value in zip(own, values)):
            return None
    return found


def _overwritten(graph: PlanGraph, choice: _Choice, places: range) -> bool:
    """Whether some operators overwrite what a value is computed from."""
    names = {value.name for value in choice.sources}
    return any(value.name in names for i in places for value in graph.nodes[i].outputs)
