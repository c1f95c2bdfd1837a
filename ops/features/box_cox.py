"""BatchBoxCox: the Box-Cox transform of columns."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchBoxCox"]

_TINY = 1e-6  # data + lambda2 is clamped to this; a lambda1 of at most this magnitude counts as 0


@register
@dataclass(frozen=True)
class BatchBoxCox(Operator):
    """output = ((data + lambda2)^lambda1 - 1) / lambda1, or ln(data + lambda2) where lambda1 is 0.

    Each column of data has its lambda1 and lambda2; the axes after the first are flattened. data + lambda2 is clamped
    to at least 1e-6. ``min_block_size`` is ignored. No gradient, as in Caffe2.

    Source: Box and Cox, "An Analysis of Transformations", Journal of the Royal Statistical Society B 26, 1964.
    """

    signature = """
        data (N, *S): float
        lambda1 {prod(S)}: as data
        lambda2 {prod(S)}: as data
        -> output (N, *S): as data
    """
    flops_per_element = 4
    min_block_size: int = 256


@kernel(BatchBoxCox)
def batch_box_cox(op: BatchBoxCox, ctx: RunContext, data: Any, lambda1: Any, lambda2: Any) -> tuple[Any, ...]:
    xp, like = ctx.xp, data.dtype.type
    rows = data.reshape(len(data), math.prod(data.shape[1:]))
    powers, shifts = lambda1.reshape(-1), lambda2.reshape(-1)
    shifted = xp.maximum(rows + shifts, like(_TINY))
    is_log = abs(powers) <= like(_TINY)
    divisors = xp.where(is_log, like(1), powers)
    y = xp.where(is_log, xp.log(shifted), (shifted**divisors - like(1)) / divisors)
    return (y.reshape(data.shape),)
