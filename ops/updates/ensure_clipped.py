"""EnsureClipped: a parameter, or some of its rows, clipped to a range."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.indexing import checked_indices, with_rows
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError

__all__ = ["EnsureClipped"]

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@register
@operator_class(frozen=True)
class EnsureClipped(Operator):
    """output_param = param clipped to [min, max]; with ``indices``, only the rows that they name.

    ``grad`` is accepted because sparse updates pass it; it is not read. No gradient.
    """

    signature = """
        param (*S) or (R, *S): float
        indices? (I): int
        grad? (I, *S): any
        -> output_param (*S) or (R, *S): as param
    """
    inplace = ((0, 0),)
    min: float = -_FLOAT32_MAX
    max: float = _FLOAT32_MAX

    def check(self) -> None:
        if not self.min <= self.max:
            raise ArgumentError(f"EnsureClipped: min must not exceed max, got min={self.min}, max={self.max}")

    def infer(self, param: TensorSpec, *sparse: TensorSpec) -> tuple[TensorSpec, ...]:
        require(param.dtype.kind == "f", self, f"param must hold floating-point numbers, got {param.dtype}")
        if sparse:
            require(param.ndim >= 1, self, "with indices param must have rows, got a scalar")
            require(sparse[0].dtype.kind in "iu", self, f"indices must be integers, got {sparse[0].dtype}")
        return (param.plain,)


@kernel(EnsureClipped)
def ensure_clipped(op: EnsureClipped, ctx: RunContext, param: Any, *sparse: Any) -> tuple[Any, ...]:
    xp, kind = ctx.xp, param.dtype.type

    def clipped(x: Any) -> Any:
        return xp.minimum(xp.maximum(x, kind(op.min)), kind(op.max))

    if not sparse:
        return (clipped(param),)
    rows = checked_indices(ctx, "EnsureClipped", sparse[0].reshape(-1), param.shape[0])
    return (with_rows(xp, param, rows, clipped(param[rows])),)
