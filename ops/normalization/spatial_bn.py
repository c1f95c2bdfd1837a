"""Batch normalization over images, and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.image_order import channel_axis, channel_shape, check_order, check_per_channel, other_axes
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, GradientError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["SpatialBN", "SpatialBNGradient"]


@operator_class(frozen=True)
class BNArguments(Operator):
    """The arguments of batch normalization and of its gradient."""

    is_test: bool = False
    epsilon: float = 1e-5
    momentum: float = 0.9
    order: str = "NCHW"
    num_batches: int = 1

    def check(self) -> None:
        check_order(self, self.order)
        if not 0 <= self.momentum <= 1:
            raise ArgumentError(f"{self.type}: momentum must lie in [0, 1], got {self.momentum}")
        if self.epsilon < 0:
            raise ArgumentError(f"{self.type}: epsilon must not be negative, got {self.epsilon}")
        if self.num_batches < 1:
            raise ArgumentError(f"{self.type}: num_batches must be at least 1, got {self.num_batches}")


@register
@operator_class(frozen=True)
class SpatialBN(BNArguments):
    """Y = scale * (X - mean) / sqrt(var + epsilon) + bias, per channel.

    In training, the mean and the (biased) variance are those of the batch, and the running statistics become
    ``momentum * running + (1 - momentum) * batch``, with the unbiased variance of the batch; an empty batch does not
    change them, and its saved statistics are 0. With ``num_batches`` > 1, X is one of ``num_batches`` parts of a batch,
    and ``sums`` and ``sumsq`` are the sums of X and of its squares over all of them. In test mode the running mean and
    variance are used, and Y is the only output.

    Inputs:
        X (N, C, *S) or (N, *S, C): float, by the order
        scale (C): float32|float64
        bias (C): as scale
        mean (C): as scale, running mean
        var (C): as scale, running variance
        sums? (C): as scale
        sumsq? (C): as scale
    Outputs:
        Y (N, C, *S) or (N, *S, C): as X
        running_mean? (C): as mean
        running_var? (C): as mean
        saved_mean? (C): as mean
        saved_inv_std? (C): as mean

    Source: Ioffe and Szegedy, "Batch Normalization", 2015, arXiv:1502.03167, section 3.
    """

    inputs = ("X", "scale", "bias", "mean", "var", "sums?", "sumsq?")
    outputs = ("Y", "running_mean?", "running_var?", "saved_mean?", "saved_inv_std?")
    inplace = ((0, 0), (5, 3), (6, 4))
    must_inplace = ((3, 1), (4, 2))

    def infer(self, x: TensorSpec, *others: TensorSpec) -> tuple[TensorSpec, ...]:
        names = ("scale", "bias", "mean", "var", "sums", "sumsq")
        require_one_float_type(self, mixed_half=True, X=x, **dict(zip(names, others)))
        check_per_channel(self, self.order, x, **dict(zip(names, others)))
        if self.num_batches > 1 and not self.is_test:
            require(
                len(others) == 6,
                self,
                f"with num_batches={self.num_batches} it also needs the inputs sums and sumsq",
            )
        channels = others[0].with_shape(others[0].shape)
        return (x.plain, channels, channels, channels, channels)[: self.n_out]

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("scale"), g.d_output("Y")]
        outputs = [g.d_input("X"), g.d_input("scale"), g.d_input("bias")]
        if self.is_test:
            inputs += [g.input("mean"), g.input("var")]
        else:
            if self.n_out < 5:
                raise GradientError(
                    "SpatialBN: its gradient reads the saved statistics of the batch; give the operator five outputs, "
                    "or is_test=1"
                )
            inputs += [g.output("saved_mean"), g.output("saved_inv_std")]
            if self.num_batches > 1:
                inputs += outputs[1:]
        return [make_op("SpatialBNGradient", inputs, outputs)]

    def flops(self, x: TensorSpec, *others: TensorSpec) -> int:
        return (2 if self.is_test else 6) * x.size


@register
@operator_class(frozen=True)
class SpatialBNGradient(BNArguments):
    """Gradients of SpatialBN: of X, of the scale and of the bias.

    ``mean`` and ``inv_std`` are those that SpatialBN saved; in test mode, the running mean and variance. With
    ``num_batches`` > 1 the inputs have the gradients of scale and bias summed over all parts of the batch, and the
    outputs are these divided by ``num_batches``.
    """

    inputs = ("X", "scale", "dY", "mean", "inv_std", "dscale_sum?", "dbias_sum?")
    outputs = ("dX", "dscale", "dbias")
    inplace = ((5, 1), (6, 2))

    def infer(self, x: TensorSpec, scale: TensorSpec, dy: TensorSpec, *others: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, mixed_half=True, X=x, scale=scale, dY=dy)
        require(dy.shape == x.shape, self, f"dY must have the shape of X, {x.shape}, got {dy.shape}")
        names = ("scale", "mean", "inv_std", "dscale_sum", "dbias_sum")
        check_per_channel(self, self.order, x, **dict(zip(names, (scale, *others))))
        if self.num_batches > 1 and not self.is_test:
            require(
                len(others) == 4,
                self,
                f"with num_batches={self.num_batches} it also needs the summed gradients of scale and bias",
            )
        return (x.plain, scale.plain, scale.plain)

    def flops(self, x: TensorSpec, *others: TensorSpec) -> int:
        return 9 * x.size


def _channel_geometry(op: BNArguments, x: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the axes of the statistics, the shape in which channels broadcast over X, and the elements per channel."""
    count = x.size // max(1, x.shape[channel_axis(op.order, x.ndim)])
    return other_axes(op.order, x.ndim), channel_shape(op.order, x.ndim), count


