"""ColwiseMax and RowwiseMax of stacks of matrices, with their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["ColwiseMax", "ColwiseMaxGradient", "RowwiseMax", "RowwiseMaxGradient"]


@operator_class(frozen=True)
class _OfMatrices(Operator):
    reduced: ClassVar[int] = 1

    def check_matrices(self, x: TensorSpec) -> tuple[int, ...]:
        """Return the shape of Y; raise ShapeError unless X is a stack of matrices."""
        require_one_float_type(self, X=x)
        require(x.ndim == 3, self, f"X must be (matrices, rows, columns), got shape {x.shape}")
        require(x.shape[self.reduced] > 0, self, f"X of shape {x.shape} has no elements to choose from")
        return (x.shape[0], x.shape[3 - self.reduced])


@operator_class(frozen=True)
class _Max(_OfMatrices):
    """Base of the maxima of each row or column of matrices."""

    signature = "X (N, D, M): float -> Y (N, D) or (N, M): as X"

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(self.check_matrices(x)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.output("Y"), g.d_output("Y")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("X")])]

    def flops(self, x: TensorSpec) -> int:
        return x.size


@operator_class(frozen=True)
class _MaxGradient(_OfMatrices):
    signature = "X, Y, dY -> dX"

    def infer(self, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        shape = self.check_matrices(x)
        for name, spec in (("Y", y), ("dY", dy)):
            require(spec.shape == shape, self, f"{name} must have shape {shape} for X {x.shape}, got {spec.shape}")
        return (x.plain,)


@register
@operator_class(frozen=True)
class ColwiseMax(_Max):
    """Y = the maximum of each column of each matrix: (B, M, N) -> (B, N)."""


@register
@operator_class(frozen=True)
class RowwiseMax(_Max):
    """Y = the maximum of each row of each matrix: (B, M, N) -> (B, M)."""

    reduced = 2


@register
@operator_class(frozen=True)
class ColwiseMaxGradient(_MaxGradient):
    """dX = dY where X is the maximum of its column, at each of tied elements, else 0."""


@register
@operator_class(frozen=True)
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
