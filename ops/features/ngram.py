"""NGramFromCategorical: several categorical columns combined into one number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NGramFromCategorical"]


@register
@dataclass(frozen=True)
class NGramFromCategorical(Operator):
    """Y = for each row of X, the number of its combination of categories.

    The columns ``col_ids`` hold categories; ``vals`` concatenates the possible ones of each column, of which there are
    ``categorical_limits[k]``. A category's position among these is a digit; the first column's is the least
    significant. Elements are rounded; those that are no category count as the first one.
    """

    signature = "X (N, *S): float32 -> Y (N): int64"
    col_ids: tuple[int, ...] = ()
    categorical_limits: tuple[int, ...] = ()
    vals: tuple[int, ...] = ()

    def check(self) -> None:
        limits = self.categorical_limits
        if not self.col_ids or len(self.col_ids) != len(limits) or min(self.col_ids) < 0:
            raise ArgumentError(
                "NGramFromCategorical: col_ids, not negative, and as many categorical_limits must be given, got "
                f"{list(self.col_ids)} and {list(limits)}"
            )
        if min(limits) < 1 or sum(limits) != len(self.vals):
            raise ArgumentError(
                "NGramFromCategorical: categorical_limits must be positive, and their sum the number of vals, got "
                f"{list(limits)} for {len(self.vals)} vals"
            )
        if math.prod(limits) >= 2**63:
            raise ArgumentError(f"NGramFromCategorical: {list(limits)} make more combinations than int64 can count")

    def check_inputs(self, x: TensorSpec) -> None:
        columns = math.prod(x.shape[1:])
        require(
            max(self.col_ids) < columns,
            self,
            f"col_ids must be less than {columns}, the columns of X, got {max(self.col_ids)}",
        )

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # Y is piecewise constant


@kernel(NGramFromCategorical)
def ngram_from_categorical(op: NGramFromCategorical, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    rows = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    y = ctx.xp.zeros(x.shape[0], np.int64)
    begin, weight = 0, 1
    for column, limit in zip(op.col_ids, op.categorical_limits):
        y += weight * _digits(ctx, rows[:, column].astype(np.float64), op.vals[begin : begin + limit])
        begin, weight = begin + limit, weight * limit
    return (y,)


def _digits(ctx: RunContext, elements: Any, categories: tuple[int, ...]) -> Any:
    """Return the position of each rounded element (half away from 0) among the categories; of equal ones, the last."""
    whole = ctx.xp.sign(elements) * ctx.xp.floor(ctx.xp.abs(elements) + 0.5)
    listed = np.array(categories, np.float64)
    order = np.argsort(listed, kind="stable")
    known = ctx.xp.asarray(listed[order])
    at = ctx.xp.maximum(ctx.xp.searchsorted(known, whole, side="right") - 1, 0)
    return ctx.xp.where(known[at] == whole, ctx.xp.asarray(order)[at], 0)
