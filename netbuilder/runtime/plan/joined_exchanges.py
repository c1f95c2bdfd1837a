"""Joined exchanges: collectives over the GPUs of a process are grouped, so that many small ones start as few calls.

A group is closed when it has some megabytes, or before an operator that reads or writes one of its blobs. It runs at
the position of its last operator. The exchanges have been moved to where they can start before (``roles``), so groups
form in the order in which gradients become ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.registry import prepared_joined
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.values import Node

__all__ = ["GROUP_BYTES", "join_exchanges"]

GROUP_BYTES = 16 << 20
"""Bytes of each device's values from which a group gets no further operators."""


def join_exchanges(graph: PlanGraph) -> None:
    """Join operators that have a kernel for several of them (``prepare_joined``)."""
    group: _Group | None = None
    groups: list[_Group] = []
    for node in graph.nodes:
        joins = node.fused is None and prepared_joined(node.first.op_def.type, node.first.device[0]) is not None
        if group is not None and not (group.accepts(node) if joins else group.allows(node)):
            group = None
        if joins:
            if group is None:
                group = _Group()
                groups.append(group)
            group.add(node)
    instead: dict[Node, list[Node]] = {}
    for each in groups:
        if len(each.nodes) > 1:
            *others, end = each.nodes
            instead |= dict.fromkeys(others, []) | {end: [_joined(each.nodes)]}
    graph.replace(instead)


class _Group:
    """Operators that can run as one call, at the position of the last one."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._nbytes = 0
        self._reads: set[str] = set()
        self._writes: set[str] = set()

    def add(self, node: Node) -> None:
        spec = node.inputs[0].spec
        self.nodes.append(node)
        self._nbytes += 0 if spec is None else spec.nbytes
        self._reads.update(value.name for value in node.inputs)
        self._writes.update(value.name for value in node.outputs)

    def accepts(self, node: Node) -> bool:
        """Whether a node that can be joined can be joined to this group."""
        first = self.nodes[0]
        alike = node.first.op_def.type == first.first.op_def.type and node.first.device == first.first.device
        together = [value.location for value in node.inputs] == [value.location for value in first.inputs]
        return alike and together and self._nbytes < GROUP_BYTES and not self._conflicts(node)

    def allows(self, node: Node) -> bool:
        """Whether the group may run after a node that follows its members."""
        control = {name for part in node.parts for name in part.control}
        return self._writes.isdisjoint(control) and not self._conflicts(node)

    def _conflicts(self, node: Node) -> bool:
        mine = {value.name for value in node.outputs}
        return not (
            self._writes.isdisjoint(value.name for value in node.inputs) and mine.isdisjoint(self._reads | self._writes)
        )


def _joined(nodes: Sequence[Node]) -> Node:
    kernel = prepared_joined(nodes[0].first.op_def.type, nodes[0].first.device[0])
    assert kernel is not None

    def maker(ctx: Any, *specs: Any) -> Prepared | None:
        made: Prepared | None = kernel([node.first.op for node in nodes], ctx, *specs)
        return made

    inputs = [value for node in nodes for value in node.inputs]
    outputs = [value for node in nodes for value in node.outputs]
    return Node([part for node in nodes for part in node.parts], inputs, outputs, maker, originals=list(nodes))
