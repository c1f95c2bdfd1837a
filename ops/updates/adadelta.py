"""Adadelta: the gradient, scaled by the running root mean square of earlier steps over that of gradients."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.update_rules import check_range, rate_as
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Adadelta"]


@register
@dataclass(frozen=True)
class Adadelta(Operator):
    """M' = decay * M + (1 - decay) * G^2, U = G * sqrt(D + epsilon) / sqrt(M' + epsilon), P' = P + lr * U.

    D is the running mean of U^2: D' = decay * D + (1 - decay) * U^2. The step is added, so ``lr`` is negative for
    descent.

    Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012, arXiv:1212.5701, algorithm 1.
    """

    signature = """
        param (*S): float
        moment (*S): as param
        moment_delta (*S): as param
        grad (*S): as param
        lr {1}: float|int
        -> output_param (*S): as param
        -> output_moment (*S): as param
        -> output_moment_delta (*S): as param
    """
    inplace = ((0, 0), (1, 1), (2, 2))
    flops_per_element = 14
    epsilon: float = 1e-5
    decay: float = 0.95

    def check(self) -> None:
        check_range(self, 0, 1, decay=self.decay)
        check_range(self, 0, math.inf, epsilon=self.epsilon)


@kernel(Adadelta)
def adadelta(
    op: Adadelta, ctx: RunContext, param: Any, moment: Any, moment_delta: Any, grad: Any, lr: Any
) -> tuple[Any, ...]:
    p, m, d, g = map(widen, (param, moment, moment_delta, grad))
    m = op.decay * m + (1 - op.decay) * (g * g)
    step = g * (ctx.xp.sqrt(d + op.epsilon) / ctx.xp.sqrt(m + op.epsilon))
    d = op.decay * d + (1 - op.decay) * (step * step)
    return tuple(narrow(y, param) for y in (p + rate_as(lr, g) * step, m, d))
