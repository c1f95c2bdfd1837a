"""RmsProp: the gradient divided by its running root mean square, with momentum."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.update_rules import check_range, rate_as
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RmsProp"]


@register
@dataclass(frozen=True)
class RmsProp(Operator):
    """S' = decay * S + (1 - decay) * G^2; M' = momentum * M + lr * G / sqrt(S' + epsilon); the step is M'.

    The step is to be subtracted from the parameter.

    Source: Tieleman and Hinton, "Lecture 6.5: rmsprop", Coursera, 2012.
    """

    signature = """
        grad (*S): float
        mean_squares (*S): as grad
        moment (*S): as grad
        lr {1}: float|int
        -> output_grad (*S): as grad
        -> output_mean_squares (*S): as grad
        -> output_moment (*S): as grad
    """
    inplace = ((0, 0), (1, 1), (2, 2))
    flops_per_element = 9
    decay: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-5

    def check(self) -> None:
        check_range(self, 0, 1, decay=self.decay)
        check_range(self, 0, math.inf, momentum=self.momentum, epsilon=self.epsilon)


@kernel(RmsProp)
def rmsprop(op: RmsProp, ctx: RunContext, grad: Any, mean_squares: Any, moment: Any, lr: Any) -> tuple[Any, ...]:
    g, s = widen(grad), widen(mean_squares)
    s = s + (1 - op.decay) * (g * g - s)
    m = op.momentum * widen(moment) + rate_as(lr, g) * g / ctx.xp.sqrt(s + op.epsilon)
    m = m.astype(grad.dtype)
    return m, s.astype(grad.dtype), m
