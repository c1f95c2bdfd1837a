"""EnsureClipped: a parameter, or some of its rows, clipped to a range."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.indexing import checked_indices, with_rows
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["EnsureClipped"]

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@register
@dataclass(frozen=True)
class EnsureClipped(Operator):
    """output_param = param clipped to [min, max]; with ``indices``, only the rows that they name.

    ``grad`` is accepted because sparse updates pass it; it is not read. No gradient.
    """

    signature = """
        param (R, *S) if indices else (*S): float
        indices? (*I): int
        grad? (...): any
        -> output_param: as param
    """
    inplace = ((0, 0),)
    min: float = -_FLOAT32_MAX
    max: float = _FLOAT32_MAX

    def check(self) -> None:
        if not self.min <= self.max:
            raise ArgumentError(f"EnsureClipped: min must not exceed max, got min={self.min}, max={self.max}")


@kernel(EnsureClipped)
def ensure_clipped(op: EnsureClipped, ctx: RunContext, param: Any, *sparse: Any) -> tuple[Any, ...]:
    xp, kind = ctx.xp, param.dtype.type

    def clipped(x: Any) -> Any:
        return xp.minimum(xp.maximum(x, kind(op.min)), kind(op.max))

    if not sparse:
        return (clipped(param),)
    rows = checked_indices(ctx, "EnsureClipped", sparse[0].reshape(-1), param.shape[0])
    return (with_rows(xp, param, rows, clipped(param[rows])),)
