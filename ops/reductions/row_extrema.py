"""ColwiseMax and RowwiseMax of stacks of matrices, with their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ColwiseMax", "ColwiseMaxGradient", "RowwiseMax", "RowwiseMaxGradient"]


@dataclass(frozen=True)
class _OfMatrices(Operator):
    reduced: ClassVar[int] = 1

    def check_inputs(self, x: TensorSpec, *others: TensorSpec) -> None:
        require(x.shape[self.reduced] > 0, self, f"X of shape {x.shape} has no elements to choose from")


@dataclass(frozen=True)
class _Max(_OfMatrices):
    """Base of the maxima of each row or column of matrices."""

    flops_per_element = 1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.output("Y"), g.d_output("Y")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("X")])]


@dataclass(frozen=True)
class _MaxGradient(_OfMatrices):
    signature = "X, Y, dY -> dX"


@register
@dataclass(frozen=True)
class ColwiseMax(_Max):
    """Y = the maximum of each column of each matrix."""

    signature = "X (B, M, N): float -> Y (B, N): as X"


@register
@dataclass(frozen=True)
class RowwiseMax(_Max):
    """Y = the maximum of each row of each matrix."""

    signature = "X (B, M, N): float -> Y (B, M): as X"

    reduced = 2


@register
@dataclass(frozen=True)
class ColwiseMaxGradient(_MaxGradient):
    """dX = dY where X is the maximum of its column, at each of tied elements, else 0."""


@register
@dataclass(frozen=True)
class RowwiseMaxGradient(_MaxGradient):
    """dX = dY where X is the maximum of its row, at each of tied elements, else 0."""

    reduced = 2


def _maximum(op: _Max, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x.max(axis=op.reduced),)


def _maximum_gradient(op: _MaxGradient, ctx: RunContext, x: Any, y: Any, dy: Any) -> tuple[Any, ...]:
    at_maximum = x == ctx.xp.expand_dims(y, op.reduced)
    return (ctx.xp.expand_dims(dy, op.reduced) * at_maximum,)


kernel(ColwiseMax)(_maximum)
kernel(RowwiseMax)(_maximum)
kernel(ColwiseMaxGradient)(_maximum_gradient)
kernel(RowwiseMaxGradient)(_maximum_gradient)
