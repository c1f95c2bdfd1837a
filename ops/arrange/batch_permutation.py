"""BatchPermutation: the samples of a batch in another order."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import add_rows, checked_indices
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchPermutation", "BatchPermutationGradient"]


@dataclass(frozen=True)
class _Permutation(Operator):
    signature = "X, indices -> Y"
    flops_per_element = 0


@register
@dataclass(frozen=True)
class BatchPermutation(_Permutation):
    """Y[i] = X[indices[i]] for each sample i."""

    signature = "X (N, *S): any, indices (N): int32 -> Y (N, *S): as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("BatchPermutationGradient", [g.input("indices"), g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class BatchPermutationGradient(_Permutation):
    """dX[indices[i]] = dY[i] for each sample i, summed over repeated indices."""

    signature = "indices, dY -> dX"


@kernel(BatchPermutation)
def batch_permutation(op: BatchPermutation, ctx: RunContext, x: Any, indices: Any) -> tuple[Any, ...]:
    indices = checked_indices(ctx, op.type, indices, x.shape[0])
    return (x[indices],)


@kernel(BatchPermutationGradient)
def batch_permutation_gradient(op: BatchPermutationGradient, ctx: RunContext, indices: Any, dy: Any) -> tuple[Any, ...]:
    indices = checked_indices(ctx, op.type, indices, dy.shape[0])
    dx = ctx.xp.zeros(dy.shape, dy.dtype)
    add_rows(ctx.xp, dx, indices, dy, ctx.add_in_order)
    return (dx,)
