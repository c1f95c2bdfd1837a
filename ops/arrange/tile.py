"""Tile and its gradient: a tensor repeated along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents, one_integer
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Tile", "TileGradient"]


@dataclass(frozen=True)
class _Tiling(Operator):
    tiles: int = 1
    axis: int = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index > 0 else "here"

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", n_in > 1)
        return super().with_arity(n_in, n_out)

    def tiles_and_axis(self, ctx: RunContext, given: Sequence[Any], ndim: int) -> tuple[int, int]:
        """Return the number of tiles and the non-negative axis; inputs take precedence over arguments."""
        values = [one_integer(self, ctx, scalar, name) for scalar, name in zip(given, ("tiles", "axis"))]
        values += [self.tiles, self.axis][len(given) :]
        return self.checked(values[0], values[1], ndim)

    def checked(self, tiles: int, axis: int, ndim: int) -> tuple[int, int]:
        require(tiles >= 1, self, f"tiles must be 1 or more, got {tiles}")
        require(-ndim <= axis < ndim, self, f"axis must lie in [{-ndim}, {ndim}), got {axis}")
        return tiles, axis % ndim

    def _require_arguments(self, given: Sequence[TensorSpec]) -> None:
        if given:
            raise ShapeError(f"{self.type}: with tiles as an input the shape is known only when the net runs")


@register
@dataclass(frozen=True)
class Tile(_Tiling):
    """Y = X repeated ``tiles`` times along ``axis``; both may be given as inputs."""

    signature = """
        X (*A, N, *B): any
        tiles? (1): int32|int64
        axis? (1): int32|int64
        -> Y (*A, M, *B): as X, M = N * tiles
    """

    def infer(self, x: TensorSpec, *given: TensorSpec) -> tuple[TensorSpec, ...]:
        self._require_arguments(given)
        tiles, axis = self.checked(self.tiles, self.axis, x.ndim)
        return (x.with_shape([n * tiles if i == axis else n for i, n in enumerate(x.shape)]),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        given = [g.input(i) for i in range(1, len(g.op.input))]
        return [make_op("TileGradient", [g.d_output("Y"), *given], [g.d_input("X")])]


@kernel(Tile)
def tile(op: Tile, ctx: RunContext, x: Any, *given: Any) -> tuple[Any, ...]:
    tiles, axis = op.tiles_and_axis(ctx, given, x.ndim)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    shape = (*before, x.shape[axis] * tiles, *after)
    check_extents("Tile: Y", shape, x.dtype)
    if not x.size:
        return (ctx.xp.zeros(shape, x.dtype),)
    copies = ctx.xp.broadcast_to(x.reshape(*before, 1, *x.shape[axis:]), (*before, tiles, *x.shape[axis:]))
    return (copies.reshape(shape),)


@register
@dataclass(frozen=True)
class TileGradient(_Tiling):
    """dX = the sum of the tiles of dY."""

    signature = "dY, tiles?, axis? -> dX"
    flops_per_element = 1

    def infer(self, dy: TensorSpec, *given: TensorSpec) -> tuple[TensorSpec, ...]:
        self._require_arguments(given)
        tiles, axis = self.checked(self.tiles, self.axis, dy.ndim)
        require(dy.shape[axis] % tiles == 0, self, f"axis {axis} of dY {dy.shape} must be a multiple of tiles={tiles}")
        return (dy.with_shape([n // tiles if i == axis else n for i, n in enumerate(dy.shape)]),)


@kernel(TileGradient)
def tile_gradient(op: TileGradient, ctx: RunContext, dy: Any, *given: Any) -> tuple[Any, ...]:
    tiles, axis = op.tiles_and_axis(ctx, given, dy.ndim)
    require(dy.shape[axis] % tiles == 0, op, f"axis {axis} of dY {dy.shape} must be a multiple of tiles={tiles}")
    if not dy.size:
        return (ctx.xp.zeros((*dy.shape[:axis], dy.shape[axis] // tiles, *dy.shape[axis + 1 :]), dy.dtype),)
    parts = dy.reshape(*dy.shape[:axis], tiles, dy.shape[axis] // tiles, *dy.shape[axis + 1 :])
    return (parts.sum(axis=axis, dtype=dy.dtype),)
