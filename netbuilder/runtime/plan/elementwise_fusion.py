"""Fused elementwise operators: where an engine has kernels for chains of them, a chain becomes one call.

A chain begins with any elementwise operator. An operator joins the chains that made its inputs, if their results have
the same shape; they become one. The chain runs at the position of its last operator, so the others move after the
operators in between: these must not read what the chain writes, nor write what it reads or writes.

Values between two operators of a chain are written only if they are visible or another node reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from netbuilder.engines.engine import Engine
from netbuilder.engines.joined_updates import JoinedOperator, JoinedUpdates
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.instructions import Role
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["fuse_elementwise"]

_MOST = 32
"""Operators of a chain; the values of more do not fit into a processor's registers."""


def fuse_elementwise(graph: PlanGraph) -> None:
    """Fuse chains of elementwise operators."""
    if len(graph.nodes) < 2:  # operators that run by themselves are many
        return
    instead: dict[Node, list[Node]] = {}
    for chain in _chains(graph.nodes, graph.engines):
        fused = chain.fused(graph) if len(chain.nodes) > 1 else None
        if fused is not None:
            *others, end = chain.nodes
            instead |= dict.fromkeys(others, []) | {end: [fused]}
    graph.replace(instead)


def _chains(nodes: Sequence[Node], engines: Mapping[int, Sequence[Engine]]) -> list[_Chain]:
    """Return the chains of elementwise operators, those of one operator too."""
    controls = {name for node in nodes for part in node.parts for name in part.control}
    open_chains: list[_Chain] = []
    found: list[_Chain] = []
    places = {node: place for place, node in enumerate(nodes)}
    for node in nodes:
        engine = _engine_of(node, controls, engines)
        read = [chain for chain in reversed(open_chains) if engine is not None and chain.accepts(node, engine)]
        own = read[0] if read else None
        joined = own.joined(read[1:]) if own is not None else []
        found = [chain for chain in found if chain not in joined]
        open_chains = [
            chain for chain in open_chains if chain is own or chain not in joined and not chain.must_precede(node)
        ]
        if own is not None:
            own.add(node)
        elif engine is not None:
            found.append(_Chain(engine, places, node))
            open_chains.append(found[-1])
    return found


def _engine_of(node: Node, controls: Collection[str], engines: Mapping[int, Sequence[Engine]]) -> Engine | None:
    """Return the engine with kernels for chains that the operator of a node can be part of."""
    instruction = node.first
    if node.fused is not None or len(node.parts) > 1 or instruction.op.stateful or node.role is Role.EXCHANGE:
        return None
    if instruction.control or any(name in controls for name in instruction.outputs):
        return None
    if any(value.location != instruction.location for value in node.outputs):
        return None
    specs = [value.spec for value in node.inputs]
    if any(spec is None for spec in specs) or len({*instruction.outputs}) < len(instruction.outputs):
        return None
    device = engines.get(instruction.device[0], ())
    return next((engine for engine in device if engine.is_elementwise(instruction.op, *specs)), None)  # type: ignore[arg-type]


def _shape(node: Node) -> tuple[int, ...]:
    spec = node.outputs[0].spec
    assert spec is not None
    return spec.shape


class _Chain:
    """Elementwise operators of which each reads what an earlier one makes."""

    def __init__(self, engine: Engine, places: Mapping[Node, int], node: Node) -> None:
        self.engine = engine
        self._places = places
        self.nodes: list[Node] = []
        self._made: set[Value] = set()  # the values that it makes
        self._names: set[str] = set()  # that it reads or writes
        self.add(node)

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        self._made |= set(node.outputs)
        self._names |= {value.name for value in (*node.inputs, *node.outputs)}

    def accepts(self, node: Node, engine: Engine) -> bool:
        """Whether a later operator can join."""
        first = self.nodes[0]
        return (
            engine is self.engine
            and len(self.nodes) < _MOST
            and node.first.device == first.first.device
            and _shape(node) == _shape(first)
            and any(value in self._made for value in node.inputs)
        )

    def joined(self, others: Sequence[_Chain]) -> list[_Chain]:
        """Join other chains, as far as they fit; return those that have become parts of this one."""
        found = []
        for other in others:
            if len(self.nodes) + len(other.nodes) < _MOST:
                self.nodes = sorted([*self.nodes, *other.nodes], key=self._places.__getitem__)
                self._made |= other._made
                self._names |= other._names
                found.append(other)
        return found

    def must_precede(self, node: Node) -> bool:
        """Whether a later node reads what the chain makes, or writes what it reads or writes."""
        return any(value in self._made for value in node.inputs) or any(
            value.name in self._names for value in node.outputs
        )

    def fused(self, graph: PlanGraph) -> Node | None:
        """Return the node that replaces the operators; None if nobody needs what they make."""
        own = set(self.nodes)
        read = {value for node in graph.nodes if node not in own for value in node.inputs}
        inputs = list(dict.fromkeys(v for node in self.nodes for v in node.inputs if v not in self._made))
        made = [value for node in self.nodes for value in node.outputs]
        outputs = [value for value in made if value in read or graph.visible(value)]
        if not outputs:
            return None
        number = {value: k for k, value in enumerate([*inputs, *made])}
        operators = [
            JoinedOperator(
                node.first.op,
                tuple(number[value] for value in node.inputs),
                tuple(number[value] for value in node.outputs),
            )
            for node in self.nodes
        ]

        def maker(ctx: Any, *specs: TensorSpec) -> Prepared | None:
            joined = JoinedUpdates([operators], specs, [number[value] for value in outputs])
            prepared = self.engine.join_elementwise(ctx, joined)
            for i, j in prepared.inplace if prepared is not None else ():
                if inputs[i].name == outputs[j].name:  # buffers are shared by successive versions only
                    outputs[j].version = inputs[i].version + 1
            return prepared

        locations = [self.nodes[0].first.location] * len(inputs)
        parts = [node.first for node in self.nodes]
        return Node(parts, inputs, outputs, maker, originals=self.nodes, locations=locations)
