"""The order of a plan's nodes: some of them move to where all that they depend on is done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from netbuilder.engines.engine import HOST
from netbuilder.ops.core.operator import Exchange

if TYPE_CHECKING:
    from netbuilder.runtime.plan.graph import PlanGraph
    from netbuilder.runtime.plan.values import Node

__all__ = ["host_work_first", "move_when_ready", "ready_after"]


def _none(node: Node) -> bool:
    return False


def ready_after(
    nodes: Sequence[Node], moves: Callable[[Node], bool], in_order: Callable[[Node], bool] = _none
) -> list[int]:
    """Return, for each node, the index of the node after which it can run; -1: it can be the first.

    A node depends on nodes that write its inputs, that read or write the blobs it overwrites, or that make its control
    inputs. A node that does not move runs where it is.

    Args:
        nodes: the nodes of a plan, in order.
        moves: whether a node moves.
        in_order: whether a node also depends on the last one before it for which this is true.
    """
    last = -1
    touched: dict[str, int] = {}  # name -> index of the last node that reads or writes it
    written: dict[str, int] = {}  # name -> index of the last node that writes it
    found = []
    for index, node in enumerate(nodes):
        at = index
        reads, writes = {value.name for value in node.inputs}, {value.name for value in node.outputs}
        if moves(node):
            control = {name for part in node.parts for name in part.control}
            before = [written.get(name, -1) for name in reads | control] + [touched.get(name, -1) for name in writes]
            at = max(before, default=-1)
        if in_order(node):
            at = last = max(at, last)
        for name in reads | writes:
            touched[name] = max(at, touched.get(name, -1))
        written |= dict.fromkeys(writes, at)
        found.append(at)
    return found


def move_when_ready(
    nodes: Sequence[Node], moves: Callable[[Node], bool], in_order: Callable[[Node], bool] = _none
) -> list[Node]:
    """Return the nodes, those that move right after the last one that they depend on.

    The others keep their order; so do nodes that become ready at the same time.

    Args:
        nodes, moves, in_order: see ``ready_after``.
    """
    moving = [moves(node) for node in nodes]
    if True not in moving:
        return list(nodes)
    ready: dict[int, list[Node]] = defaultdict(list)
    for node, at, moved in zip(nodes, ready_after(nodes, moves, in_order), moving):
        if moved:
            ready[at].append(node)
    result = ready.pop(-1, [])
    for index, node in enumerate(nodes):
        if not moving[index]:
            result.append(node)
        result += ready.get(index, ())
    return result


def host_work_first(graph: PlanGraph) -> None:
    """Move those nodes to the start that read values of the host only and depend on nothing that GPUs do.

    Between the work of a GPU they would divide what is captured into a CUDA graph. The order of the others, and of
    those, stays the same.
    """
    if all(node.first.location == HOST for node in graph.nodes):
        return
    first: list[Node] = []
    rest: list[Node] = []
    touched: set[str] = set()  # by the rest
    written: set[str] = set()
    for node in graph.nodes:
        reads, writes = {value.name for value in node.inputs}, {value.name for value in node.outputs}
        reads.update(name for part in node.parts for name in part.control)
        if _reads_the_host(node) and reads.isdisjoint(written) and writes.isdisjoint(touched):
            first.append(node)
        else:
            rest.append(node)
            touched |= reads | writes
            written |= writes
    graph.nodes = first + rest


def _reads_the_host(node: Node) -> bool:
    """Whether a node computes values from those of the host, without effects on others or on other processes."""
    if not node.outputs or any(part.op.exchanges is Exchange.BETWEEN_PROCESSES for part in node.parts):
        return False
    on_host = node.first.location == HOST
    return (on_host or bool(node.inputs)) and all(value.location == HOST for value in node.inputs)
