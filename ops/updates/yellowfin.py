"""YellowFin: momentum SGD that tunes its learning rate and momentum by running statistics of the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.update_rules import rate_as
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["YellowFin"]


@register
@dataclass(frozen=True)
class YellowFin(Operator):
    """M' = mu * M + lr * G, P' = P - M' (Nesterov's form as in MomentumSGD); then lr and mu are tuned.

    ``curv_win`` holds log |G|^2 of the last ``curv_win_width`` iterations, ``g_avg`` and ``g2_avg`` the running means
    of G and G^2, ``scalars_memory`` those of |G|, of |G|^2, of the minimum and the maximum of ``curv_win``, and of the
    distance |G| / |G|^2. With ``zero_debias`` the means are corrected for their initial bias. ``iter`` counts from 1;
    from 2 on, ``lr`` and ``mu`` are running means of the values computed from these statistics.

    Source: Zhang and Mitliagkas, "YellowFin and the art of momentum tuning", 2017, arXiv:1706.03471, algorithms 1 to 4.
    """

    signature = """
        param (*S): float
        moment (*S): as param
        lr {1}: float
        mu {1}: float
        curv_win (curv_win_width): float
        g_avg (*S): as param
        g2_avg (*S): as param
        scalars_memory (5): float
        grad (*S): as param
        iter {1}: int
        -> output_param (*S): as param
        -> output_moment (*S): as param
        -> output_lr: as lr
        -> output_mu: as mu
        -> output_curv_win (curv_win_width): as curv_win
        -> output_g_avg (*S): as param
        -> output_g2_avg (*S): as param
        -> output_scalars_memory (5): as scalars_memory
    """
    inplace = tuple((i, i) for i in range(8))
    inputs_on_host = (9,)
    beta: float = 0.999
    curv_win_width: int = 20
    epsilon: float = 1e-6
    nesterov: bool = False
    zero_debias: bool = True

    def check(self) -> None:
        if not 0 <= self.beta < 1:
            raise ArgumentError(f"YellowFin: beta must lie in [0, 1), got {self.beta}")
        if self.curv_win_width < 1:
            raise ArgumentError(f"YellowFin: curv_win_width must be at least 1, got {self.curv_win_width}")
        if not self.epsilon > 0:
            raise ArgumentError(f"YellowFin: epsilon must be positive, got {self.epsilon}")

    def flops(self, param: TensorSpec, *others: TensorSpec) -> int:
        return (15 if self.nesterov else 12) * param.size


@dataclass(frozen=True)
class _Statistics:
    """Bias-corrected statistics of the gradient, each a 0-d float64 array; the curvatures are ``h_min``, ``h_max``."""

    h_min: Any
    h_max: Any
    variance: Any
    distance: Any


def _tuned(xp: Any, stats: _Statistics) -> tuple[Any, Any]:
    """Return the learning rate and the momentum for these statistics.

    The root x of the momentum solves (1 - x)^3 = p * x, by Vieta's substitution.
    """
    p = (stats.distance * stats.h_min) ** 2 / (2 * stats.variance)
    w = xp.cbrt((xp.sqrt(p * p + 4 / 27 * p**3) + p) / 2)
    by_variance = 1 - w + p / (3 * w)
    spread = xp.sqrt(stats.h_max / stats.h_min)
    root = xp.maximum(by_variance, (spread - 1) / (spread + 1))
    return (1 - root) ** 2 / stats.h_min, root * root


@kernel(YellowFin)
def yellowfin(op: YellowFin, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    count = int(ctx.host(inputs[9]).item())
    if count < 1:
        raise NetError(f"YellowFin: iter must be at least 1, got {count}; put AtomicIter or Iter before this operator")
    p, m, g_avg, g2_avg, g = (widen(inputs[i]) for i in (0, 1, 5, 6, 8))
    lr, mu, window, scalars = (inputs[i].astype(np.float64) for i in (2, 3, 4, 7))

    new = rate_as(mu, g) * m + rate_as(lr, g) * g
    step = new + rate_as(mu, g) * (new - m) if op.nesterov else new

    def mean(old: Any, value: Any) -> Any:
        return op.beta * old + (1 - op.beta) * value

    g_avg, g2_avg = mean(g_avg, g), mean(g2_avg, g * g)
    square = xp.maximum((g * g).sum().astype(np.float64), op.epsilon)
    window[(count - 1) % op.curv_win_width] = xp.log(square)
    known = window[: min(count, op.curv_win_width)]
    scalars[:4] = mean(scalars[:4], xp.stack([xp.sqrt(square), square, known.min(), known.max()]))
    scalars[4] = mean(scalars[4], scalars[0] / scalars[1])
    if count > 1:
        bias = 1 - op.beta**count if op.zero_debias else 1.0
        center = g_avg.astype(np.float64) / bias
        variance = xp.maximum(scalars[1] / bias - (center * center).sum(), op.epsilon)
        h_min, h_max = xp.exp(scalars[2] / bias), xp.exp(scalars[3] / bias)
        rate, momentum = _tuned(xp, _Statistics(h_min, h_max, variance, scalars[4] / bias))
        lr, mu = mean(lr, rate), mean(mu, momentum)
    results = (p - step, new, lr, mu, window, g_avg, g2_avg, scalars)
    return tuple(narrow(y, x) for y, x in zip(results, inputs))
