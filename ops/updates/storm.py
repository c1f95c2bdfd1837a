"""Storm, dense and sparse: momentum and learning rate computed from the squared norms of all gradients so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.row_updates import JointUpdate, RowUpdate, add_joint_kernels
from netbuilder.ops.updates.update_rules import (
    check_range,
    rate_as,
)
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SparseStorm", "Storm"]


@register
@dataclass(frozen=True)
class Storm(Operator):
    """S' = S + |G|^2, r = lr / cbrt(beta + S'), M' = G + (1 - momentum * r^2) * (M - G), P' = P + r * M'.

    S is a scalar. The step is added, so ``lr`` is negative for descent. Where the paper has M minus the gradient of the
    same batch at the previous parameters, this operator has M - G.

    Source: Cutkosky and Orabona, "Momentum-based variance reduction in non-convex SGD", 2019, arXiv:1905.10018,
    algorithm 1.
    """

    signature = """
        param (*S): float
        moment (*S): as param
        grad_sq_sum {1}: float
        grad (*S): as param
        lr {1}: float|int
        -> output_param (*S): as param
        -> output_moment (*S): as param
        -> output_grad_sq_sum: as grad_sq_sum
    """
    inplace = ((0, 0), (1, 1), (2, 2))
    flops_per_element = 7
    momentum: float = 10.0
    beta: float = 0.1

    def check(self) -> None:
        check_range(self, 0, math.inf, momentum=self.momentum, beta=self.beta)


@kernel(Storm)
def storm(op: Storm, ctx: RunContext, param: Any, moment: Any, grad_sq_sum: Any, grad: Any, lr: Any) -> tuple[Any, ...]:
    p, m, g = map(widen, (param, moment, grad))
    total = rate_as(grad_sq_sum, g) + (g * g).sum()
    rate = rate_as(lr, g) / ctx.xp.cbrt(op.beta + total)
    m = g + (1 - op.momentum * rate * rate) * (m - g)
    return narrow(p + rate * m, param), narrow(m, moment), narrow(total.reshape(grad_sq_sum.shape), grad_sq_sum)


@dataclass(frozen=True)
class _Step(RowUpdate):
    """M' = G + keep * (M - G), P' = P + rate * M', on rows."""

    signature = "param, moment, indices, grad, rate, keep -> output_param, output_moment"
    must_inplace = ((0, 0), (1, 1))

    def update(self, ctx: RunContext, rows: Sequence[Any], g: Any, numbers: Sequence[Any], reduced: Any) -> Any:
        rate, keep = (rate_as(number, g) for number in numbers)
        m = g + keep * (rows[1] - g)
        return rows[0] + rate * m, m


@register
@dataclass(frozen=True)
class SparseStorm(JointUpdate):
    """Storm on the rows ``indices`` of a table; S and r are computed from all rows of the gradient together.

    A row that occurs several times is updated each time, in order; other rows keep their momentum.
    """

    signature = """
        param (R, *S): float
        moment (R, *S): as param
        grad_sq_sum {1}: float
        grad (*I, *S): as param
        indices (*I): int32|int64
        lr {1}: float|int
        grad_squares? {1}: float, the sum of squares of all gradients, if there are more of them elsewhere
        -> output_param (R, *S): as param
        -> output_moment (R, *S): as param
        -> output_grad_sq_sum: as grad_sq_sum
    """
    must_inplace = ((0, 0), (1, 1), (2, 2))
    step = _Step
    state = "grad_sq_sum"
    momentum: float = 10.0
    beta: float = 0.1

    def check(self) -> None:
        check_range(self, 0, math.inf, momentum=self.momentum, beta=self.beta)

    def flops(
        self, param: TensorSpec, moment: TensorSpec, grad_sq_sum: TensorSpec, grad: TensorSpec, *others: TensorSpec
    ) -> int:
        return 7 * grad.size

    def numbers(self, ctx: RunContext, state: Any, squares: Any, lr: Any) -> Sequence[Any]:
        total = rate_as(state, squares) + squares
        rate = rate_as(lr, squares) / ctx.xp.cbrt(self.beta + total)
        return rate, 1 - self.momentum * rate * rate, total


add_joint_kernels(SparseStorm)
