"""Storm: momentum and rate that follow from the squared norms of all gradients so far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.half import narrow, widen
from netbuilder.ops.operator import Operator, TensorSpec, require
from netbuilder.ops.registry import kernel, register
from netbuilder.ops.update_rules import check_range, check_rate, check_same, rate_as

__all__ = ["Storm"]


@register
@dataclass(frozen=True)
class Storm(Operator):
    """S' = S + |G|^2, r = lr / cbrt(beta + S'), M' = G + (1 - momentum * r^2) * (M - G), P' = P + r * M'.

    S holds one number. The step is added, so ``lr`` is negative for descent. M and G are both taken at the current
    parameters, where the paper takes the gradient of this batch at the parameters before as well.

    Source: Cutkosky and Orabona, "Momentum-based variance reduction in non-convex SGD", 2019, arXiv:1905.10018,
    algorithm 1.
    """

    inputs = ("param", "moment", "grad_sq_sum", "grad", "lr")
    outputs = ("output_param", "output_moment", "output_grad_sq_sum")
    inplace = ((0, 0), (1, 1), (2, 2))
    momentum: float = 10.0
    beta: float = 0.1

    def check(self) -> None:
        check_range(self, 0, math.inf, momentum=self.momentum, beta=self.beta)

    def infer(
        self, param: TensorSpec, moment: TensorSpec, grad_sq_sum: TensorSpec, grad: TensorSpec, lr: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        check_same(self, param=param, moment=moment, grad=grad)
        check_rate(self, grad_sq_sum, "grad_sq_sum")
        require(grad_sq_sum.dtype.kind == "f", self, f"grad_sq_sum must be floating, got {grad_sq_sum.dtype}")
        check_rate(self, lr)
        return param.plain, moment.plain, grad_sq_sum.plain

    def flops(self, param: TensorSpec, *others: TensorSpec) -> int:
        return 7 * param.size


@kernel(Storm)
def storm(op: Storm, ctx: RunContext, param: Any, moment: Any, grad_sq_sum: Any, grad: Any, lr: Any) -> tuple[Any, ...]:
    p, m, g = map(widen, (param, moment, grad))
    total = rate_as(grad_sq_sum, g) + (g * g).sum()
    rate = rate_as(lr, g) / ctx.xp.cbrt(op.beta + total)
    m = g + (1 - op.momentum * rate * rate) * (m - g)
    return narrow(p + rate * m, param), narrow(m, moment), narrow(total.reshape(grad_sq_sum.shape), grad_sq_sum)
