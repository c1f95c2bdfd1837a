"""Batch normalization over images, and its gradient."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.image_order import (
    channel_shape,
    check_order,
    count_per_channel,
    normalized,
    other_axes,
)
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, GradientError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SpatialBN", "SpatialBNGradient"]

_COUNT = 7  # the index of the input count


@dataclass(frozen=True)
class BNArguments(Operator):
    """The arguments of batch normalization and of its gradient."""

    is_test: bool = False
    epsilon: float = 1e-5
    momentum: float = 0.9
    order: str = "NCHW"
    num_batches: int = 1
    of_parts: ClassVar[str]

    def check(self) -> None:
        check_order(self, self.order)
        if not 0 <= self.momentum <= 1:
            raise ArgumentError(f"{self.type}: momentum must lie in [0, 1], got {self.momentum}")
        if self.epsilon < 0:
            raise ArgumentError(f"{self.type}: epsilon must not be negative, got {self.epsilon}")
        if self.num_batches < 1:
            raise ArgumentError(f"{self.type}: num_batches must be at least 1, got {self.num_batches}")

    def check_inputs(self, *inputs: TensorSpec) -> None:
        several = self.num_batches > 1
        if len(inputs) > _COUNT:
            require(several, self, "count is the size of several parts: it needs num_batches > 1")
        if several and not self.is_test:
            text = f"with num_batches={self.num_batches} it also needs {self.of_parts}"
            require(len(inputs) >= _COUNT, self, text)


@register
@dataclass(frozen=True)
class SpatialBN(BNArguments):
    """Y = scale * (X - mean) / sqrt(var + epsilon) + bias, per channel.

    In training, the mean and the (biased) variance are those of the batch, and the running statistics become
    ``momentum * running + (1 - momentum) * batch``, with the unbiased variance of the batch; an empty batch does not
    change them, and its saved statistics are 0. With ``num_batches`` > 1, X is one of ``num_batches`` parts of a batch,
    and ``sums`` and ``sumsq`` are the sums of X and of its squares over all of them, see ChannelStats. ``count`` is the
    number of elements per channel that were summed; without it, all parts have as many as X. In test mode the running
    mean and variance are used, and Y is the only output.

    Source: Ioffe and Szegedy, "Batch Normalization", 2015, arXiv:1502.03167, section 3.
    """

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        scale (C): wide X
        bias (C): wide X
        mean (C): wide X, running mean
        var (C): wide X, running variance
        sums? (C): wide X
        sumsq? (C): wide X
        count? {1}: wide X
        -> Y: as X
        -> running_mean?: as scale
        -> running_var?: as scale
        -> saved_mean?: as scale
        -> saved_inv_std?: as scale
    """
    inplace = ((0, 0), (5, 3), (6, 4))
    of_parts = "the inputs sums and sumsq"
    in_batch = InBatch.ROW_BY_ROW
    must_inplace = ((3, 1), (4, 2))

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
                inputs += [g.input("count")] if self.n_in > _COUNT else []
        return [make_op("SpatialBNGradient", inputs, outputs)]

    def flops(self, x: TensorSpec, *others: TensorSpec) -> int:
        return (2 if self.is_test else 6) * x.size


@register
@dataclass(frozen=True)
class SpatialBNGradient(BNArguments):
    """Gradients of SpatialBN: of X, of the scale and of the bias.

    ``mean`` and ``inv_std`` are those that SpatialBN saved; in test mode, the running mean and variance. With
    ``num_batches`` > 1 the inputs have the gradients of scale and bias summed over all parts of the batch (see
    ChannelBackpropStats), and the outputs are these divided by ``num_batches``, so that their sum over the parts is the
    gradient of the whole batch; ``count`` is as in SpatialBN. A part with the weight 0 is a placeholder, which was not
    summed: its dX is 0.
    """

    signature = """
        X
        scale
        dY
        mean
        inv_std (C): float
        dscale_sum? (C): float
        dbias_sum? (C): float
        count? {1}: float
        weight? {1}: float
        -> dX
        -> dscale
        -> dbias: as scale
    """
    inplace = ((5, 1), (6, 2))
    of_parts = "the summed gradients of scale and bias"
    flops_per_element = 9


