"""BatchBoxCox: the Box-Cox transform of columns."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register

__all__ = ["BatchBoxCox"]

_LEAST = 1e-6  # lower bound of data + lambda2; exponents nearer to 0 count as 0


@register
@operator_class(frozen=True)
class BatchBoxCox(Operator):
    """output = ((data + lambda2)^lambda1 - 1) / lambda1, or ln(data + lambda2) where lambda1 is 0.

    Each column of data, (N, D), has its lambda1 and lambda2; more axes than two are read as columns. Where data +
    lambda2 is below 1e-6, it is taken as that. ``min_block_size`` is not read. No gradient, as in Caffe2.

    Inputs:
        data (N, *S): float
        lambda1 (prod(S)): as data
        lambda2 (prod(S)): as data
    Outputs:
        output (N, *S): as data

    Source: Box and Cox, "An Analysis of Transformations", Journal of the Royal Statistical Society B 26, 1964.
    """

    inputs = ("data", "lambda1", "lambda2")
    outputs = ("output",)
    min_block_size: int = 256

    def infer(self, data: TensorSpec, lambda1: TensorSpec, lambda2: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, data=data, lambda1=lambda1, lambda2=lambda2)
        require(data.ndim >= 1, self, "data must have rows, got a scalar")
        columns = math.prod(data.shape[1:])
        right = lambda1.size == columns == lambda2.size
        text = f"got shapes {lambda1.shape} and {lambda2.shape}"
        require(right, self, f"lambda1 and lambda2 must have a number for each of {columns} columns, {text}")
        return (data.plain,)

    def flops(self, data: TensorSpec, lambda1: TensorSpec, lambda2: TensorSpec) -> int:
        return 4 * data.size


@kernel(BatchBoxCox)
def batch_box_cox(op: BatchBoxCox, ctx: RunContext, data: Any, lambda1: Any, lambda2: Any) -> tuple[Any, ...]:
    xp, like = ctx.xp, data.dtype.type
    rows = data.reshape(len(data), math.prod(data.shape[1:]))
    powers, shifts = lambda1.reshape(-1), lambda2.reshape(-1)
    shifted = xp.maximum(rows + shifts, like(_LEAST))
    none = abs(powers) <= like(_LEAST)
    divisors = xp.where(none, like(1), powers)
    y = xp.where(none, xp.log(shifted), (shifted**divisors - like(1)) / divisors)
    return (y.reshape(data.shape),)
