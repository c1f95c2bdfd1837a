"""LpPool: the p-norm of windows; and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.conv_geometry import Geometry
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import TensorSpec, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.windows.conv_windows import channels_first, crop, from_channels_first, pad_images, taps
from netbuilder.ops.windows.pool import PoolArguments, Pooling
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LpPool", "LpPoolGradient"]


@dataclass(frozen=True)
class _Arguments(PoolArguments):
    p: float = 2.0

    def check(self) -> None:
        super().check()
        if self.p < 1:
            raise ArgumentError(f"{self.type}: p must be at least 1, got {self.p}")


@register
@dataclass(frozen=True)
class LpPool(_Arguments, Pooling):
    """Y = (sum of |X|^p)^(1/p) of each window; pads are 0.

    Source: Sermanet, Chintala and LeCun, "Convolutional Neural Networks Applied to House Numbers Digit Classification",
    2012, arXiv:1204.3968.
    """

    def flops(self, x: TensorSpec) -> int:
        return 3 * self.visits(x)


@register
@dataclass(frozen=True)
class LpPoolGradient(_Arguments):
    """dX = the sum over windows of dY * sign(X) * (|X| / Y)^(p - 1), where windows with Y = 0 count as 0."""

    signature = "X, Y, dY -> dX"

    def flops(self, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> int:
        return 5 * self.visits(x)


def _power(xp: Any, values: Any, exponent: float) -> Any:
    """Return non-negative values to a power, without a logarithm for common exponents."""
    if exponent in (0.0, 1.0, 2.0):
        return {0.0: xp.ones_like, 1.0: lambda v: v, 2.0: lambda v: v * v}[exponent](values)
    return xp.sqrt(values) if exponent == 0.5 else values ** values.dtype.type(exponent)


def _sums(xp: Any, images: Any, geometry: Geometry) -> Any:
    """Return the sum of each window."""
    total = xp.zeros((*images.shape[:2], *geometry.out), images.dtype)
    padded = pad_images(xp, images, geometry)
    for _, index in taps(geometry, geometry.out):
        total += padded[index]
    return total


@kernel(LpPool)
def lp_pool(op: LpPool, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    powers = _power(xp, abs(channels_first(xp, widen(x), op.order)), op.p)
    if op.global_pooling:
        sums = powers.sum(axis=tuple(range(2, x.ndim)), keepdims=True)
    else:
        sums = _sums(xp, powers, op.geometry(spec_of(x)))
    return (from_channels_first(xp, narrow(_power(xp, sums, 1 / op.p), x), op.order),)


@kernel(LpPoolGradient)
def lp_pool_gradient(op: LpPoolGradient, ctx: RunContext, x: Any, y: Any, dy: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    images, norms, d_norms = (channels_first(xp, widen(a), op.order) for a in (x, y, dy))
    zero = norms == 0
    scaled = d_norms / _power(xp, xp.where(zero, norms.dtype.type(1), norms), op.p - 1)
    scaled = xp.where(zero, norms.dtype.type(0), scaled)
    if op.global_pooling:
        spread = xp.broadcast_to(scaled, images.shape)
    else:
        geometry = op.geometry(spec_of(x))
        padded = xp.zeros_like(pad_images(xp, images, geometry))
        for _, index in taps(geometry, geometry.out):
            padded[index] += scaled
        spread = crop(xp, padded, images.shape[2:], geometry)
    dx = xp.sign(images) * _power(xp, abs(images), op.p - 1) * spread
    return (from_channels_first(xp, narrow(dx, x), op.order),)
