"""Adagrad, dense and sparse: the gradient divided by the root of the sum of its squares."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.row_updates import add_row_kernels
from netbuilder.ops.updates.sparse_updates import Rows, SparseUpdate
from netbuilder.ops.updates.update_rules import check_range, rate_as
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Adagrad", "SparseAdagrad"]


@register
@dataclass(frozen=True)
class Adagrad(Operator):
    """H' = decay * H + G^2; P' = P + L * G with the effective rate L = lr / (sqrt(H') + epsilon).

    G is the gradient, with ``weight_decay`` times P added. The third output is L, the fourth the update L * G. The
    step is added, so ``lr`` is negative for descent.

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization",
    2011, section 1.
    """

    signature = """
        param (*S): float
        moment (*S): as param
        grad (*S): as param
        lr {1}: float|int
        -> output_param (*S): as param
        -> output_moment (*S): as param
        -> output_effective_lr? (*S): as param
        -> output_update? (*S): as param
    """
    inplace = ((0, 0), (1, 1))
    flops_per_element = 8
    epsilon: float = 1e-5
    decay: float = 1.0
    weight_decay: float = 0.0

    def check(self) -> None:
        check_range(self, 0, 1, decay=self.decay)
        check_range(self, 0, math.inf, epsilon=self.epsilon, weight_decay=self.weight_decay)


@kernel(Adagrad)
def adagrad(op: Adagrad, ctx: RunContext, param: Any, moment: Any, grad: Any, lr: Any) -> tuple[Any, ...]:
    p, g = widen(param), widen(grad)
    if op.weight_decay:
        g = g + op.weight_decay * p
    h = op.decay * widen(moment) + g * g
    effective = rate_as(lr, g) / (ctx.xp.sqrt(h) + op.epsilon)
    update = effective * g
    results = (p + update, h, effective, update)
    return tuple(x.astype(param.dtype) for x in results[: op.n_out])


@register
@dataclass(frozen=True)
class SparseAdagrad(SparseUpdate):
    """Adagrad on the rows ``indices`` of a table; a row that occurs several times is updated each time, in order."""

    signature = """
        param (R, *S): float
        moment (R, *S): as param
        indices (I): int32|int64
        grad (I, *S): as param
        lr {1}: float|int
        -> output_param (R, *S): as param
        -> output_moment_1 (R, *S): as param
    """
    must_inplace = ((0, 0), (1, 1))
    epsilon: float = 1e-5
    weight_decay: float = 0.0

    def check(self) -> None:
        check_range(self, 0, math.inf, epsilon=self.epsilon, weight_decay=self.weight_decay)

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        p, h = rows
        if self.weight_decay:
            g = g + self.weight_decay * p
        h = h + g * g
        return p + rate_as(numbers[0], g) * g / (ctx.xp.sqrt(h) + self.epsilon), h


add_row_kernels(SparseAdagrad)
