"""BernoulliJSD: the Jensen-Shannon divergence of Bernoulli distributions, and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BernoulliJSD", "BernoulliJSDGradient"]

_TINY = 1e-20  # probabilities are clamped to this before log


@register
@dataclass(frozen=True)
class BernoulliJSD(Operator):
    """L = the Jensen-Shannon divergence, in nats, of Bernoulli distributions with the probabilities X and T.

    It is the entropy of the distribution with their mean probability, minus the mean of their entropies. T has no
    gradient.

    Source: Lin, "Divergence measures based on the Shannon entropy", IEEE Transactions on Information Theory 37, 1991.
    """

    signature = "X (*S): float, T {prod(S)}: as X -> L (*S): as X"
    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 20

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("BernoulliJSDGradient", [g.d_output("L"), g.input("X"), g.input("T")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class BernoulliJSDGradient(Operator):
    """dX = dL * (logit(X) - logit((X + T) / 2)) / 2, with probabilities clamped to 1e-20 before log."""

    signature = "dL {prod(S)}: as X, X, T -> dX"

    def flops(self, dl: TensorSpec, x: TensorSpec, t: TensorSpec) -> int:
        return 10 * x.size


def _log(xp: Any, p: Any) -> Any:
    return xp.log(xp.maximum(p, p.dtype.type(_TINY) or xp.finfo(p.dtype).tiny))


def _entropy(xp: Any, p: Any) -> Any:
    rest = 1 - p
    return -(p * _log(xp, p) + rest * _log(xp, rest))


def _logit(xp: Any, p: Any) -> Any:
    return _log(xp, p) - _log(xp, 1 - p)


@kernel(BernoulliJSD)
def bernoulli_jsd(op: BernoulliJSD, ctx: RunContext, x: Any, t: Any) -> tuple[Any, ...]:
    xp, other = ctx.xp, t.reshape(x.shape)
    divergence = _entropy(xp, (x + other) / 2) - (_entropy(xp, x) + _entropy(xp, other)) / 2
    return (divergence.astype(x.dtype, copy=False),)


@kernel(BernoulliJSDGradient)
def bernoulli_jsd_gradient(op: BernoulliJSDGradient, ctx: RunContext, dl: Any, x: Any, t: Any) -> tuple[Any, ...]:
    xp, other = ctx.xp, t.reshape(x.shape)
    slope = (_logit(xp, x) - _logit(xp, (x + other) / 2)) / 2
    return ((dl.reshape(x.shape) * slope).astype(x.dtype, copy=False),)