def _channel_geometry(op: BNArguments, x: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the axes of the statistics, the shape in which channels broadcast over X, and the elements per channel."""
    return other_axes(op.order, x.ndim), channel_shape(op.order, x.ndim), count_per_channel(op.order, x)


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
    total: Any = None,
) -> tuple[Any, ...]:
    xp = ctx.xp
    axes, shape, count = _channel_geometry(op, x)
    if x.size == 0 and not op.is_test and total is None:
        return (x, mean, var, xp.zeros_like(mean), xp.zeros_like(var))
    values = widen(x)
    if op.is_test:
        batch_mean, batch_var, running = mean, var, (mean, var)
    elif op.num_batches > 1:
        total = xp.full((1,), count * op.num_batches) if total is None else total
        batch_mean, batch_var, running = _of_parts(op, xp, mean, var, sums, sumsq, total.reshape(1))
    else:
        batch_mean = values.mean(axis=axes)
        batch_var = xp.square(values - batch_mean.reshape(shape)).mean(axis=axes)
        unbiased = count / (count - 1) if count > 1 else 1.0
        old, new = op.momentum, 1.0 - op.momentum
        running = (old * mean + new * batch_mean, old * var + (new * unbiased) * batch_var)
    inv_std = 1.0 / xp.sqrt(batch_var + op.epsilon)
    return (normalized(op.order, x, scale, bias, batch_mean, inv_std), *running, batch_mean, inv_std)


def _of_parts(
    op: SpatialBN, xp: Any, mean: Any, var: Any, sums: Any, sumsq: Any, total: Any
) -> tuple[Any, Any, tuple[Any, Any]]:
    """Return mean and variance of a batch from the sums over its parts, and the new running statistics.

    They are computed in float64, because the variance is a difference. Sums over no elements change nothing.
    """
    sums, sumsq, total = (part.astype("float64") for part in (sums, sumsq, total))
    counted = xp.maximum(total, 1)
    batch_mean = sums / counted
    batch_var = xp.maximum(sumsq / counted - batch_mean * batch_mean, 0)
    new = xp.where(total > 0, 1.0 - op.momentum, 0.0)
    unbiased = counted / xp.maximum(counted - 1, 1)
    running = (1 - new) * mean + new * batch_mean, (1 - new) * var + (new * unbiased) * batch_var
    return narrow(batch_mean, mean), narrow(batch_var, var), (narrow(running[0], mean), narrow(running[1], var))


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
    total: Any = None,
    weight: Any = None,
) -> tuple[Any, ...]:
    xp = ctx.xp
    axes, shape, count = _channel_geometry(op, x)
    if x.size == 0 and total is None:
        return (x, xp.zeros_like(scale), xp.zeros_like(scale))
    values, d_values = (widen(a) for a in (x, dy))
    if op.is_test:
        inv_std = 1.0 / xp.sqrt(inv_std + op.epsilon)  # in test mode the input is the running variance
    normal = (values - mean.reshape(shape)) * inv_std.reshape(shape)
    factor = (scale * inv_std).reshape(shape)
    if op.num_batches > 1 and not op.is_test:
        dscale, dbias = dscale_sum, dbias_sum
        count = count * op.num_batches if total is None else xp.maximum(total, 1)
    else:
        dscale, dbias = (d_values * normal).sum(axis=axes), d_values.sum(axis=axes)
    if op.is_test:
        return (narrow(factor * d_values, x), dscale, dbias)
    dx = factor * (d_values - (dbias / count).reshape(shape) - normal * (dscale / count).reshape(shape))
    if weight is not None:
        dx = xp.where(weight.reshape(()) == 0, xp.zeros_like(dx), dx)
    return (narrow(dx, x), dscale / op.num_batches, dbias / op.num_batches)
