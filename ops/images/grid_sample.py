"""GridSample: images sampled at given positions; and its gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import add_rows
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GridSample", "GridSampleGradient"]

Array = Any
_MODES, _PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
_A = -0.75  # the coefficient of the cubic convolution
_FAR = 1 << 24  # pixels; positions farther outside are taken there


@dataclass(frozen=True)
class _Sampling(Operator):
    cubic: ClassVar[float] = _A
    far: ClassVar[int] = _FAR
    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False

    def check(self) -> None:
        for name, known in (("mode", _MODES), ("padding_mode", _PADDINGS)):
            if getattr(self, name) not in known:
                raise ArgumentError(
                    f"{self.type}: {name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )

    def check_inputs(self, x: TensorSpec, grid: TensorSpec, *others: TensorSpec) -> None:
        axes = x.ndim - 2
        require(
            grid.shape[-1] == axes and grid.ndim == x.ndim,
            self,
            f"grid must be (N, ..., {axes}) with {x.ndim} axes for X of shape {x.shape}, got shape {grid.shape}",
        )
        require(math.prod(x.shape[2:]) > 0 or not grid.size, self, f"images must have pixels, got shape {x.shape}")


@register
@dataclass(frozen=True)
class GridSample(_Sampling):
    """Y[n, :, i, j] = X[n] at the position grid[n, i, j], interpolated.

    A position is (x, y), or (x, y, z) in volumes; -1 and 1 are the outer edges of the first and the last pixel or, with
    ``align_corners``, their centers. ``padding_mode`` says what is outside of the image: zeros, the pixels at the
    border, or the image reflected at its edges (with ``align_corners``, at the centers of its outermost pixels). NaN is
    a position far outside.

    Source: Jaderberg et al., "Spatial Transformer Networks", 2015, arXiv:1506.02025; ONNX's operator GridSample.
    """

    signature = "X (N, C, *S): float, grid (N, *T, D): as X -> Y (N, C, *T): as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("grid"), g.d_output("Y")]
        return [make_op("GridSampleGradient", inputs, [g.d_input("X"), g.d_input("grid")])]

    def flops(self, x: TensorSpec, grid: TensorSpec) -> int:
        taps = {"linear": 2, "nearest": 1, "cubic": 4}[self.mode] ** (x.ndim - 2)
        return 2 * taps * x.shape[1] * (grid.size // max(grid.shape[-1], 1))


@register
@dataclass(frozen=True)
class GridSampleGradient(_Sampling):
    """dX and dgrid; a position has no gradient in the mode "nearest"."""

    signature = "X, grid, dY -> dX, dgrid"

    def flops(self, x: TensorSpec, grid: TensorSpec, dy: TensorSpec) -> int:
        return 3 * GridSample(self.mode, self.padding_mode, self.align_corners).flops(x, grid)


def _weights(xp: Any, mode: str, t: Array) -> list[tuple[int, Array, Array]]:
    """Return for the pixels around a position ``t`` after a pixel its offset, weight, and the weight's derivative."""
    if mode == "nearest":
        return [(0, xp.ones_like(t), xp.zeros_like(t))]
    if mode == "linear":
        one = xp.ones_like(t)
        return [(0, 1 - t, -one), (1, t, one)]

    def near(s: Array) -> tuple[Array, Array]:
        return ((_A + 2) * s - (_A + 3)) * s * s + 1, (3 * (_A + 2) * s - 2 * (_A + 3)) * s

    def far(s: Array) -> tuple[Array, Array]:
        return ((_A * s - 5 * _A) * s + 8 * _A) * s - 4 * _A, (3 * _A * s - 10 * _A) * s + 8 * _A

    found = []
    for offset, of, s, sign in ((-1, far, 1 + t, 1), (0, near, t, 1), (1, near, 1 - t, -1), (2, far, 2 - t, -1)):
        weight, slope = of(s)
        found.append((offset, weight, sign * slope))
    return found


