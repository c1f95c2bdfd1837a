"""Values that no kernel writes, because all kernels that read them can compute them (``engines.fusion.Unstored``).

Operators stay what they are: those that read such a value get what it is computed from as further inputs. Whether it is
stored is decided when the kernel of the operators that make it is chosen: all kernels with it and all without it are
made, and the engine says which are faster. Kernels that read the value then are made accordingly.

A value is stored if it is visible, if an operator reads it that has no such kernel, or if something overwrites what it
would be computed from before the last operator reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from netbuilder.engines.fusion import Make, Part, Unstored
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
            if _overwritten(graph, found, range(places[node], places[found.readers[-1]] + 1)):
                continue
            making[node] = found
            reading |= dict.fromkeys(found.readers, found)
    for choice in making.values():
        for value in choice.sources:
            value.readers += len(choice.readers)
    graph.replace({node: [_chosen(node, making.get(node), reading.get(node))] for node in (*making, *reading)})


@dataclass(eq=False)
class _Choice:
    """Whether a value is stored.

    Args:
        rule: which says how it is computed.
        value: the value.
        sources: what it is computed from.
        readers: the nodes that read it, in order.
        makes: how the kernel of each of these is made, and of those that make the value; of their originals, too.
        computing: the nodes whose kernels compute the value; none: it is stored.
    """

    rule: Unstored
    value: Value
    sources: list[Value]
    readers: list[Node]
    makes: dict[Node, Make]
    computing: list[Node] = field(default_factory=list, init=False)

    def decide(self, ctx: Any, maker: Node, specs: Sequence[TensorSpec], own: Callable[..., Prepared | None]) -> None:
        """Decide it.

        Args:
            ctx: of the operators that make the value.
            maker: these.
            specs: of what their kernel is given.
            own: ``own(ctx, stored=)`` returns that kernel.
        """
        self.computing = []
        trial = _Trial(ctx, maker)
        first, second = own(trial, stored=True), own(trial, stored=False)
        if first is None or second is None:
            return
        known = {**dict(zip(maker.inputs, specs)), **dict(zip(maker.outputs, first.outputs))}
        apart, together, computing = [first], [second], []
        for reader in self.readers:
            for node in self._parts(reader):
                given = [known.get(value) or value.spec for value in node.inputs]
                trial = _Trial(ctx, node)
                stored = _stored(node, self.makes[node], trial, given)
                if stored is not None:
                    break
            else:
                return
            sources = [known.get(value) or value.spec for value in self.sources]
            made = self.makes[node](_operators(node), trial, *given, *sources, computes=True, stored=True)
            if made is None:
                return
            apart.append(stored)
            together.append(made)
            computing.append(node)
        what = [_operators(node) for node in (maker, *computing)]
        key = f"{self.rule.value} stored or computed by {what} of {[str(made.inputs) for made in apart]}"
        if self.rule.faster(ctx, key, apart, together):
            self.computing = computing

    def _parts(self, node: Node) -> Iterator[Node]:
        """Yield a node and its originals, where there is a kernel that reads the value."""
        if node in self.makes:
            yield node
        for original in node.originals:
            yield from self._parts(original)


def _chosen(node: Node, making: _Choice | None, reading: _Choice | None) -> Node:
    """Return a node with the kernel that choices ask for; so are its originals."""
    making = making if making is not None and making.value in node.outputs and node in making.makes else None
    reading = reading if reading is not None and node in reading.makes else None
    if making is None and reading is None:
        return node
    kernel = _Kernel(node, making, reading)
    originals = [_chosen(each, making, reading) for each in node.originals] if node.fused is not None else [node]
    inputs = [*node.inputs, *(reading.sources if reading is not None else [])]
    return Node(node.parts, inputs, node.outputs, kernel, originals, node.locations)


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
        choice, node = self._making, self._node
        if choice is None:
            return self._kernel(ctx, specs, stored=True)
        choice.decide(ctx, node, specs, lambda trial, *, stored: self._kernel(trial, specs, stored=stored))
        # Kernels that read it are made again if this changes.
        ctx.publish(node.outputs.index(choice.value), _PUBLISHED, bool(choice.computing))
        return self._kernel(ctx, specs, stored=not choice.computing)

    def _kernel(self, ctx: Any, specs: Sequence[TensorSpec], *, stored: bool) -> Prepared | None:
        node, reading, making = self._node, self._reading, self._making
        own = specs[: len(node.inputs)]
        if reading is not None and reading.computing:
            if node not in reading.computing:
                return None  # one of its originals is
            return reading.makes[node](_operators(node), ctx, *specs, computes=True, stored=stored)
        if not stored and making is not None:
            made = making.makes[node](_operators(node), ctx, *own, computes=False, stored=False)
        else:
            made = None if node.fused is None else node.fused(ctx, *own)
        return None if made is None else _with_unread(made, len(own), len(specs) - len(own))


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


def _stored(node: Node, make: Make, ctx: Any, specs: Sequence[TensorSpec | None]) -> Prepared | None:
    """Return the kernel of a node that reads the value."""
    if node.fused is not None:
        return node.fused(ctx, *specs)
    return make(_operators(node), ctx, *specs, computes=False, stored=True)


def _operators(node: Node) -> list[Any]:
    return [part.op for part in node.parts]


def _found(graph: PlanGraph, rule: Unstored, node: Node, readers: Mapping[Value, Sequence[Node]]) -> _Choice | None:
    """Return the choice by a rule for a value that a node makes; None if the rule does not apply."""
    for text in rule.makers:
        names = _bound(Part.parse(text), node, {})
        value = None if names is None else names[rule.value]
        if names is None or value is None or graph.visible(value) or not readers.get(value):
            continue
        own = list(dict.fromkeys(readers[value]))
        makes = _makes(rule.makers, node, names)
        for reader in own:
            of_reader = _makes(rule.readers, reader, names)
            if reader not in of_reader or reader.first.device != node.first.device:
                break
            makes |= of_reader
        else:
            return _Choice(rule, value, [names[name] for name in rule.sources.split()], own, makes)
    return None


def _makes(forms: Mapping[str, Make], node: Node, names: Mapping[str, Value]) -> dict[Node, Make]:
    """Return how kernels of a node and its originals are made, where one of some forms is theirs."""
    found = next((make for text, make in forms.items() if _bound(Part.parse(text), node, names)), None)
    own = {} if found is None else {node: found}
    return own | {key: make for each in node.originals for key, make in _makes(forms, each, names).items()}


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
    written = (value for i in places for value in graph.nodes[i].outputs if value not in choice.sources)
    return any(value.name in names for value in written)
