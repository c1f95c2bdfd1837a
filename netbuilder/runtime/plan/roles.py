"""Roles of operators: computing, or exchanging values between devices; and when an exchange starts.

A net lists the reductions of gradients after the whole backward pass, as Caffe2's nets do. A plan with an exchange lane
starts each of them as soon as its operands are written, so that the rest of the backward pass runs at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from netbuilder.ops.core.instructions import Instruction, Role
from netbuilder.ops.core.operator import Exchange

if TYPE_CHECKING:
    from netbuilder.runtime.plan.values import Node

__all__ = ["assign_roles", "exchange_when_ready"]


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
        if across or exchanges is Exchange.ALWAYS:
            instruction.role = Role.EXCHANGE


def exchange_when_ready(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of a plan with each exchange moved right after the last node that it depends on.

    An exchange depends on nodes that write its inputs, that read or write the blobs it overwrites, or that make its
    control inputs. Nodes that compute keep their order; so do exchanges that become ready at the same time, so the
    order of all exchanges is the same in every run.
    """
    touched: dict[str, int] = {}  # name -> index of the last node that reads or writes it
    written: dict[str, int] = {}  # name -> index of the last node that writes it
    ready: dict[int, list[Node]] = defaultdict(list)  # index -> the exchanges that can start after the node there
    for index, node in enumerate(nodes):
        at = index
        reads, writes = {value.name for value in node.inputs}, {value.name for value in node.outputs}
        if node.role is Role.EXCHANGE:
            control = {name for part in node.parts for name in part.control}
            before = [written.get(name, -1) for name in reads | control] + [touched.get(name, -1) for name in writes]
            at = max(before, default=-1)
            ready[at].append(node)
        for name in reads | writes:
            touched[name] = max(at, touched.get(name, -1))
        written |= dict.fromkeys(writes, at)
    result = ready.pop(-1, [])
    for index, node in enumerate(nodes):
        if node.role is not Role.EXCHANGE:
            result.append(node)
        result += ready.get(index, ())
    return result
