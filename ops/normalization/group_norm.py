"""GroupNorm and InstanceNorm: images normalized over groups of channels, or channel by channel; with gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.image_order import channel_axis, check_order
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, GradientError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["GroupNorm", "GroupNormGradient", "ImageNorm", "InstanceNorm", "InstanceNormGradient"]


@operator_class(frozen=True)
class ImageNorm(Operator):
    """What normalizations of single images have in common."""

    epsilon: float = 1e-5
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)
        if self.epsilon < 0:
            raise ArgumentError(f"{self.type}: epsilon must not be negative, got {self.epsilon}")

    def groups(self, channels: int) -> int:
        """Return how many parts the channels of an image are in."""
        return channels

    def parts(self, shape: Sequence[int]) -> tuple[int, int, int, int]:
        """Return the extents of X: images, groups, channels of a group, positions."""
        channels = shape[channel_axis(self.order, len(shape))]
        groups = self.groups(channels)
        return shape[0], groups, channels // groups, math.prod(shape[1:]) // max(channels, 1)

    def check_images(self, x: TensorSpec, **per_channel: TensorSpec) -> tuple[int, int]:
        """Return images and groups; raise ShapeError if X, or what has a number per channel, does not fit."""
        require(x.ndim >= 2, self, f"X must have a batch and a channel axis at least, got shape {x.shape}")
        channels = x.shape[channel_axis(self.order, x.ndim)]
        require(math.prod(x.shape[1:]) > 0, self, f"the images of X must have elements, got shape {x.shape}")
        for name, spec in per_channel.items():
            require(
                spec.shape == (channels,),
                self,
                f"{name} must have shape ({channels},), one number per channel of X {x.shape} in order {self.order}, "
                f"got {spec.shape}",
            )
        return self.parts(x.shape)[:2]

    def lay(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return shapes that lay X, a number per group, and a number per channel so that they broadcast; and axes.

        The axes are those that a group's statistics are taken over.
        """
        n, groups, channels, positions = self.parts(shape)
        if self.order == "NCHW":
            return (n, groups, channels, positions), (n, groups, 1, 1), (1, groups, channels, 1), (2, 3)
        return (n, positions, groups, channels), (n, 1, groups, 1), (1, 1, groups, channels), (1, 3)


@operator_class(frozen=True)
class _Forward(ImageNorm):
    def infer(self, x: TensorSpec, scale: TensorSpec, bias: TensorSpec) -> tuple[TensorSpec, ...]:
        names = dict(zip(self.inputs[1:], (scale, bias)))
        require_one_float_type(self, mixed_half=True, X=x, **names)
        stats = scale.with_shape(self.check_images(x, **names))
        return (x.plain, stats, stats)[: self.n_out]

    def flops(self, x: TensorSpec, scale: TensorSpec, bias: TensorSpec) -> int:
        return 7 * x.size


@register
@operator_class(frozen=True)
class GroupNorm(_Forward):
    """Y = gamma * (X - mean) * rsig + beta: each image normalized over ``group`` groups of its channels.

    Mean and rsig = 1 / sqrt(variance + epsilon), (N, group), are of a group; gamma and beta have a number per channel.

    Inputs:
        X (N, C, *S) or (N, *S, C): float, by the order
        gamma (C): as X
        beta (C): as X
    Outputs:
        Y (N, C, *S) or (N, *S, C): as X
        mean? (N, group): as X
        rsig? (N, group): as X

    Source: Wu and He, "Group Normalization", 2018, arXiv:1803.08494.
    """

    inputs = ("X", "gamma", "beta")
    outputs = ("Y", "mean?", "rsig?")
    group: int = 32
    is_test: bool = False

    def check(self) -> None:
        super().check()
        if self.group < 1:
            raise ArgumentError(f"{self.type}: group must be at least 1, got {self.group}")

    def groups(self, channels: int) -> int:
        require(
            self.group >= 1 and channels % self.group == 0,
            self,
            f"group must divide the {channels} channels of X, got group={self.group}",
        )
        return self.group

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        if self.n_out < 3:
            raise GradientError(
                "GroupNorm: its gradient reads the mean and deviation of groups; give the operator three outputs"
            )
        inputs = [g.d_output("Y"), *map(g.input, ("X", "gamma", "beta")), g.output("mean"), g.output("rsig")]
        return [make_op("GroupNormGradient", inputs, [g.d_input(i) for i in range(3)])]


