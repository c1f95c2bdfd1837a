"""Values that kernels compute from others rather than read them (``engines.fusion.Unstored``).

If all kernels that read a value can do so, no kernel writes it. Else those may do so that compute it to the bit as the
kernel which writes it.

Operators stay what they are: those that read such a value get what it is computed from as further inputs. Whether it is
computed is decided when the kernel of the operators that make it is chosen: all kernels with it and all without it are
made, and the engine says which are faster. Kernels that read the value then are made accordingly.

A value is stored if it is visible, or if an operator reads it that has no such kernel. Nothing computes it if something
overwrites what it would be computed from before the last operator reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import field
from functools import partial
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
    """Whether a value is stored, and which kernels compute it.

    Args:
        rule: which says how it is computed.
        maker: the node that makes it.
        value: the value.
        sources: what it is computed from.
        readers: the nodes that read it and may compute it, in order.
        makes: how the kernel of each of these is made, and of those that make the value; of their originals, too.
        repeating: those of them that compute it to the bit.
        needed: the value is visible, or has other readers: it is stored.
        computing: the nodes whose kernels compute the value.
        stored: whether the value is stored.
    """

    rule: Unstored
    maker: Node
    value: Value
    sources: list[Value]
    readers: list[Node]
    makes: dict[Node, Make]
    repeating: set[Node]
    needed: bool
    computing: list[Node] = field(default_factory=list, init=False)
    stored: bool = field(default=True, init=False)

    @property
    def made_by(self) -> list[Any]:
        """The operators that make the value."""
        return _operators(self.maker)

    def decide(self, ctx: Any, maker: Node, specs: Sequence[TensorSpec], own: Callable[..., Prepared | None]) -> None:
        """Decide it.

        Args:
            ctx: of the operators that make the value.
            maker: these.
            specs: of what their kernel is given.
            own: ``own(ctx, computed=, stored=)`` returns that kernel.
        """
        self.computing, self.stored = [], True
        trial = _Trial(ctx, maker)
        first = own(trial, computed=False, stored=True)
        if first is None and maker.fused is not None:
            return
        for stored in (False, True):
            if self.needed and not stored:
                continue
            second = own(trial, computed=True, stored=stored)
            if second is None:
                continue
            known = [*zip(maker.inputs, specs), *zip(maker.outputs, (first or second).outputs)]
            found = self._of_readers(ctx, {value: spec for value, spec in known if spec is not None}, stored=stored)
            if not found:
                continue
            apart = [*([] if first is None else [first]), *(each.reads for each in found)]
            together = [second, *(each.computes for each in found)]
            what = [_operators(node) for node in (maker, *(each.node for each in found))]
            how = "with a reader that computes it" if stored else "computed"
            key = f"{self.rule.value} stored or {how} by {what} of {[str(made.inputs) for made in apart]}"
            if self.rule.faster(ctx, key, apart, together):
                self.computing, self.stored = [each.node for each in found], stored
                return

    def _of_readers(self, ctx: Any, known: Mapping[Value, TensorSpec], *, stored: bool) -> list[_Kernels]:
        """Return the kernels of the readers that compute the value; [] if one does not that would have to."""
        found = []
        for reader in self.readers:
            kernels = self._of_reader(ctx, reader, known, stored=stored)
            if kernels is None and not stored:
                return []
            found += kernels or []
        return found

    def _of_reader(
        self, ctx: Any, node: Node, known: Mapping[Value, TensorSpec], *, stored: bool
    ) -> list[_Kernels] | None:
        """Return the kernels that a node runs as, itself or its originals; None if one of them reads the value."""
        trial, given = _Trial(ctx, node), [known.get(value) or value.spec for value in node.inputs]
        make = self.makes.get(node)
        if node.fused is not None:
            reads = node.fused(trial, *given)
        else:
            reads = None if make is None else make(_operators(node), trial, *given, computes=None, stored=True)
        if reads is not None:
            sources = [known.get(value) or value.spec for value in self.sources]
            if make is None or stored and node not in self.repeating:
                return None
            computes = make(_operators(node), trial, *given, *sources, computes=self.made_by, stored=True)
            return None if computes is None else [_Kernels(node, reads, computes)]
        found: list[_Kernels] = []
        reading = [each for each in node.originals if self.value in each.inputs]
        for original in reading:
            kernels = self._of_reader(ctx, original, known, stored=stored)
            if kernels is None and not stored:
                return None
            found += kernels or []
        return found if reading else None


@dataclass(frozen=True, eq=False)
class _Kernels:
    """The kernel of a node that reads a value, and that which computes it."""

    node: Node
    reads: Prepared
    computes: Prepared


def _within(node: Node, nodes: Container[Node]) -> bool:
    """Whether a node or one of its originals is among some."""
    return node in nodes or any(_within(each, nodes) for each in node.originals)


def _chosen(node: Node, making: _Choice | None, reading: _Choice | None) -> Node:
    """Return a node with the kernel that choices ask for; so are its originals."""
    making = making if making is not None and making.value in node.outputs and node in making.makes else None
    reading = reading if reading is not None and _within(node, reading.makes) else None
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
            return self._kernel(ctx, specs, computed=False, stored=True)
        choice.decide(ctx, node, specs, partial(self._of_specs, specs))
        # Kernels that read it are made again if this changes.
        ctx.publish(node.outputs.index(choice.value), _PUBLISHED, (bool(choice.computing), choice.stored))
        return self._kernel(ctx, specs, computed=bool(choice.computing), stored=choice.stored)

    def _of_specs(self, specs: Sequence[TensorSpec], ctx: Any, *, computed: bool, stored: bool) -> Prepared | None:
        return self._kernel(ctx, specs, computed=computed, stored=stored)

    def _kernel(self, ctx: Any, specs: Sequence[TensorSpec], *, computed: bool, stored: bool) -> Prepared | None:
        """Return the kernel.

        Args:
            ctx: of the operators.
            specs: of their inputs.
            computed: some kernel computes the value that these make.
            stored: that is written.
        """
        node, reading, making = self._node, self._reading, self._making
        own = specs[: len(node.inputs)]
        if reading is not None and node in reading.computing:
            found = reading.makes[node](_operators(node), ctx, *specs, computes=reading.made_by, stored=stored)
            assert found is not None or reading.stored, "the kernel depends on more than the layouts of the sources"
            return found
        if reading is not None and _within(node, reading.computing):
            return None  # one of its originals computes what it reads
        if computed and making is not None:
            made = making.makes[node](_operators(node), ctx, *own, computes=None, stored=stored)
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


def _operators(node: Node) -> list[Any]:
    return [part.op for part in node.parts]


def _found(graph: PlanGraph, rule: Unstored, node: Node, readers: Mapping[Value, Sequence[Node]]) -> _Choice | None:
    """Return the choice by a rule for a value that a node makes; None if the rule does not apply."""
    for text in rule.makers:
        names = _bound(Part.parse(text), node, {})
        value = None if names is None else names[rule.value]
        if names is None or value is None:
            continue
        makes, own = _makes(rule.makers, node, names), []
        repeating: set[Node] = set()
        for reader in dict.fromkeys(readers.get(value, ())):
            of_reader = _makes({**rule.readers, **rule.repeating}, reader, names)
            if of_reader and reader.first.device == node.first.device:
                own.append(reader)
                makes |= of_reader
                repeating |= _makes(rule.repeating, reader, names).keys()
        needed = graph.visible(value) or len(own) < len(dict.fromkeys(readers.get(value, ())))
        if own and (repeating or not needed):
            sources = [names[name] for name in rule.sources.split()]
            return _Choice(rule, node, value, sources, own, makes, repeating, needed)
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
