"""A step net: its decoded operators, the blobs that they read and write, and their shapes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import cached_property

from netbuilder.ops.core.instructions import (
    Instruction,
    describe,
    describe_operator,
    infer_outputs,
    located,
    read_instruction,
)
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.recurrent.versions import rename_reshaped
from netbuilder.proto import NetDef, NetError, ShapeError

__all__ = ["StepNet"]


class StepNet:
    """The operators of a step net, in order.

    Args:
        net: the net.

    Raises:
        NetError: an operator is unknown or invalid.
    """

    def __init__(self, net: NetDef) -> None:
        self.name = net.name
        self.ops: list[Instruction] = []
        for index, op_def in enumerate(rename_reshaped(net.op)):
            try:
                self.ops.append(read_instruction(index, op_def))
            except NetError as error:
                raise located(describe_operator(net.name, index, op_def), error, in_subgraph=True) from error

    def describe(self, operator: Instruction) -> str:
        """Return the description of an operator of the net, for messages."""
        return describe(self.name, operator)

    @cached_property
    def read(self) -> dict[str, Instruction]:
        """The blobs that are read before the net writes them, each with the first operator that reads it."""
        read: dict[str, Instruction] = {}
        written: set[str] = set()
        for operator in self.ops:
            for name in operator.inputs:
                if name not in written:
                    read.setdefault(name, operator)
            written.update(operator.outputs)
        return read

    @cached_property
    def written(self) -> frozenset[str]:
        """The blobs that the net writes."""
        return frozenset(name for operator in self.ops for name in operator.outputs)

    def writes(self, name: str) -> int:
        """Return how many operators write a blob."""
        return sum(name in operator.outputs for operator in self.ops)

    def invariant(self, fixed: Iterable[str], varying: Iterable[str]) -> list[Instruction]:
        """Return the operators that compute the same in all steps.

        Args:
            fixed: blobs that are the same in all steps.
            varying: blobs that differ between steps; an operator that writes one is not returned.
        """
        same, never = set(fixed), set(varying)
        found = []
        for operator in self.ops:
            only_writer = all(
                self.writes(name) == 1 and name not in never and name not in operator.inputs
                for name in operator.outputs
            )
            stateful = operator.op.stateful or operator.op.has_side_effects
            if only_writer and not stateful and same.issuperset(operator.inputs):
                found.append(operator)
                same.update(operator.outputs)
        return found

    def infer(self, operator: Instruction, specs: dict[str, TensorSpec], linked: Container[str] = ()) -> None:
        """Add the specs of an operator's outputs to ``specs``.

        Args:
            operator: of this net.
            specs: of the blobs so far, those of linked blobs included.
            linked: blobs whose shapes are known from links, even if the operator's shapes depend on data.

        Raises:
            ShapeError: the inputs do not fit, or the shapes depend on data.
        """
        try:
            made = infer_outputs(operator, [specs[name] for name in operator.inputs])
            if made is None:
                if all(name in linked for name in operator.outputs):
                    return
                raise ShapeError(
                    "its shapes depend on data, or it runs Python, so it cannot be in a step net that has a gradient, "
                    "unless all its outputs are states; put it outside, or unroll the net"
                )
            if any(spec.dtype == STRING for spec in made):
                raise ShapeError("it makes strings, which step nets cannot hold")
        except Exception as error:
            raise located(self.describe(operator), error, in_subgraph=True) from error
        specs.update(zip(operator.outputs, (spec.plain for spec in made)))

    def flops(self, specs: Mapping[str, TensorSpec], once: Container[Instruction], steps: int) -> int:
        """Return the floating-point operations of all steps.

        Args:
            specs: of all blobs of a step.
            once: the operators that run once.
            steps: how often the others do.
        """
        return sum(
            (1 if operator in once else steps) * operator.op.flops(*(specs[name] for name in operator.inputs))
            for operator in self.ops
        )

    def check_one_by_one(self) -> None:
        """Raise ShapeError if an operator needs more than the arrays of a step."""
        for operator in self.ops:
            if operator.op.dynamic and operator.op.stateful:
                raise ShapeError(
                    f"{self.describe(operator)}: it runs Python, holds nets or keeps data between runs, so it "
                    "cannot be in a step net; put it outside, or unroll the net"
                )
