"""Adagrad on the rows of a table, computed from the gradient of a lookup's output, without storing that of the rows.

The gradient of SparseLengthsSum, SparseLengthsMean or SparseLengthsPositionalWeightedSum has one row per segment, by
which each index of the segment updates its row of the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.ops.core.segment_groups import (
    as_rows,
    counts_of_lengths,
    per_row,
    positions_in_segments,
    segment_numbers,
)
from netbuilder.ops.updates.adagrad import SparseAdagrad
from netbuilder.ops.updates.row_updates import update_rows, updating
from netbuilder.ops.updates.sparse_updates import RowWiseSparseAdagrad
from netbuilder.ops.updates.update_rules import (
    check_range,
)
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "RowWiseSparseAdagradFusedWithSparseLengthsMeanGradient",
    "RowWiseSparseAdagradFusedWithSparseLengthsMeanGradientApprox",
    "RowWiseSparseAdagradFusedWithSparseLengthsSumGradient",
    "RowWiseSparseAdagradFusedWithSparseLengthsSumGradientApprox",
    "RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradient",
    "RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradientApprox",
    "SparseAdagradFusedWithSparseLengthsMeanGradient",
    "SparseAdagradFusedWithSparseLengthsMeanGradientApprox",
    "SparseAdagradFusedWithSparseLengthsSumGradient",
    "SparseAdagradFusedWithSparseLengthsSumGradientApprox",
    "SparseAdagradFusedWithSparseLengthsWeightedSumGradient",
    "SparseAdagradFusedWithSparseLengthsWeightedSumGradientApprox",
]

_PLAIN = ("param", "moment", "indices", "grad", "lr", "lengths")
_WEIGHTED = ("param", "moment", "aux_param", "indices", "grad", "lr", "lengths")
_OUTPUTS = ("output_param", "output_moment")


@dataclass(frozen=True)
class _Fused(Operator):
    """Base: a row that occurs several times is updated each time, in order."""

    signature = """
        param (R, *S): float
        moment (R, *S): as param
        indices (I): int32|int64
        grad (M, *S): float, one row per segment
        lr {1}: float|int
        lengths (M): int32|int64
        -> output_param (R, *S): as param
        -> output_moment (R, *S): as param
    """
    must_inplace: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (1, 1))
    by_row: ClassVar[bool] = False  # one moment per row, not per element
    mean: ClassVar[bool] = False  # the lookup is SparseLengthsMean
    epsilon: float = 1e-5
    weight_decay: float = 0.0

    def check(self) -> None:
        check_range(self, 0, math.inf, epsilon=self.epsilon, weight_decay=self.weight_decay)

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if type(self).inputs[index] == "lengths" else "here"

    def flops(self, *inputs: TensorSpec) -> int:
        given = dict(zip(type(self).inputs, inputs))
        return 9 * given["indices"].size * (given["param"].size // max(1, given["param"].shape[0]))


def _update(op: _Fused, ctx: RunContext, inputs: Sequence[Any], targets: Sequence[Any]) -> None:
    """Update param and moment in ``targets``, in place; with ``aux_param``, write its gradient to the third target."""
    given = dict(zip(type(op).inputs, inputs))
    indices, grad, (param, moment) = given["indices"], widen(given["grad"]), targets[:2]
    counts = counts_of_lengths(op, ctx, given["lengths"], indices.shape[0])
    numbers = segment_numbers(ctx, counts)
    indices = checked_indices(ctx, op.type, indices, param.shape[0])
    factors = None
    if op.mean:
        grad = grad / per_row(ctx.xp.asarray(counts.clip(1)), grad)
    elif "aux_param" in given:
        weights = given["aux_param"]
        longest = int(counts.max(initial=0))
        require(
            longest <= weights.shape[0],
            op,
            f"aux_param must have one weight per position in a segment, {longest}, got {weights.shape[0]}",
        )
        factors = weights[ctx.xp.asarray(positions_in_segments(counts))].astype(grad.dtype)
        rows = as_rows(widen(param[indices]))
        targets[2][...] = narrow((as_rows(grad)[numbers] * rows).sum(axis=1), targets[2])

    def gradients(positions: Any) -> Any:
        g = grad[numbers[positions]]
        return g if factors is None else g * per_row(factors[positions], g)

    rule = RowWiseSparseAdagrad if op.by_row else SparseAdagrad
    rows = rule(epsilon=op.epsilon, weight_decay=op.weight_decay)
    update_rows(rows, ctx, [param, moment, indices, None, given["lr"]], [param, moment], gradients)


def _plain(op: _Fused, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    targets = [inputs[0].copy(), inputs[1].copy()]
    if "aux_param" in type(op).inputs:
        targets.append(ctx.xp.zeros(inputs[3].shape, inputs[2].dtype))
    _update(op, ctx, inputs, targets)
    return tuple(targets)


def _prepare(op: _Fused, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    return updating(op, specs, lambda inputs, targets: _update(op, ctx.run, inputs, targets))


@dataclass(frozen=True)
class _Weighted(_Fused):
    """Base: a sum weighted by ``aux_param``, a weight per position in a segment; ``aux_grad`` is by index."""

    signature = """
        param (R, *S): float
        moment (R, *S): as param
        aux_param (P): float
        indices (I): int32|int64
        grad (M, *S): float, one row per segment
        lr {1}: float|int
        lengths (M): int32|int64
        -> output_param (R, *S): as param
        -> output_moment (R, *S): as param
        -> aux_grad (I): as aux_param
    """


@dataclass(frozen=True)
class _RowWise(_Fused):
    """Base: ``moment`` has one number per row."""

    signature = """
        param (R, *S): float
        moment (R): as param, one number per row
        indices (I): int32|int64
        grad (M, *S): float, one row per segment
        lr {1}: float|int
        lengths (M): int32|int64
        -> output_param (R, *S): as param
        -> output_moment (R): as param
    """
    by_row = True


@dataclass(frozen=True)
class _RowWiseWeighted(_Fused):
    """Base: one moment per row, and a sum weighted by ``aux_param``."""

    signature = """
        param (R, *S): float
        moment (R): as param, one number per row
        aux_param (P): float
        indices (I): int32|int64
        grad (M, *S): float, one row per segment
        lr {1}: float|int
        lengths (M): int32|int64
        -> output_param (R, *S): as param
        -> output_moment (R): as param
        -> aux_grad (I): as aux_param
    """
    by_row = True


@register
@dataclass(frozen=True)
class SparseAdagradFusedWithSparseLengthsSumGradient(_Fused):
    """The gradient of SparseLengthsSum and SparseAdagrad in one: P' = P + lr * G / (sqrt(h') + epsilon), h' = h + G^2.

    G is the row of ``grad`` of the segment, with ``weight_decay`` times P added.
    """


@register
@dataclass(frozen=True)
class SparseAdagradFusedWithSparseLengthsSumGradientApprox(_Fused):
    """The same as SparseAdagradFusedWithSparseLengthsSumGradient."""


@register
@dataclass(frozen=True)
class SparseAdagradFusedWithSparseLengthsMeanGradient(_Fused):
    """The gradient of SparseLengthsMean and SparseAdagrad in one: G is divided by the segment's length."""

    mean = True


