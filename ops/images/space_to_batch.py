"""SpaceToBatch, which splits images into several smaller samples, and BatchToSpace, which joins them again."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.images.pad_image import Borders
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchToSpace", "SpaceToBatch"]


@dataclass(frozen=True)
class _Blocks(Borders):
    signature = "X -> Y"
    flops_per_element = 0
    block_size: int = 2
    order: str = "NCHW"

    def check(self) -> None:
        super().check()
        if self.order != "NCHW":
            raise ArgumentError(f"{self.type}: order must be NCHW, got {self.order!r}; put NHWC2NCHW before")
        if self.block_size < 1:
            raise ArgumentError(f"{self.type}: block_size must be 1 or more, got {self.block_size}")

    def check_axes(self, x: TensorSpec) -> None:
        require(x.ndim == 4, self, f"X must have 4 axes, got shape {x.shape}")


@register
@dataclass(frozen=True)
class SpaceToBatch(_Blocks):
    """Y = every ``block_size``-th row and column of the images X, padded with zeros, one sample for each start.

    The rows and columns that start at i and j are samples (i * block_size + j) * N to (i * block_size + j + 1) * N - 1.
    """

    signature = "X (N, C, H, W): any -> Y (N * block_size * block_size, C, P, Q): as X"

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_axes(x)
        block = self.block_size
        extents = [n + sum(pads) for n, pads in zip(x.shape[2:], self.borders)]
        text = f"height and width with pads must be multiples of block_size={block}, got {tuple(extents)}"
        require(all(n % block == 0 for n in extents), self, text)
        return (x.with_shape((x.shape[0] * block * block, x.shape[1], *(n // block for n in extents))),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("BatchToSpace", [g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class BatchToSpace(_Blocks):
    """Y = the images that SpaceToBatch splits into X, without their border."""

    signature = "X (N * block_size * block_size, C, H, W): any -> Y (N, C, P, Q): as X"

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_axes(x)
        block = self.block_size
        require(
            x.shape[0] % (block * block) == 0,
            self,
            f"the number of samples must be a multiple of block_size ** 2, {block * block}, got {x.shape[0]}",
        )
        extents = [n * block - sum(pads) for n, pads in zip(x.shape[2:], self.borders)]
        require(min(extents) >= 0, self, f"the pads must not be larger than the images, got extents {tuple(extents)}")
        return (x.with_shape((x.shape[0] // (block * block), x.shape[1], *extents)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("SpaceToBatch", [g.d_output("Y")], [g.d_input("X")])]


@kernel(SpaceToBatch)
def space_to_batch(op: SpaceToBatch, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    block = op.block_size
    if any(map(any, op.borders)):
        x = ctx.xp.pad(x, [(0, 0), (0, 0), *op.borders], mode="constant")
    n, c, height, width = x.shape
    grid = x.reshape(n, c, height // block, block, width // block, block).transpose(3, 5, 0, 1, 2, 4)
    return (ctx.xp.ascontiguousarray(grid).reshape(block * block * n, c, height // block, width // block),)


@kernel(BatchToSpace)
def batch_to_space(op: BatchToSpace, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    block, ((top, bottom), (left, right)) = op.block_size, op.borders
    samples, c, height, width = x.shape
    n = samples // (block * block)
    grid = x.reshape(block, block, n, c, height, width).transpose(2, 3, 4, 0, 5, 1)
    whole = grid.reshape(n, c, height * block, width * block)
    return (ctx.xp.ascontiguousarray(whole[:, :, top : height * block - bottom, left : width * block - right]),)
