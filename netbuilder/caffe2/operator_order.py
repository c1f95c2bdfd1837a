"""The dependencies between a net's operators, and orders of the operators that respect them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from netbuilder.ops.core.renaming import subgraphs
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.depth import deep_nets

__all__ = ["OperatorGraph", "first_come", "longest_path_first", "reorder_pass"]


class OperatorGraph:
    """The dependencies between operators, by their indices.

    An operator must run before those that read or overwrite what it writes, and before those that overwrite what it
    reads.

    Args:
        ops: the operators, in a valid order.
    """

    def __init__(self, ops: Sequence[OperatorDef]) -> None:
        self.ops = tuple(ops)
        self._before: list[set[int]] = []
        self._after: list[set[int]] = [set() for _ in self.ops]
        writer: dict[str, int] = {}
        readers: dict[str, set[int]] = {}
        for number, op in enumerate(self.ops):
            read, written = _touched(op)
            before = {writer[name] for name in read | written if name in writer}
            before |= {reader for name in written for reader in readers.get(name, ())}
            before.discard(number)
            self._before.append(before)
            for other in before:
                self._after[other].add(number)
            for name in written:
                writer[name], readers[name] = number, set()
            for name in read:
                readers.setdefault(name, set()).add(number)

    def __len__(self) -> int:
        return len(self.ops)

    @property
    def nodes(self) -> list[int]:
        """The indices of all operators."""
        return list(range(len(self.ops)))

    def predecessors(self, number: int) -> list[int]:
        """Return the operators that must run before one."""
        return sorted(self._before[number])

    def successors(self, number: int) -> list[int]:
        """Return the operators that must run after one."""
        return sorted(self._after[number])


def _touched(op: OperatorDef) -> tuple[set[str], set[str]]:
    """Return the blobs that an operator reads and writes; blobs of its subnets count as both."""
    inner = {name for net in subgraphs(op) for part in net.op for name in (*part.input, *part.output)}
    return {*op.input, *op.control_input, *inner}, {*op.output, *inner}


def first_come(graph: OperatorGraph) -> list[int]:
    """Return the operators in their given order, as far as the dependencies allow."""
    return _sorted(graph, lambda number: 0)


def longest_path_first(graph: OperatorGraph) -> list[int]:
    """Return an order that runs, of the ready operators, the one with the longest chain of dependents first."""
    length = [0] * len(graph)
    for number in reversed(graph.nodes):
        length[number] = 1 + max((length[other] for other in graph.successors(number)), default=0)
    return _sorted(graph, lambda number: -length[number])


def _sorted(graph: OperatorGraph, rank: Callable[[int], int]) -> list[int]:
    left = [len(graph.predecessors(number)) for number in graph.nodes]
    ready = [(rank(number), number) for number in graph.nodes if not left[number]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)[1]
        order.append(number)
        for other in graph.successors(number):
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, (rank(other), other))
    return order


@net_pass
def reorder_pass(net: NetDef, context: PassContext, *, graph: OperatorGraph, order: Sequence[int]) -> PassResult:
    """Reorder the operators of a net.

    Args:
        graph: the dependencies between the operators.
        order: the indices of the operators.

    Raises:
        NetError: an operator is missing or occurs twice, or comes before one that must run first.
    """
    if sorted(order) != graph.nodes:
        raise NetError(
            f"net {net.name!r}: the order must contain each of its {len(graph)} operators once, got {list(order)}"
        )
    place = {number: index for index, number in enumerate(order)}
    for number in order:
        for other in graph.predecessors(number):
            if place[other] > place[number]:
                raise NetError(
                    f"net {net.name!r}: operator {number} ({net.op[number].type}) must run after {other} "
                    f"({net.op[other].type}), because they share blobs"
                )
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    with deep_nets():
        result.op.extend(net.op[number] for number in order)
    return PassResult(result)