@kernel(SpatialBN)
def spatial_bn(
    op: SpatialBN,
    ctx: RunContext,
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    var: Any,
    sums: Any = None,
    sumsq: Any = None,
) -> tuple[Any, ...]:
    xp = ctx.xp
    axes, shape, count = _channel_geometry(op, x)
    if x.size == 0 and not op.is_test:
        return (x, mean, var, xp.zeros_like(mean), xp.zeros_like(var))
    values = widen(x)
    if op.is_test:
        batch_mean, batch_var, running = mean, var, (mean, var)
    else:
        if op.num_batches > 1:
            count *= op.num_batches
            batch_mean = sums / count
            batch_var = sumsq / count - batch_mean * batch_mean
        else:
            batch_mean = values.mean(axis=axes)
            batch_var = xp.square(values - batch_mean.reshape(shape)).mean(axis=axes)
        unbiased = count / (count - 1) if count > 1 else 1.0
        old, new = op.momentum, 1.0 - op.momentum
        running = (old * mean + new * batch_mean, old * var + (new * unbiased) * batch_var)
    inv_std = 1.0 / xp.sqrt(batch_var + op.epsilon)
    factor = scale * inv_std
    y = values * factor.reshape(shape) + (bias - batch_mean * factor).reshape(shape)
    return (narrow(y, x), *running, batch_mean, inv_std)


@kernel(SpatialBNGradient)
def spatial_bn_gradient(
    op: SpatialBNGradient,
    ctx: RunContext,
    x: Any,
    scale: Any,
    dy: Any,
    mean: Any,
    inv_std: Any,
    dscale_sum: Any = None,
    dbias_sum: Any = None,
) -> tuple[Any, ...]:
    xp = ctx.xp
    axes, shape, count = _channel_geometry(op, x)
    if x.size == 0:
        return (x, xp.zeros_like(scale), xp.zeros_like(scale))
    values, d_values = (widen(a) for a in (x, dy))
    if op.is_test:
        inv_std = 1.0 / xp.sqrt(inv_std + op.epsilon)  # in test mode the input is the running variance
    normal = (values - mean.reshape(shape)) * inv_std.reshape(shape)
    factor = (scale * inv_std).reshape(shape)
    if op.num_batches > 1 and not op.is_test:
        dscale, dbias = dscale_sum / op.num_batches, dbias_sum / op.num_batches
    else:
        dscale, dbias = (d_values * normal).sum(axis=axes), d_values.sum(axis=axes)
    if op.is_test:
        dx = factor * d_values
    else:
        dx = factor * (d_values - (dbias / count).reshape(shape) - normal * (dscale / count).reshape(shape))
    return (narrow(dx, x), dscale, dbias)
