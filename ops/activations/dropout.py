"""Dropout and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, GradientError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Dropout", "DropoutGrad"]


@dataclass(frozen=True)
class DropoutArguments(Operator):
    """The arguments of Dropout and of its gradient."""

    ratio: float = 0.5
    is_test: bool = False
    sample_axis: int = 0

    def check(self) -> None:
        if self.sample_axis < 0:
            raise ArgumentError(f"{self.type}: sample_axis must be 0 or more, got {self.sample_axis}")
        if not 0 <= self.ratio < 1:
            raise ArgumentError(f"{self.type}: ratio, the fraction dropped, must lie in [0, 1), got {self.ratio}")


@register
@dataclass(frozen=True)
class Dropout(DropoutArguments):
    """Y = X * mask / (1 - ratio), with a random mask, False with probability ``ratio``; in test mode Y = X.

    Replicas draw the same mask for a sample as one device with the whole batch would. ``sample_axis``, which Caffe2
    does not have, is the axis of the samples: 1 for sequences (steps, samples, width).

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
    """

    signature = """
        X (*S): float
        -> Y (*S): as X
        -> mask? (*S): bool, the elements kept
    """
    inplace = ((0, 0),)
    in_batch = InBatch.ROW_BY_ROW
    stateful = True
    draws = True

    def check_inputs(self, x: TensorSpec) -> None:
        text = f"sample_axis must be an axis of X, of shape {x.shape}, got {self.sample_axis}"
        require(self.sample_axis < max(x.ndim, 1), self, text)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        if self.is_test:
            return [make_op("DropoutGrad", [g.d_output("Y")], [g.d_input("X")])]
        if self.n_out < 2:
            raise GradientError("Dropout: its gradient reads the mask; give the operator a second output")
        inputs = [g.d_output("Y"), g.output("mask")]
        return [make_op("DropoutGrad", inputs, [g.d_input("X")])]

    def flops(self, x: TensorSpec) -> int:
        return 0 if self.is_test else 2 * x.size


@kernel(Dropout)
def dropout(op: Dropout, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if op.is_test:
        return (x, ctx.xp.ones(x.shape, bool))
    axis = op.sample_axis
    drawn = ctx.uniform(_by_sample(op, x.shape), per_sample=True)
    mask = ctx.xp.moveaxis(drawn, 0, axis) >= op.ratio if axis else drawn >= op.ratio
    return (_masked(op, x, mask), mask)


def _by_sample(op: Dropout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the numbers that are drawn: that of X with the axis of the samples first."""
    axis = op.sample_axis
    return (*shape[axis : axis + 1], *shape[:axis], *shape[axis + 1 :])


def _masked(op: DropoutArguments, x: Any, mask: Any) -> Any:
    return x * (mask * _scale(op, x.dtype))


def _scale(op: DropoutArguments, dtype: Any) -> Any:
    return dtype.type(1.0 / (1.0 - op.ratio))


@register
@dataclass(frozen=True)
class DropoutGrad(DropoutArguments):
    """dX = dY * mask / (1 - ratio); in test mode, dX = dY."""

    signature = "dY, mask? -> dX"
    inplace = ((0, 0),)

    def check_inputs(self, *inputs: TensorSpec) -> None:
        given = self.is_test or len(inputs) == 2
        require(given, self, "in training it needs Dropout's mask as its second input")


@kernel(DropoutGrad)
def dropout_gradient(op: DropoutGrad, ctx: RunContext, dy: Any, mask: Any = None) -> tuple[Any, ...]:
    return (dy if op.is_test else _masked(op, dy, mask),)