@register
@dataclass(frozen=True)
class SparseAdagradFusedWithSparseLengthsMeanGradientApprox(_Fused):
    """The same as SparseAdagradFusedWithSparseLengthsMeanGradient."""

    mean = True


@register
@dataclass(frozen=True)
class SparseAdagradFusedWithSparseLengthsWeightedSumGradient(_Weighted):
    """The gradient of SparseLengthsPositionalWeightedSum and SparseAdagrad in one.

    ``aux_param`` holds the weights, one per position in a segment. ``aux_grad`` has for each index the product of its
    segment's row of ``grad`` with the row of the table before the update.
    """


@register
@dataclass(frozen=True)
class SparseAdagradFusedWithSparseLengthsWeightedSumGradientApprox(_Weighted):
    """SparseAdagradFusedWithSparseLengthsWeightedSumGradient; here ``aux_grad`` is exact.

    In Caffe2, it reads rows that occur again after their first update.
    """


@register
@dataclass(frozen=True)
class RowWiseSparseAdagradFusedWithSparseLengthsSumGradient(_RowWise):
    """The gradient of SparseLengthsSum and RowWiseSparseAdagrad in one: one h per row, h' = h + mean(G^2).

    Otherwise as SparseAdagradFusedWithSparseLengthsSumGradient.
    """


@register
@dataclass(frozen=True)
class RowWiseSparseAdagradFusedWithSparseLengthsSumGradientApprox(_RowWise):
    """The same as RowWiseSparseAdagradFusedWithSparseLengthsSumGradient."""


@register
@dataclass(frozen=True)
class RowWiseSparseAdagradFusedWithSparseLengthsMeanGradient(_RowWise):
    """The gradient of SparseLengthsMean and RowWiseSparseAdagrad in one."""

    mean = True


@register
@dataclass(frozen=True)
class RowWiseSparseAdagradFusedWithSparseLengthsMeanGradientApprox(_RowWise):
    """The same as RowWiseSparseAdagradFusedWithSparseLengthsMeanGradient."""

    mean = True


@register
@dataclass(frozen=True)
class RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradient(_RowWiseWeighted):
    """The gradient of SparseLengthsPositionalWeightedSum and RowWiseSparseAdagrad in one."""


@register
@dataclass(frozen=True)
class RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradientApprox(_RowWiseWeighted):
    """RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradient; here ``aux_grad`` is exact.

    In Caffe2, it reads rows that occur again after their first update.
    """


for _cls in (
    SparseAdagradFusedWithSparseLengthsSumGradient,
    SparseAdagradFusedWithSparseLengthsSumGradientApprox,
    SparseAdagradFusedWithSparseLengthsMeanGradient,
    SparseAdagradFusedWithSparseLengthsMeanGradientApprox,
    SparseAdagradFusedWithSparseLengthsWeightedSumGradient,
    SparseAdagradFusedWithSparseLengthsWeightedSumGradientApprox,
    RowWiseSparseAdagradFusedWithSparseLengthsSumGradient,
    RowWiseSparseAdagradFusedWithSparseLengthsSumGradientApprox,
    RowWiseSparseAdagradFusedWithSparseLengthsMeanGradient,
    RowWiseSparseAdagradFusedWithSparseLengthsMeanGradientApprox,
    RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradient,
    RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradientApprox,
):
    kernel(_cls)(_plain)
    prepare(_cls, device=CPU)(_prepare)
