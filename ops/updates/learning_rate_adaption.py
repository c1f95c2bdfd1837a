"""LearningRateAdaption: one step of gradient descent on the learning rate itself."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.update_rules import check_range, rate_as
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LearningRateAdaption"]


@register
@dataclass(frozen=True)
class LearningRateAdaption(Operator):
    """lr' = lr * (1 - lr_alpha * cosine(G, E)), or lr - lr_alpha * <G, E> without ``normalized_lr_adaption``.

    G is the gradient, E the effective gradient: the step that the parameter took. The cosine is 0 if G or E is 0.

    Source: Baydin et al., "Online learning rate adaptation with hypergradient descent", 2017, arXiv:1703.04782.
    """

    signature = "lr {1}: float, grad (*S): float, effgrad (*S): as grad -> output_lr: as lr"
    inplace = ((0, 0),)
    lr_alpha: float = 0.01
    normalized_lr_adaption: bool = True

    def check(self) -> None:
        check_range(self, 0, math.inf, lr_alpha=self.lr_alpha)

    def flops(self, lr: TensorSpec, grad: TensorSpec, effgrad: TensorSpec) -> int:
        return (6 if self.normalized_lr_adaption else 2) * grad.size


@kernel(LearningRateAdaption)
def learning_rate_adaption(
    op: LearningRateAdaption, ctx: RunContext, lr: Any, grad: Any, effgrad: Any
) -> tuple[Any, ...]:
    xp = ctx.xp
    g, e = widen(grad), widen(effgrad)
    product, rate = (g * e).sum(), rate_as(lr, g)
    if op.normalized_lr_adaption:
        norms = xp.sqrt((g * g).sum()) * xp.sqrt((e * e).sum())
        rate = rate * (1 - op.lr_alpha * product / xp.where(norms > 0, norms, 1))
    else:
        rate = rate - op.lr_alpha * product
    return (narrow(rate.reshape(lr.shape), lr),)
