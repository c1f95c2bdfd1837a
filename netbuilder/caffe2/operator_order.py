"""Orders in which a net's operators may run: which has to come before which, and orders that keep to it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from netbuilder.graph.rename import subgraphs
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.depth import deep_nets

__all__ = ["OperatorGraph", "first_come", "longest_path_first", "reorder_pass"]


class OperatorGraph:
    """Which operators have to run before which, by their numbers.

    One operator has to run before another that reads or overwrites what it writes, or that overwrites what it reads.

    Args:
        ops: in an order in which they may run.
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
        """The numbers of all operators."""
        return list(range(len(self.ops)))

    def predecessors(self, number: int) -> list[int]:
        """Return the operators that have to run before one."""
        return sorted(self._before[number])

    def successors(self, number: int) -> list[int]:
        """Return the operators before which one has to run."""
        return sorted(self._after[number])


def _touched(op: OperatorDef) -> tuple[set[str], set[str]]:
    """Return what an operator reads, and what it writes; of the nets that it holds, all may be either."""
    inner = {name for net in subgraphs(op) for part in net.op for name in (*part.input, *part.output)}
    return {*op.input, *op.control_input, *inner}, {*op.output, *inner}


def first_come(graph: OperatorGraph) -> list[int]:
    """Return the operators in the order that they have, as far as they may run so."""
    return _sorted(graph, lambda number: 0)


def longest_path_first(graph: OperatorGraph) -> list[int]:
    """Return an order in which, of operators that may run, the one comes first that most others follow in a row."""
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
    """Put the operators of a net in another order.

    Args:
        graph: of its operators.
        order: their numbers.

    Raises:
        NetError: an operator is missing or there twice, or comes before one that has to run first.
    """
    if sorted(order) != graph.nodes:
        raise NetError(
            f"net {net.name!r}: an order must hold each of its {len(graph)} operators once, got {list(order)}"
        )
    place = {number: index for index, number in enumerate(order)}
    for number in order:
        for other in graph.predecessors(number):
            if place[other] > place[number]:
                raise NetError(
                    f"net {net.name!r}: operator {number} ({net.op[number].type}) may not run before {other} "
                    f"({net.op[other].type}), whose blobs it touches"
                )
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    with deep_nets():
        result.op.extend(net.op[number] for number in order)
    return PassResult(result)
