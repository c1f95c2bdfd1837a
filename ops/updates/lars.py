"""Lars, layer-wise adaptive rate scaling: the factor of one layer's learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.update_rules import check_range
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Lars"]


@register
@dataclass(frozen=True)
class Lars(Operator):
    """lr_rescaled = trust / (|dX| / |X| + wd + offset), clipped to [lr_min, lr_max]; 1 if |X| is 0.

    ``wd`` is the weight decay that is added to dX later. If lr_min exceeds lr_max, the result is lr_min.

    Source: You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017, arXiv:1708.03888,
    equation 6.
    """

    signature = """
        X (*S): float
        dX (*S): as X
        wd {1}: float|int
        trust {1}: float
        lr_max {1}: float|int
        -> lr_rescaled (1): as trust
    """
    flops_per_element = 4
    offset: float = 0.5
    lr_min: float = 0.02

    def check(self) -> None:
        check_range(self, 0, float("inf"), offset=self.offset)


@kernel(Lars)
def lars(op: Lars, ctx: RunContext, x: Any, dx: Any, wd: Any, trust: Any, lr_max: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    norm_x, norm_dx = (xp.sqrt((v * v).sum()).reshape(1) for v in (widen(x), widen(dx)))
    decay, factor, upper = (widen(v).reshape(1) for v in (wd, trust, lr_max))
    # Numerator and denominator are multiplied by |X|, so that nothing is divided by a norm of 0.
    divisor = norm_dx + (decay + op.offset) * norm_x
    rate = xp.where(norm_x > 0, factor * norm_x / xp.where(divisor > 0, divisor, 1), 1)
    rate = xp.where((norm_x > 0) & (divisor <= 0), np.inf, rate)
    return (narrow(xp.maximum(xp.minimum(rate, upper), op.lr_min), trust),)
