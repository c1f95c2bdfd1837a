"""SmoothL1Loss, and SelectSmoothL1Loss at selected positions of images; with their gradients."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import add_rows, checked_indices
from netbuilder.ops.core.operator import BatchMean, Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SelectSmoothL1Loss", "SelectSmoothL1LossGradient", "SmoothL1Loss", "SmoothL1LossGradient"]


@dataclass(frozen=True)
class _Arguments(Operator):
    beta: float = 1.0
    scale: float = 1.0

    def check(self) -> None:
        if self.beta <= 0:
            raise ArgumentError(f"{self.type}: beta must be positive, got {self.beta}")
        if self.scale < 0:
            raise ArgumentError(f"{self.type}: scale must not be negative, got {self.scale}")

    def losses(self, xp: Any, x: Any) -> Any:
        """Return x^2 / (2 beta) where |x| < beta, else |x| - beta / 2."""
        size, beta = abs(x), x.dtype.type(self.beta)
        return xp.where(size < beta, x * x / (2 * beta), size - beta / 2)

    def derivatives(self, xp: Any, x: Any) -> Any:
        beta = x.dtype.type(self.beta)
        return xp.where(abs(x) < beta, x / beta, xp.sign(x))


_WEIGHTED = ("Y_hat", "Y", "alpha_in", "alpha_out")


@register
@dataclass(frozen=True)
class SmoothL1Loss(_Arguments):
    """loss = scale / N * sum(alpha_out * f(alpha_in * (Y_hat - Y))), where N is the number of samples.

    f(x) = x^2 / (2 beta) where |x| < beta, else |x| - beta / 2.

    Source: Girshick, "Fast R-CNN", 2015, arXiv:1504.08083, section 2.3.
    """

    signature = """
        Y_hat (N, *S): float
        Y (N, *S): as Y_hat
        alpha_in (N, *S): as Y_hat
        alpha_out (N, *S): as Y_hat
        -> loss (): as Y_hat
    """
    flops_per_element = 7

    def batch_mean(self) -> BatchMean:
        return BatchMean("rows", (0,))

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [*map(g.input, _WEIGHTED), g.d_output("loss")]
        return [make_op("SmoothL1LossGradient", inputs, [g.d_input("Y_hat")])]


@register
@dataclass(frozen=True)
class SmoothL1LossGradient(_Arguments):
    """The gradient of SmoothL1Loss with respect to Y_hat; labels and weights have no gradient."""

    signature = "Y_hat, Y, alpha_in, alpha_out, dloss -> dY_hat"
    flops_per_element = 6


@kernel(SmoothL1Loss)
def smooth_l1_loss(
    op: SmoothL1Loss, ctx: RunContext, y_hat: Any, y: Any, alpha_in: Any, alpha_out: Any
) -> tuple[Any, ...]:
    difference = widen(alpha_in) * (widen(y_hat) - widen(y))
    total = (widen(alpha_out) * op.losses(ctx.xp, difference)).sum()
    return (
        narrow(ctx.xp.asarray(total * difference.dtype.type(op.scale / max(y_hat.shape[0], 1))), y_hat).reshape(()),
    )


@kernel(SmoothL1LossGradient)
def smooth_l1_loss_gradient(
    op: SmoothL1LossGradient, ctx: RunContext, y_hat: Any, y: Any, alpha_in: Any, alpha_out: Any, dloss: Any
) -> tuple[Any, ...]:
    inner = widen(alpha_in)
    d_difference = op.derivatives(ctx.xp, inner * (widen(y_hat) - widen(y)))
    factor = widen(dloss).reshape(()) * d_difference.dtype.type(op.scale / max(y_hat.shape[0], 1))
    return (narrow(inner * widen(alpha_out) * d_difference * factor, y_hat),)


_SELECTED = ("Y_hat", "Y", "locations", "normalizer")


@register
@dataclass(frozen=True)
class SelectSmoothL1Loss(_Arguments):
    """loss = scale / max(normalizer, 1) * sum(f(Y_hat at the positions - Y)), with f as in SmoothL1Loss.

    A row of ``locations`` has the indices of an image, of the first of four channels, of a row and of a column.

    Source: Lin et al., "Focal Loss for Dense Object Detection", 2017, arXiv:1708.02002, section 4.
    """

    signature = """
        Y_hat (N, C, H, W): float
        Y (M, 4): as Y_hat
        locations (M, 4): float|int, image, channel, y and x per row
        normalizer {1}: float|int
        -> loss (): as Y_hat
    """

    def batch_mean(self) -> BatchMean:
        return BatchMean("sum", (3,), by_values=True, least=1.0)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [*map(g.input, _SELECTED), g.d_output("loss")]
        return [make_op("SelectSmoothL1LossGradient", inputs, [g.d_input("Y_hat")])]

    def flops(self, y_hat: TensorSpec, y: TensorSpec, *others: TensorSpec) -> int:
        return 5 * y.size


@register
@dataclass(frozen=True)
class SelectSmoothL1LossGradient(_Arguments):
    """The gradient of SelectSmoothL1Loss with respect to Y_hat: 0 except at the positions, summed where they repeat."""

    signature = "Y_hat, Y, locations, normalizer, dloss -> dY_hat"

    def flops(self, y_hat: TensorSpec, y: TensorSpec, *others: TensorSpec) -> int:
        return 5 * y.size


def _positions(op: Operator, ctx: RunContext, shape: tuple[int, ...], locations: Any) -> Any:
    """Return the indices of the elements at the positions in the flattened Y_hat, (positions, 4).

    Raises:
        IndexError: a position is not in Y_hat.
    """
    images, channels, height, width = shape
    parts = {"images": images, "first channels": channels - 3, "rows": height, "columns": width}
    image, channel, row, column = (
        checked_indices(ctx, op.type, locations[:, i].astype("int64"), extent, named=f"{what} of locations")
        for i, (what, extent) in enumerate(parts.items())
    )
    starts = ((image * channels + channel) * height + row) * width + column
    return starts[:, None] + ctx.xp.arange(4) * (height * width)


def _factor(ctx: RunContext, op: _Arguments, normalizer: Any, like: Any) -> Any:
    floor = ctx.xp.maximum(normalizer.reshape(()).astype(like.dtype), like.dtype.type(1))
    return like.dtype.type(op.scale) / floor


@kernel(SelectSmoothL1Loss)
def select_smooth_l1_loss(
    op: SelectSmoothL1Loss, ctx: RunContext, y_hat: Any, y: Any, locations: Any, normalizer: Any
) -> tuple[Any, ...]:
    positions = _positions(op, ctx, tuple(y_hat.shape), locations)
    difference = widen(y_hat.reshape(-1)[positions]) - widen(y)
    total = op.losses(ctx.xp, difference).sum() * _factor(ctx, op, normalizer, difference)
    return (narrow(ctx.xp.asarray(total), y_hat).reshape(()),)


@kernel(SelectSmoothL1LossGradient)
def select_smooth_l1_loss_gradient(
    op: SelectSmoothL1LossGradient, ctx: RunContext, y_hat: Any, y: Any, locations: Any, normalizer: Any, dloss: Any
) -> tuple[Any, ...]:
    positions = _positions(op, ctx, tuple(y_hat.shape), locations)
    difference = widen(y_hat.reshape(-1)[positions]) - widen(y)
    d_difference = op.derivatives(ctx.xp, difference) * (
        _factor(ctx, op, normalizer, difference) * widen(dloss).reshape(())
    )
    dx = ctx.xp.zeros(math.prod(y_hat.shape), d_difference.dtype)
    add_rows(ctx.xp, dx, positions.reshape(-1), d_difference.reshape(-1), ctx.add_in_order)
    return (narrow(dx.reshape(y_hat.shape), y_hat),)
