"""GroupNorm and InstanceNorm: each image normalized per group of channels or per channel; with gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.image_order import channel_axis, check_order
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, GradientError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GroupNorm", "GroupNormGradient", "ImageNorm", "InstanceNorm", "InstanceNormGradient"]


@dataclass(frozen=True)
class ImageNorm(Operator):
    """Base of normalizations of single images and of their gradients."""

    epsilon: float = 1e-5
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)
        if self.epsilon < 0:
            raise ArgumentError(f"{self.type}: epsilon must not be negative, got {self.epsilon}")

    def groups(self, channels: int) -> int:
        """Return the number of groups of an image's channels."""
        return channels

    def parts(self, shape: Sequence[int]) -> tuple[int, int, int, int]:
        """Return the numbers of images, groups, channels per group, and positions."""
        channels = shape[channel_axis(self.order, len(shape))]
        groups = self.groups(channels)
        return shape[0], groups, channels // groups, math.prod(shape[1:]) // max(channels, 1)

    def check_inputs(self, *inputs: TensorSpec) -> None:
        x = inputs[self.inputs.index("X")]
        require(math.prod(x.shape[1:]) > 0, self, f"the images of X must have elements, got shape {x.shape}")
        self.parts(x.shape)

    def broadcast_shapes(
        self, shape: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return shapes in which X, numbers per group and numbers per channel broadcast, and the axes of a group."""
        n, groups, channels, positions = self.parts(shape)
        if self.order == "NCHW":
            return (n, groups, channels, positions), (n, groups, 1, 1), (1, groups, channels, 1), (2, 3)
        return (n, positions, groups, channels), (n, 1, groups, 1), (1, 1, groups, channels), (1, 3)


@dataclass(frozen=True)
class _Forward(ImageNorm):
    flops_per_element = 7


@dataclass(frozen=True)
class _GroupArguments(ImageNorm):
    group: int = 32
    is_test: bool = False

    def groups(self, channels: int) -> int:
        require(
            self.group >= 1 and channels % self.group == 0,
            self,
            f"the {channels} channels of X must be divisible by group={self.group}",
        )
        return self.group


@register
@dataclass(frozen=True)
class GroupNorm(_GroupArguments, _Forward):
    """Y = gamma * (X - mean) * rsig + beta: each image normalized in ``group`` groups of its channels.

    There is one mean and one rsig = 1 / sqrt(variance + epsilon) per group, and one gamma and beta per channel.

    Source: Wu and He, "Group Normalization", 2018, arXiv:1803.08494.
    """

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        gamma (C): wide X
        beta (C): wide X
        -> Y: as X
        -> mean? (N, group): as gamma
        -> rsig? (N, group): as gamma
    """

    def check(self) -> None:
        super().check()
        if self.group < 1:
            raise ArgumentError(f"{self.type}: group must be at least 1, got {self.group}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        if self.n_out < 3:
            raise GradientError(
                "GroupNorm: its gradient reads mean and rsig of the groups; give the operator three outputs"
            )
        inputs = [g.d_output("Y"), *map(g.input, ("X", "gamma", "beta")), g.output("mean"), g.output("rsig")]
        return [make_op("GroupNormGradient", inputs, [g.d_input(i) for i in range(3)])]


@register
@dataclass(frozen=True)
class InstanceNorm(_Forward):
    """Y = scale * (X - mean) * inv_std + bias: each channel of each image normalized on its own.

    inv_std = 1 / sqrt(variance + epsilon); there is one scale and one bias per channel.

    Source: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", 2016, arXiv:1607.08022.
    """

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        scale (C): wide X
        bias (C): wide X
        -> Y: as X
        -> mean? (N, C): as scale
        -> inv_std? (N, C): as scale
    """
    inplace = ((0, 0),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        saved = [g.output(i) for i in range(1, self.n_out)]
        inputs = [*map(g.input, ("X", "scale", "bias")), g.d_output("Y"), *saved]
        return [make_op("InstanceNormGradient", inputs, [g.d_input(i) for i in range(3)])]


def _normalize(op: ImageNorm, ctx: RunContext, x: Any) -> tuple[Any, Any, Any]:
    """Return X normalized, in the shape that broadcasts, and the mean and inverse deviation of each group."""
    grouped, _, _, axes = op.broadcast_shapes(x.shape)
    values = widen(x).reshape(grouped)
    mean = values.mean(axis=axes, keepdims=True)
    normal = values - mean
    variance = (normal * normal).mean(axis=axes, keepdims=True)
    inverse = 1 / ctx.xp.sqrt(variance + variance.dtype.type(op.epsilon))
    normal *= inverse
    return normal, mean, inverse


def _forward(op: ImageNorm, ctx: RunContext, x: Any, scale: Any, bias: Any) -> tuple[Any, ...]:
    normal, mean, inverse = _normalize(op, ctx, x)
    per_channel, stats = op.broadcast_shapes(x.shape)[2], op.parts(x.shape)[:2]
    y = normal * scale.reshape(per_channel) + bias.reshape(per_channel)
    return narrow(y.reshape(x.shape), x), narrow(mean.reshape(stats), scale), narrow(inverse.reshape(stats), scale)


kernel(GroupNorm)(_forward)
kernel(InstanceNorm)(_forward)


@dataclass(frozen=True)
class _Backward(ImageNorm):
    signature = "-> dX, dscale, dbias"
    flops_per_element = 11


@register
@dataclass(frozen=True)
class GroupNormGradient(_GroupArguments, _Backward):
    """Gradients of GroupNorm: of X, gamma and beta."""

    signature = "dY, X, gamma, beta, mean, rsig -> dX, dgamma, dbeta"


@register
@dataclass(frozen=True)
class InstanceNormGradient(_Backward):
    """Gradients of InstanceNorm: of X, scale and bias; statistics are computed again if they are not inputs."""

    signature = "X, scale, bias, dY, mean?, inv_std? -> dX, dscale, dbias"


def _backward(op: ImageNorm, ctx: RunContext, x: Any, dy: Any, scale: Any, saved: Sequence[Any]) -> tuple[Any, ...]:
    grouped, per_group, per_channel, axes = op.broadcast_shapes(x.shape)
    d_values = widen(dy).reshape(grouped)
    if len(saved) == 2:
        mean, inverse = (widen(a).reshape(per_group) for a in saved)
        normal = (widen(x).reshape(grouped) - mean) * inverse
    else:
        normal, _, inverse = _normalize(op, ctx, x)
    d_normal = d_values * widen(scale).reshape(per_channel)
    projection = (d_normal * normal).mean(axis=axes, keepdims=True)
    dx = (d_normal - d_normal.mean(axis=axes, keepdims=True) - normal * projection) * inverse
    over = (0, 3) if op.order == "NCHW" else (0, 1)  # images and positions
    dscale, dbias = (d_values * normal).sum(axis=over), d_values.sum(axis=over)
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
