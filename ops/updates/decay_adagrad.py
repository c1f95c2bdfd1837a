"""DecayAdagrad: Adagrad with a running mean of the gradient and decoupled weight decay."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.update_rules import check_range, rate_as, step_number
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["DecayAdagrad"]


@register
@dataclass(frozen=True)
class DecayAdagrad(Operator):
    """M1' = beta1 * M1 + (1 - beta1) * G, M2' = M2 + G^2, P' = P + lr * (G' + weight_decay * P).

    G' = M1' / c / (sqrt(M2') + epsilon) with c = 1 - beta1^(iter + 1), or 1 without ``bias_correction_first``. The step
    is added, so ``lr`` is negative for descent. ``beta2`` is ignored; nets made by Caffe2 have it.

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization",
    2011, and Kingma and Ba, "Adam: a method for stochastic optimization", 2014, arXiv:1412.6980, section 3.
    """

    signature = """
        param (*S): float
        moment_1 (*S): as param
        moment_2 (*S): as param
        grad (*S): as param
        lr {1}: float|int
        iter {1}: int
        -> output_param (*S): as param
        -> output_moment_1 (*S): as param
        -> output_moment_2 (*S): as param
    """
    inplace = ((0, 0), (1, 1), (2, 2))
    inputs_on_host = (5,)
    flops_per_element = 12
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-5
    weight_decay: float = 0.0
    bias_correction_first: bool = True

    def check(self) -> None:
        if not 0 <= self.beta1 < 1:
            raise ArgumentError(f"DecayAdagrad: beta1 must lie in [0, 1), got {self.beta1}")
        check_range(self, 0, math.inf, epsilon=self.epsilon, weight_decay=self.weight_decay)

    def correction(self, iteration: int) -> float:
        """Return what the running mean of gradients is divided by, to correct its initial bias."""
        count = step_number(self, iteration)
        return 1 - self.beta1**count if self.bias_correction_first else 1.0


@kernel(DecayAdagrad)
def decay_adagrad(
    op: DecayAdagrad, ctx: RunContext, param: Any, moment_1: Any, moment_2: Any, grad: Any, lr: Any, iteration: Any
) -> tuple[Any, ...]:
    p, first, second, g = map(widen, (param, moment_1, moment_2, grad))
    first = op.beta1 * first + (1 - op.beta1) * g
    second = second + g * g
    correction = ctx.derived(op.correction, iteration)
    step = first / correction / (ctx.xp.sqrt(second) + op.epsilon) + op.weight_decay * p
    return tuple(narrow(y, param) for y in (p + rate_as(lr, g) * step, first, second))
