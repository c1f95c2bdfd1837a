"""Chains of updates: operators over tensors of one shape, which an engine runs as a part of one call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import field

from netbuilder.engines.engine import Engine, Location
from netbuilder.engines.joined_updates import JoinedOperator, JoinedUpdates, UpdateForm
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["Chain", "joined"]


@dataclass(eq=False)
class Chain:
    """Operators over tensors of the same shape, in order.

    Args:
        engine: the engine whose kernel runs them.
        nodes: the operators.
        forms: how each operator takes part.
        tensors: the tensors that they read and do not make.
        outputs: the tensors that they make and that others need.
    """

    engine: Engine
    nodes: list[Node] = field(default_factory=list)
    forms: list[UpdateForm] = field(default_factory=list)
    tensors: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def numbers(self) -> Iterator[Value]:
        """Yield the inputs that are one number for all elements, such as a learning rate."""
        return (value for _, value in self.numbers_read())

    def numbers_read(self) -> Iterator[tuple[tuple[Value, Location], Value]]:
        """Yield them with a key for what the kernel reads: the value, and the location where it is read."""
        for node, form in zip(self.nodes, self.forms):
            for i in sorted(form.numbers):
                yield (node.inputs[i], node.input_location(i)), node.inputs[i]


def joined(
    chains: Sequence[Chain],
    tensors: Sequence[Value],
    numbers: Sequence[tuple[Value, Location]],
    outputs: Sequence[Value],
    specs: Sequence[TensorSpec],
) -> JoinedUpdates:
    """Return what an engine joins: the operators of chains over numbered values."""
    number = {value: i for i, value in enumerate(tensors)}
    of_numbers = {key: len(tensors) + i for i, key in enumerate(numbers)}
    free = itertools.count(len(tensors) + len(of_numbers))  # tensors that two chains read have two numbers
    made: list[list[JoinedOperator]] = []
    for chain in chains:
        made.append([])
        for node, form in zip(chain.nodes, chain.forms):
            ins = tuple(
                of_numbers[value, node.input_location(i)] if i in form.numbers else number[value]
                for i, value in enumerate(node.inputs)
            )
            for value in node.outputs:
                number[value] = next(free)
            outs = tuple(number[value] for value in node.outputs)
            made[-1].append(JoinedOperator(node.first.op, ins, outs, node.first))
    kept = frozenset(i for i, value in enumerate(tensors) if value.blob is not None)
    return JoinedUpdates(made, specs, [number[value] for value in outputs], kept)
