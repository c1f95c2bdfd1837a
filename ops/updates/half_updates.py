"""Momentum SGD with weight decay in one operator: FP16MomentumSGDUpdate and FP32MomentumSGDUpdate."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.sgd import momentum_step
from netbuilder.ops.updates.update_rules import check_range, rate_as
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FP16MomentumSGDUpdate", "FP32MomentumSGDUpdate"]


@dataclass(frozen=True)
class _DecayedMomentum(Operator):
    """Base: ``MomentumSGDUpdate`` of the gradient G + weight_decay * P, for parameters of the same type."""

    signature = "grad, moment, lr, param -> output_grad, output_moment, output_param"
    inplace = ((0, 0), (1, 1), (3, 2))
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def check(self) -> None:
        check_range(self, 0, math.inf, weight_decay=self.weight_decay)

    def flops(self, grad: TensorSpec, *others: TensorSpec) -> int:
        return (9 if self.nesterov else 6) * grad.size


@register
@dataclass(frozen=True)
class FP16MomentumSGDUpdate(_DecayedMomentum):
    """As MomentumSGDUpdate of G + weight_decay * P, all in float16.

    It is computed in float32 and rounded at the end, with or without ``fp32_update``.
    """

    signature = """
        grad (*S): float16
        moment (*S): float16
        lr {1}: float|int
        param (*S): float16
        -> output_grad (*S): float16
        -> output_moment (*S): float16
        -> output_param (*S): float16
    """
    remedies: ClassVar[dict[str, str]] = dict.fromkeys(
        ("grad", "moment", "param"), "FP32MomentumSGDUpdate and MomentumSGDUpdate update float32"
    )
    fp32_update: bool = False


@register
@dataclass(frozen=True)
class FP32MomentumSGDUpdate(_DecayedMomentum):
    """As MomentumSGDUpdate of G + weight_decay * P, all in float32."""

    signature = """
        grad (*S): float32
        moment (*S): float32
        lr {1}: float|int
        param (*S): float32
        -> output_grad (*S): float32
        -> output_moment (*S): float32
        -> output_param (*S): float32
    """
    remedies: ClassVar[dict[str, str]] = dict.fromkeys(
        ("grad", "moment", "param"),
        "create float16 parameters with PseudoFP16Initializer, which optimizers support, not with a float16 fill",
    )


@kernel(FP16MomentumSGDUpdate)
@kernel(FP32MomentumSGDUpdate)
def decayed_momentum(op: Any, ctx: RunContext, grad: Any, moment: Any, lr: Any, param: Any) -> tuple[Any, ...]:
    g, m, p = widen(grad), widen(moment), widen(param)
    step, new = momentum_step(op, g + op.weight_decay * p, m, rate_as(lr, g))
    return narrow(step, param), narrow(new, param), narrow(p - step, param)
