"""ConcatBatchMatMulBatchGatherOp: dot products of pairs of vectors of each sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register

__all__ = ["ConcatBatchMatMulBatchGatherOp"]


@register
@operator_class(frozen=True)
class ConcatBatchMatMulBatchGatherOp(Operator):
    """Y[n, k] = the dot product of X_i[n] and X_j[n], where indices[k] = i * (number of X) + j. No gradient.

    The same as stacking n matrices of shape (samples, width) into (samples, n, width), multiplying by the transpose,
    and gathering from the products in row-major order.
    """

    signature = "indices (I): int32|int64, X+ (N, D): float -> Y (N, I): as X"

    def infer(self, indices: TensorSpec, *xs: TensorSpec) -> tuple[TensorSpec, ...]:
        text = f"indices must be a vector of int32 or int64, got {indices.shape} {indices.dtype}"
        require(indices.ndim == 1 and indices.dtype in (np.int32, np.int64), self, text)
        first = xs[0]
        shapes = [f"{x.shape} {x.dtype}" for x in xs]
        same = all(x.shape == first.shape and x.dtype == first.dtype for x in xs)
        fits = first.ndim == 2 and first.dtype.kind == "f" and same
        require(fits, self, f"all X must be matrices of the same shape and floating-point type, got {shapes}")
        return (first.with_shape((first.shape[0], indices.shape[0])),)

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
