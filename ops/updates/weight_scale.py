"""WeightScale: weights multiplied by a constant every ``stepsize`` iterations."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["WeightScale"]

_NEVER = 2**63 - 1


@register
@dataclass(frozen=True)
class WeightScale(Operator):
    """nw = scale * w if iter + 1 is a multiple of ``stepsize`` and less than ``upper_bound_iter``, else nw = w."""

    signature = "w (*S): float, iter {1}: int64 -> nw (*S): as w"
    inplace = ((0, 0),)
    inputs_on_host = (1,)
    flops_per_element = 1
    stepsize: int = _NEVER
    upper_bound_iter: int = _NEVER
    scale: float = 1.0

    def check(self) -> None:
        if self.stepsize < 1:
            raise ArgumentError(f"WeightScale: stepsize must be at least 1, got {self.stepsize}")


@kernel(WeightScale)
def weight_scale(op: WeightScale, ctx: RunContext, w: Any, iteration: Any) -> tuple[Any, ...]:
    count = int(ctx.host(iteration).item()) + 1
    due = count % op.stepsize == 0 and count < op.upper_bound_iter
    return (narrow(widen(w) * op.scale, w) if due else w.copy(),)