def _inside(xp: Any, op: _Sampling, at: Array, extent: int) -> tuple[Array, Array | None]:
    """Return the pixel that is read at each place, and where there is one; None: everywhere."""
    if op.padding_mode == "zeros":
        return xp.clip(at, 0, extent - 1), (at >= 0) & (at < extent)
    if op.padding_mode == "border":
        return xp.clip(at, 0, extent - 1), None
    period = max(2 * (extent - 1), 1) if op.align_corners else 2 * extent
    folded = at % period
    return xp.minimum(folded, period - folded if op.align_corners else period - 1 - folded) % extent, None


def _taps(xp: Any, op: _Sampling, grid: Array, extents: tuple[int, ...]) -> Iterator[tuple[Array, Array, list[Array]]]:
    """Yield the pixels that samples are made of: index in the plane, weight, and derivatives by the positions, (N, P).

    Source: Keys, "Cubic convolution interpolation for digital image processing", 1981.
    """
    flat = grid.reshape(grid.shape[0], -1, grid.shape[-1])
    axes = []
    for axis, extent in enumerate(extents):
        scale = (extent - 1) / 2 if op.align_corners else extent / 2
        at = (flat[..., len(extents) - 1 - axis] + 1) * scale - (0 if op.align_corners else 0.5)
        at = xp.clip(xp.where(xp.isnan(at), at.dtype.type(-_FAR), at), -_FAR, _FAR)
        start = xp.rint(at) if op.mode == "nearest" else xp.floor(at)
        taps = []
        for offset, weight, slope in _weights(xp, op.mode, at - start):
            pixel, there = _inside(xp, op, start.astype(np.int64) + offset, extent)
            if there is not None:
                weight, slope = (xp.where(there, value, value.dtype.type(0)) for value in (weight, slope))
            taps.append((pixel, weight, slope * scale))
        axes.append(taps)
    for chosen in itertools.product(*axes):
        index = chosen[0][0]
        for extent, (pixel, _, _) in zip(extents[1:], chosen[1:]):
            index = index * extent + pixel
        slopes = []
        for axis in reversed(range(len(extents))):  # x is the last axis of the image
            factors = [part[2] if i == axis else part[1] for i, part in enumerate(chosen)]
            slopes.append(math.prod(factors[1:], start=factors[0]))
        weights = [part[1] for part in chosen]
        yield index, math.prod(weights[1:], start=weights[0]), slopes


@kernel(GridSample)
def grid_sample(op: GridSample, ctx: RunContext, x: Array, grid: Array) -> tuple[Array]:
    xp = ctx.xp
    planes, extents = widen(x).reshape(*x.shape[:2], math.prod(x.shape[2:])), x.shape[2:]
    y = xp.zeros((*x.shape[:2], math.prod(grid.shape[1:-1])), planes.dtype)
    for index, weight, _ in _taps(xp, op, widen(grid), extents) if y.size else ():
        y += weight[:, None] * xp.take_along_axis(planes, index[:, None], axis=2)
    return (narrow(y, x).reshape(*x.shape[:2], *grid.shape[1:-1]),)


@kernel(GridSampleGradient)
def grid_sample_gradient(
    op: GridSampleGradient, ctx: RunContext, x: Array, grid: Array, dy: Array
) -> tuple[Array, Array]:
    xp, (samples, channels), extents = ctx.xp, x.shape[:2], x.shape[2:]
    planes = widen(x).reshape(samples, channels, math.prod(extents))
    shares = widen(dy).reshape(samples, channels, math.prod(dy.shape[2:]))
    dx, pixels = xp.zeros(planes.size, planes.dtype), planes.shape[-1]
    d_grid = [xp.zeros((samples, shares.shape[-1]), planes.dtype) for _ in extents]
    first = (xp.arange(samples * channels) * pixels).reshape(samples, channels, 1)
    for index, weight, slopes in _taps(xp, op, widen(grid), extents) if shares.size else ():
        add_rows(xp, dx, first + index[:, None], weight[:, None] * shares, ctx.add_in_order)
        of_pixel = (xp.take_along_axis(planes, index[:, None], axis=2) * shares).sum(axis=1)
        d_grid = [total + slope * of_pixel for total, slope in zip(d_grid, slopes)]
    return narrow(dx, x).reshape(x.shape), narrow(xp.stack(d_grid, axis=-1), grid).reshape(grid.shape)
