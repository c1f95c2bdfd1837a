"""PlanGraph: the operators of a plan while it is compiled, which the compiler's phases change one after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from netbuilder.engines.engine import Engine
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["PlanGraph"]


@dataclass(slots=True, eq=False)
class PlanGraph:
    """Operators over versioned values, with what the phases of the compiler ask of both.

    Args:
        net: the name of the net, for messages.
        nodes: the operators in order, each possibly fused of several.
        values: all values.
        last: the last version of each name.
        externals: the values that exist before a run, by name.
        hidden: the names that the plan computes and of which no version is observable.
        options: those of the net, with as many lanes and threads as the operators are worth.
        engines: the library engines that may be used, by kind of device.
        read_outside: names whose last version operators outside the plan read, or may read.
        in_subgraph: they are operators of an operator's subgraph.
    """

    net: str
    nodes: list[Node]
    values: list[Value]
    last: Mapping[str, Value]
    externals: Mapping[str, Value]
    hidden: frozenset[str]
    options: PlanOptions
    engines: Mapping[int, Sequence[Engine]]
    read_outside: Collection[str]
    in_subgraph: bool = False

    def visible(self, value: Value) -> bool:
        """Whether a value can be fetched after a run, or is read by operators outside the plan."""
        return self.last[value.name] is value and value.name not in self.hidden

    def makers(self) -> dict[Value, Node]:
        """Return, for each value that the plan makes, the node that makes it."""
        return {value: node for node in self.nodes for value in node.outputs}

    def readers(self) -> dict[Value, list[Node]]:
        """Return, for each value that is read, the nodes that read it, in order; one that reads it twice is in twice.

        ``Value.readers`` is their number.
        """
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                found.setdefault(value, []).append(node)
        return found

    def places(self) -> dict[Node, int]:
        """Return the index of each node."""
        return {node: index for index, node in enumerate(self.nodes)}

    def replace(self, instead: Mapping[Node, Sequence[Node]]) -> None:
        """Replace nodes, each where it is, by any number of others."""
        if instead:
            self.nodes = [new for node in self.nodes for new in instead.get(node, (node,))]

    def faults(self) -> list[str]:
        """Return what every phase must leave true and is not: the condition before and after each of them.

        A value is made once, before it is read; the versions of a name are made in order; and a version is read only
        until the next one is made, unless that does not overwrite it.
        """
        found: list[str] = []
        made: set[Value] = set()
        newest: dict[str, int] = {}
        own = {value for node in self.nodes for value in node.outputs}
        for node in self.nodes:
            found += [f"{node} reads {value} before it is made" for value in node.inputs if value in own - made]
            for value in node.outputs:
                if value in made:
                    found.append(f"{node} makes {value} once more")
                if not value.intermediate and value.version < newest.get(value.name, 0):
                    found.append(f"{node} makes {value} after version {newest[value.name]}")
                made.add(value)
                newest[value.name] = max(value.version, newest.get(value.name, 0))
        return found
