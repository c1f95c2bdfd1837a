"""Adam: the running mean of the gradient over its running root mean square, both corrected for their initial bias."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import widen
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.update_rules import rate_as
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Adam"]


@register
@dataclass(frozen=True)
class Adam(Operator):
    """M1' = beta1 * M1 + (1 - beta1) * G, M2' = beta2 * M2 + (1 - beta2) * G^2, P' = P + lr * G'.

    G' = M1' / (sqrt(M2') + epsilon) * sqrt(1 - beta2^t) / (1 - beta1^t) with t = iter + 1 is the effective gradient,
    the fourth output. The step is added, so ``lr`` is negative for descent.

    Source: Kingma and Ba, "Adam: a method for stochastic optimization", 2014, arXiv:1412.6980, section 2.
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
        -> output_grad? (*S): as param
    """
    inplace = ((0, 0), (1, 1), (2, 2))
    inputs_on_host = (5,)
    flops_per_element = 13
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-5

    def check(self) -> None:
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ArgumentError(f"Adam: {name} must lie in [0, 1), got {value}")

    def correction(self, iteration: int) -> float:
        """Return the factor that corrects the initial bias of both running means."""
        t = iteration + 1
        require(t >= 1, self, f"iter must be at least 0, got {iteration}")
        return float((1 - self.beta2**t) ** 0.5 / (1 - self.beta1**t))


@kernel(Adam)
def adam(
    op: Adam, ctx: RunContext, param: Any, moment_1: Any, moment_2: Any, grad: Any, lr: Any, iteration: Any
) -> tuple[Any, ...]:
    g = widen(grad)
    m1 = op.beta1 * widen(moment_1) + (1 - op.beta1) * g
    m2 = op.beta2 * widen(moment_2) + (1 - op.beta2) * (g * g)
    correction = ctx.derived(op.correction, iteration)
    effective = correction * m1 / (ctx.xp.sqrt(m2) + op.epsilon)
    p = widen(param) + rate_as(lr, g) * effective
    return tuple(x.astype(param.dtype) for x in (p, m1, m2, effective))[: op.n_out]
