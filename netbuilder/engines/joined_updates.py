"""Joined updates: what an engine is given to run the updates of many parameters as one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["JoinedOperator", "JoinedUpdates", "UpdateForm"]


@dataclass(frozen=True)
class UpdateForm:
    """How an elementwise operator takes part in a joined update.

    Args:
        numbers: the indices of inputs that are one number for all elements, such as a learning rate.
        copies: outputs that equal another one: index -> index of the other.
    """

    numbers: frozenset[int] = frozenset()
    copies: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class JoinedOperator:
    """One operator of a joined update.

    Args:
        op: the operator.
        inputs, outputs: the numbers of the values that it reads and makes, see ``JoinedUpdates``.
        instruction: its place in the net, for errors; None: it is not known.
    """

    op: Operator
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instruction: Instruction | None = None


@dataclass(frozen=True, eq=False)
class JoinedUpdates:
    """Updates of many parameters, to be run as one call.

    Values have numbers: those below ``len(specs)`` are the inputs of the call, the others are made by its operators.

    Args:
        chains: the operators. Those of one chain are in order, over tensors of one shape, and of one type but where an
            operator converts them; chains do not depend on one another.
        specs: of the inputs, with the layouts that they have at present.
        outputs: the numbers of the values that the call writes, in the order of its outputs. Other values that
            operators make are read by no one else.
        kept: the inputs that stay in their blobs, such as parameters.
    """

    chains: Sequence[Sequence[JoinedOperator]]
    specs: Sequence[TensorSpec]
    outputs: Sequence[int]
    kept: Collection[int] = ()
