"""Nodes and clusters. All nodes are this process."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.context_stack import DefaultManaged
from netbuilder.proto import NetError

__all__ = ["Cluster", "Node", "merge_node_kwargs"]


def merge_node_kwargs(a: dict[str, Any] | None, b: dict[str, Any] | None) -> dict[str, Any]:
    """Merge two sets of properties of a node.

    Raises:
        NetError: a property has two different values.
    """
    first, second = a or {}, b or {}
    for name in first.keys() & second.keys():
        if first[name] != second[name]:
            raise NetError(f"node: the property {name!r} has the values {first[name]!r} and {second[name]!r}")
    return {**first, **second}


class Cluster(DefaultManaged):
    """The nodes of the tasks in the block."""

    def __init__(self) -> None:
        self._nodes: list[str] = []
        self._kwargs: dict[str, dict[str, Any]] = {}

    def add_node(self, node: Node) -> None:
        """Add a node, or properties of a known one."""
        name = str(node)
        if name not in self._nodes:
            self._nodes.append(name)
        self._kwargs[name] = merge_node_kwargs(self._kwargs.get(name), node.kwargs())

    def nodes(self) -> list[str]:
        """Return the nodes' names."""
        return self._nodes

    def node_kwargs(self) -> dict[str, dict[str, Any]]:
        """Return the properties by the nodes' names."""
        return self._kwargs

    def __repr__(self) -> str:
        return f"Cluster(nodes={self._nodes}, node_kwargs={self._kwargs})"


class Node(DefaultManaged):
    """A node; tasks made in the block are placed on it, but run in this process.

    Args:
        node: its name.
        kwargs: its properties.
    """

    def __init__(self, node: Any = "local", **kwargs: Any) -> None:
        self._name = str(node)
        self._kwargs = kwargs
        Cluster.current().add_node(self)

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"Node(name={self._name}, kwargs={self._kwargs})"

    def kwargs(self) -> dict[str, Any]:
        """Return its properties."""
        return self._kwargs