@register
@operator_class(frozen=True)
class InstanceNorm(_Forward):
    """Y = scale * (X - mean) * inv_std + bias: each channel of each image normalized by itself.

    Mean and inv_std = 1 / sqrt(variance + epsilon) are (N, C); scale and bias have a number per channel.

    Inputs:
        X (N, C, *S) or (N, *S, C): float, by the order
        scale (C): as X
        bias (C): as X
    Outputs:
        Y (N, C, *S) or (N, *S, C): as X
        mean? (N, C): as X
        inv_std? (N, C): as X

    Source: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", 2016, arXiv:1607.08022.
    """

    inputs = ("X", "scale", "bias")
    outputs = ("Y", "mean?", "inv_std?")
    inplace = ((0, 0),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        saved = [g.output(i) for i in range(1, self.n_out)]
        inputs = [*map(g.input, ("X", "scale", "bias")), g.d_output("Y"), *saved]
        return [make_op("InstanceNormGradient", inputs, [g.d_input(i) for i in range(3)])]


def _normalize(op: ImageNorm, ctx: RunContext, x: Any) -> tuple[Any, Any, Any]:
    """Return X normalized, as it is laid, and mean and inverse deviation of each group."""
    laid, _, _, axes = op.lay(x.shape)
    values = widen(x).reshape(laid)
    mean = values.mean(axis=axes, keepdims=True)
    normal = values - mean
    variance = (normal * normal).mean(axis=axes, keepdims=True)
    inverse = 1 / ctx.xp.sqrt(variance + variance.dtype.type(op.epsilon))
    normal *= inverse
    return normal, mean, inverse


def _forward(op: ImageNorm, ctx: RunContext, x: Any, scale: Any, bias: Any) -> tuple[Any, ...]:
    normal, mean, inverse = _normalize(op, ctx, x)
    per_channel, stats = op.lay(x.shape)[2], op.parts(x.shape)[:2]
    y = normal * scale.reshape(per_channel) + bias.reshape(per_channel)
    return narrow(y.reshape(x.shape), x), narrow(mean.reshape(stats), scale), narrow(inverse.reshape(stats), scale)


kernel(GroupNorm)(_forward)
kernel(InstanceNorm)(_forward)


@operator_class(frozen=True)
class _Backward(ImageNorm):
    outputs = ("dX", "dscale", "dbias")

    def check_gradient(self, x: TensorSpec, dy: TensorSpec, scale: TensorSpec, *saved: TensorSpec) -> Any:
        """Return the specs of the outputs; raise ShapeError if the inputs do not fit."""
        require_one_float_type(self, mixed_half=True, X=x, dY=dy)
        stats = self.check_images(x, scale=scale)
        require(dy.shape == x.shape, self, f"dY must have the shape of X, {x.shape}, got {dy.shape}")
        for spec in saved:
            require(
                spec.size == math.prod(stats),
                self,
                f"the saved statistics must have shape {stats} for X {x.shape}, got {spec.shape}",
            )
        return (x.plain, scale.plain, scale.plain)

    def flops(self, x: TensorSpec, *others: TensorSpec) -> int:
        return 11 * x.size


@register
@operator_class(frozen=True)
class GroupNormGradient(_Backward):
    """Gradients of GroupNorm: of X, gamma and beta."""

    inputs = ("dY", "X", "gamma", "beta", "mean", "rsig")
    group: int = 32
    is_test: bool = False

    def groups(self, channels: int) -> int:
        require(
            self.group >= 1 and channels % self.group == 0,
            self,
            f"group must divide the {channels} channels of X, got group={self.group}",
        )
        return self.group

    def infer(  # one parameter per input
        self, dy: TensorSpec, x: TensorSpec, gamma: TensorSpec, beta: TensorSpec, mean: TensorSpec, rsig: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        found: tuple[TensorSpec, ...] = self.check_gradient(x, dy, gamma, mean, rsig)
        return found


@register
@operator_class(frozen=True)
class InstanceNormGradient(_Backward):
    """Gradients of InstanceNorm: of X, scale and bias; statistics that are not given are computed again."""

    inputs = ("X", "scale", "bias", "dY", "mean?", "inv_std?")

    def infer(
        self, x: TensorSpec, scale: TensorSpec, bias: TensorSpec, dy: TensorSpec, *saved: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        found: tuple[TensorSpec, ...] = self.check_gradient(x, dy, scale, *saved)
        return found


def _backward(op: ImageNorm, ctx: RunContext, x: Any, dy: Any, scale: Any, saved: Sequence[Any]) -> tuple[Any, ...]:
    laid, per_group, per_channel, axes = op.lay(x.shape)
    slopes = widen(dy).reshape(laid)
    if len(saved) == 2:
        mean, inverse = (widen(a).reshape(per_group) for a in saved)
        normal = (widen(x).reshape(laid) - mean) * inverse
    else:
        normal, _, inverse = _normalize(op, ctx, x)
    inner = slopes * widen(scale).reshape(per_channel)
    along = (inner * normal).mean(axis=axes, keepdims=True)
    dx = (inner - inner.mean(axis=axes, keepdims=True) - normal * along) * inverse
    over = (0, 3) if op.order == "NCHW" else (0, 1)  # images and positions
    dscale, dbias = (slopes * normal).sum(axis=over), slopes.sum(axis=over)
    return narrow(dx.reshape(x.shape), x), narrow(dscale.reshape(-1), scale), narrow(dbias.reshape(-1), scale)


@kernel(GroupNormGradient)
def group_norm_gradient(
    op: GroupNormGradient, ctx: RunContext, dy: Any, x: Any, gamma: Any, beta: Any, mean: Any, rsig: Any
) -> tuple[Any, ...]:
    return _backward(op, ctx, x, dy, gamma, (mean, rsig))


@kernel(InstanceNormGradient)
def instance_norm_gradient(
    op: InstanceNormGradient, ctx: RunContext, x: Any, scale: Any, bias: Any, dy: Any, *saved: Any
) -> tuple[Any, ...]:
    return _backward(op, ctx, x, dy, scale, saved)
