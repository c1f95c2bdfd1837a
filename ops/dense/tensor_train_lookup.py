"""TTSparseLengthsSum, sums of rows of a table that is a tensor train of three cores; and its gradient."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import add_rows, checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import counts_of_lengths, reduce_segments, segment_numbers
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["TTSparseLengthsSum", "TTSparseLengthsSumGradient"]

Array = Any


@dataclass(frozen=True)
class _Table(Operator):
    """Base: the sizes of the cores."""

    lengths: ClassVar[int] = 4  # the index of the input lengths
    factor_i: tuple[int, ...] = ()
    factor_j: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    emb_size: int = 64

    def check(self) -> None:
        """Raise ArgumentError unless the sizes of the cores match."""
        sizes = (*self.factor_i, *self.factor_j, *self.ranks)
        counts = [len(self.factor_i), len(self.factor_j), len(self.ranks)]
        if counts != [3, 3, 4] or min(sizes) < 1 or self.ranks[0] != 1 or self.ranks[3] != 1:
            raise ArgumentError(
                f"{self.type} needs three numbers factor_i, three factor_j and four ranks, all positive, the "
                f"first and the last rank 1; got {list(self.factor_i)}, {list(self.factor_j)} and {list(self.ranks)}"
            )
        if self.emb_size != math.prod(self.factor_j):
            raise ArgumentError(
                f"{self.type}: emb_size must be the product of factor_j, {math.prod(self.factor_j)}, "
                f"got {self.emb_size}"
            )

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == self.lengths else "here"

    def check_cores(self, cores: tuple[Any, ...]) -> None:
        """Raise ShapeError unless the cores have the right sizes and the same type."""
        for k, core in enumerate(cores):
            shape = (self.factor_i[k], self.ranks[k], self.factor_j[k], self.ranks[k + 1])
            size = math.prod(core.shape)
            require(
                tuple(core.shape[:1]) == shape[:1] and size == math.prod(shape),
                self,
                f"core{k} must have shape {shape}, got {tuple(core.shape)}",
            )

    def rows_of(self, core: Array, k: int, which: Array) -> Array:
        """Return the rows ``which`` of core ``k`` as matrices (rank before, output and rank after)."""
        return core.reshape(self.factor_i[k], self.ranks[k], -1).take(which, axis=0)

    def products(self, rows: int) -> int:
        """Return the floating-point operations that computing this number of rows takes."""
        (a, b, c), (_, r, s, _) = self.factor_j, self.ranks
        return 2 * rows * a * b * s * (r + c)


@register
@dataclass(frozen=True)
class TTSparseLengthsSum(_Table):
    """OUTPUT[s] = the sum of the rows of a table at the indices of segment s; the segments have ``lengths``.

    The table has prod(factor_i) rows. Row i is the product of one row of each core, which the digits of i in the bases
    ``factor_i`` select, the least significant digit first. Core k is (factor_i[k], ranks[k], factor_j[k],
    ranks[k + 1]). The other outputs are for the gradient: intermediate products, and the digits of the indices.

    Source: Hrinchuk et al., "Tensorized Embedding Layers", 2019, arXiv:1901.10787.
    """

    signature = """
        core0 (...): float32|float64
        core1 (...): as core0
        core2 (...): as core0
        index (I): int64
        lengths (S): int32
        -> OUTPUT (S, emb_size): as core0
        -> core0_output (I, factor_j[0], ranks[1]): as core0
        -> core1_output (I, factor_j[0] * factor_j[1], ranks[2]): as core0
        -> indices (I, 3): int64
    """

    def check_inputs(self, *inputs: TensorSpec) -> None:
        self.check_cores(inputs[:3])

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input(name) for name in ("core0", "core1", "core2", "lengths")]
        inputs += [g.output(name) for name in ("core0_output", "core1_output", "indices")]
        outputs = [g.d_input(k) for k in range(3)]
        return [make_op("TTSparseLengthsSumGradient", [*inputs, g.d_output("OUTPUT")], outputs)]

    def flops(self, *inputs: TensorSpec) -> int:
        return self.products(inputs[3].size) + inputs[3].size * self.emb_size


@kernel(TTSparseLengthsSum)
def tt_sparse_lengths_sum(op: TTSparseLengthsSum, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    *cores, index, lengths = inputs
    counts = counts_of_lengths(op, ctx, lengths, index.shape[0])
    index = checked_indices(ctx, op.type, index, math.prod(op.factor_i))
    first, second, _ = op.factor_i
    digits = ctx.xp.stack([index % first, index // first % second, index // (first * second)], axis=1)
    a, b, c = op.factor_j
    n, s = index.shape[0], op.ranks[2]
    one = op.rows_of(cores[0], 0, digits[:, 0]).reshape(n, a, op.ranks[1])
    two = (one @ op.rows_of(cores[1], 1, digits[:, 1])).reshape(n, a * b, s)
    rows = (two @ op.rows_of(cores[2], 2, digits[:, 2])).reshape(n, a * b * c)
    out = ctx.xp.empty((counts.size, op.emb_size), rows.dtype)
    reduce_segments(ctx.xp, counts, lambda positions: rows.take(positions, axis=0), out)
    return out, one, two, digits


@register
@dataclass(frozen=True)
class TTSparseLengthsSumGradient(_Table):
    """The gradients of the three cores.

    Without arguments, the sizes are the shapes of the cores, (factor_i, rank before, factor_j, rank after).
    """

    signature = """
        core0
        core1
        core2
        lengths
        core0_output (...): as core0
        core1_output (...): as core0
        indices (I, 3): int64
        dOUTPUT (S, D): as core0
        -> dcore0
        -> dcore1
        -> dcore2
    """
    lengths = 3

    def check(self) -> None:
        if self.factor_i or self.factor_j or self.ranks:
            super().check()

    def sized(self, *cores: Any) -> TTSparseLengthsSumGradient:
        """Return the operator with the sizes from its arguments or, without them, from the cores."""
        if self.factor_i or self.factor_j or self.ranks:
            return self
        for k, core in enumerate(cores):
            rule = f"without factor_i, factor_j and ranks core{k} must have 4 axes, got {core.shape}"
            require(len(core.shape) == 4, self, rule)
        i, before, j, after = zip(*(core.shape for core in cores))
        sized = TTSparseLengthsSumGradient(i, j, (*before, after[-1]), math.prod(j))
        sized.check()
        return sized

    def check_inputs(self, *inputs: TensorSpec) -> None:
        sized = self.sized(*inputs[:3])
        sized.check_cores(inputs[:3])
        shape, got = (inputs[3].shape[0], sized.emb_size), inputs[7].shape
        require(got == shape, self, f"dOUTPUT must have shape {shape}, got {got}")

    def flops(self, *inputs: TensorSpec) -> int:
        return 2 * self.sized(*inputs[:3]).products(inputs[6].shape[0])


@kernel(TTSparseLengthsSumGradient)
def tt_sparse_lengths_sum_gradient(op: TTSparseLengthsSumGradient, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    *cores, lengths, one, two, digits, dy = inputs
    op = op.sized(*cores)
    counts = counts_of_lengths(op, ctx, lengths, digits.shape[0])
    (a, b, c), (_, r, s, _), n = op.factor_j, op.ranks, digits.shape[0]
    d_rows = dy.take(segment_numbers(ctx, counts), axis=0).reshape(n, a * b, c)
    d_two = (d_rows @ op.rows_of(cores[2], 2, digits[:, 2]).swapaxes(1, 2)).reshape(n, a, b * s)
    d_one = d_two @ op.rows_of(cores[1], 1, digits[:, 1]).swapaxes(1, 2)
    d_cores = []
    for k, d_core in enumerate((d_one.reshape(n, a * r), one.swapaxes(1, 2) @ d_two, two.swapaxes(1, 2) @ d_rows)):
        table = ctx.xp.zeros((op.factor_i[k], cores[k].size // op.factor_i[k]), cores[k].dtype)
        add_rows(ctx.xp, table, digits[:, k], d_core.reshape(n, table.shape[1]), ctx.add_in_order)
        d_cores.append(table.reshape(cores[k].shape))
    return tuple(d_cores)
