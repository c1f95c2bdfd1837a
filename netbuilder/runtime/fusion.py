"""Fusion: neighbours that become one kernel where nobody can see the value between them."""

from __future__ import annotations

from typing import Any

from netbuilder.runtime.values import Node, Value

__all__ = ["fuse"]


def fuse(nodes: list[Node], last: dict[str, Value], setting: Any) -> list[Node]:
    """Return the nodes of a plan with neighbours joined.

    Args:
        nodes: operators over values, in order.
        last: the last version of each name, which stays observable.
        setting: how the net is planned (which engines may serve).
    """
    return nodes
