"""ConcatBatchMatMulBatchGatherOp: dot products of pairs of vectors of each sample."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ConcatBatchMatMulBatchGatherOp"]


@register
@dataclass(frozen=True)
class ConcatBatchMatMulBatchGatherOp(Operator):
    """Y[n, k] = the dot product of X_i[n] and X_j[n], where indices[k] = i * (number of X) + j. No gradient.

    The same as stacking n matrices of shape (samples, width) into (samples, n, width), multiplying by the transpose,
    and gathering from the products in row-major order.
    """

    signature = "indices (I): int32|int64, X+ (N, D): one float -> Y (N, I): as X"

    def flops(self, indices: TensorSpec, *xs: TensorSpec) -> int:
        return 2 * len(xs) ** 2 * xs[0].size


@kernel(ConcatBatchMatMulBatchGatherOp)
def concat_batch_mat_mul_batch_gather(
    op: ConcatBatchMatMulBatchGatherOp, ctx: RunContext, indices: Any, *xs: Any
) -> tuple[Any, ...]:
    indices = checked_indices(ctx, op.type, indices, len(xs) ** 2)
    stacked = ctx.xp.stack(xs, axis=1)
    products = ctx.xp.matmul(stacked, stacked.transpose(0, 2, 1))
    return (products.reshape(products.shape[0], len(xs) ** 2)[:, indices],)
