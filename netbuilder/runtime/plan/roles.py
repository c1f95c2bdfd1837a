"""Roles of operators: computing, or exchanging values between devices or processes; and when an exchange starts.

A net lists the reductions of gradients after the whole backward pass, as Caffe2's nets do. A plan with an exchange lane
starts each of them as soon as its operands are written, so that the rest of the backward pass runs at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from netbuilder.engines.layouts import HOST
from netbuilder.ops.core.instructions import Instruction, Role
from netbuilder.ops.core.operator import Exchange
from netbuilder.runtime.plan.node_order import move_when_ready

if TYPE_CHECKING:
    from netbuilder.runtime.plan.graph import PlanGraph
    from netbuilder.runtime.plan.values import Node

__all__ = ["assign_roles", "between_processes", "exchange_when_ready"]


def assign_roles(program: Iterable[Instruction]) -> None:
    """Set the roles of a net's operators.

    A blob belongs to the device of the first operator that reads or writes it. An operator that may exchange (see
    ``Operator.exchanges``) does so where it reads or writes blobs of another device than its own.
    """
    program = list(program)
    homes: dict[str, tuple[int, int]] = {}
    for instruction in program:
        for blob in (*instruction.inputs, *instruction.outputs):
            homes.setdefault(blob, instruction.device)
    for instruction in program:
        exchanges = instruction.op.exchanges
        devices = {homes[blob] for blob in (*instruction.inputs, *instruction.outputs)}
        across = exchanges is Exchange.BETWEEN_DEVICES and not devices <= {instruction.device}
        if across or exchanges in (Exchange.ALWAYS, Exchange.BETWEEN_PROCESSES):
            instruction.role = Role.EXCHANGE


def between_processes(node: Node) -> bool:
    """Whether a node is a collective over processes."""
    return node.first.op.exchanges is Exchange.BETWEEN_PROCESSES


def _is_done_elsewhere(node: Node) -> bool:
    on_gpus = node.first.op.exchanges is Exchange.ALWAYS and node.first.location != HOST
    return on_gpus or between_processes(node)


def exchange_when_ready(graph: PlanGraph) -> None:
    """Move each exchange right after the last node that it depends on.

    The order of all exchanges is the same in every run. Collectives over processes keep the order of the net, which
    all processes have in common. Where exchanges have no lane of their own, only collectives move that are done by
    another thread, by other processes, or by GPUs on a stream of their own, while the lane goes on.
    """
    moves = (lambda node: node.role is Role.EXCHANGE) if graph.options.exchange_lane else _is_done_elsewhere
    graph.nodes = move_when_ready(graph.nodes, moves, in_order=between_processes)
