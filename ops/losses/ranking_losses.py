"""Ranking losses per session: PairWiseLoss and LambdaRankNdcg, with their gradients.

The inputs concatenate the items of all sessions; ``lengths`` has the number of items of each. They are padded to
(sessions, longest), so that all pairs within sessions, (sessions, longest, longest), are computed at once.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.losses.sigmoid_losses import sigmoid, softplus
from netbuilder.proto import OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LambdaRankNdcg", "LambdaRankNdcgGradient", "PairWiseLoss", "PairWiseLossGradient"]


class _Sessions:
    """The items of sessions, to be padded to a row per session; the lengths are on the host."""

    def __init__(self, op: Operator, ctx: RunContext, lengths: Any, items: int) -> None:
        self.xp = ctx.xp
        lengths = ctx.host(lengths)
        least, total = (int(lengths.min()), int(lengths.sum())) if lengths.size else (0, 0)
        if least < 0 or total != items:
            raise ShapeError(
                f"{op.type}: the lengths of sessions must not be negative and must sum to the number of items, "
                f"{items}; got the minimum {least} and the sum {total}"
            )
        longest = int(lengths.max()) if lengths.size else 0
        flat = lengths.reshape(-1).astype("int64")
        positions = np.arange(longest)
        mask = positions < flat[:, None]
        self.mask = self.xp.asarray(mask)
        self._index = self.xp.asarray(np.where(mask, (np.cumsum(flat) - flat)[:, None] + positions, 0))
        self._items = self.xp.asarray(np.flatnonzero(mask))

    def pad(self, values: Any) -> Any:
        """Return the items as (sessions, longest), padded with 0."""
        if not values.size:
            return self.xp.zeros(self.mask.shape, values.dtype)
        return self.xp.where(self.mask, values.reshape(-1)[self._index], values.dtype.type(0))

    def unpad(self, padded: Any) -> Any:
        """Return the items of all sessions as one vector."""
        return padded.reshape(-1)[self._items]


@register
@dataclass(frozen=True)
class PairWiseLoss(Operator):
    """Y = for each session, the mean of log(1 + exp(X[j] - X[i])) over its pairs with label[i] > label[j].

    A session without such pairs has loss 0. Without ``lengths``, all items are one session.

    Source: Burges et al., "Learning to Rank using Gradient Descent", 2005, section 3.
    """

    signature = "X (N) or (N, 1): float, label {N}: as X, lengths? (S): int -> Y (S) if lengths else (1): as X"
    inputs_on_host = (2,)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("label"), g.d_output("Y")]
        if self.n_in > 2:
            inputs.append(g.input("lengths"))
        return [make_op("PairWiseLossGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class PairWiseLossGradient(Operator):
    """dX of PairWiseLoss."""

    signature = "X, label, dY, lengths? -> dX"
    inputs_on_host = (3,)


def _pairs(op: Operator, ctx: RunContext, x: Any, label: Any, lengths: Any) -> tuple[_Sessions, Any, Any, Any]:
    """Return the sessions, X[j] - X[i], which of these pairs count, and per session how many do, at least 1."""
    xp = ctx.xp
    sessions = _Sessions(op, ctx, np.full(1, x.size, "int64") if lengths is None else lengths, x.size)
    scores = sessions.pad(x if x.dtype != "float16" else x.astype("float32"))
    labels = sessions.pad(label)
    counts = (labels[:, :, None] > labels[:, None, :]) & sessions.mask[:, :, None] & sessions.mask[:, None, :]
    number = xp.maximum(counts.sum(axis=(1, 2)), 1).astype(scores.dtype)
    return sessions, scores[:, None, :] - scores[:, :, None], counts, number


@kernel(PairWiseLoss)
def pair_wise_loss(op: PairWiseLoss, ctx: RunContext, x: Any, label: Any, lengths: Any = None) -> tuple[Any, ...]:
    _, differences, counts, number = _pairs(op, ctx, x, label, lengths)
    losses = ctx.xp.where(counts, softplus(ctx.xp, differences), differences.dtype.type(0))
    return (narrow(losses.sum(axis=(1, 2)) / number, x),)


@kernel(PairWiseLossGradient)
def pair_wise_loss_gradient(
    op: PairWiseLossGradient, ctx: RunContext, x: Any, label: Any, dy: Any, lengths: Any = None
) -> tuple[Any, ...]:
    sessions, differences, counts, number = _pairs(op, ctx, x, label, lengths)
    slopes = ctx.xp.where(counts, sigmoid(ctx.xp, differences), differences.dtype.type(0))
    padded = (slopes.sum(axis=1) - slopes.sum(axis=2)) * (dy.reshape(-1) / number)[:, None]
    return (narrow(sessions.unpad(padded).reshape(x.shape), x),)


@dataclass(frozen=True)
class _LambdaRank(Operator):
    use_ndcg_as_loss: bool = False
    use_idcg_normalization: bool = True
    use_exp_gain: bool = True

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if type(self).inputs[index] == "session_lengths" else "here"


@register
@dataclass(frozen=True)
class LambdaRankNdcg(_LambdaRank):
    """The loss of each session with the scores y and the relevances r, and its gradient dy.

    An item has the gain 2^r (r with ``use_ndcg_as_loss`` but without ``use_exp_gain``) and the discount 1 / log2(1 +
    its rank by y). The loss is the sum of |difference in gain * difference in discount| * log(1 + exp(y[j] - y[i]))
    over pairs with r[i] > r[j], each counted twice. With ``use_ndcg_as_loss`` it is the ideal DCG minus the DCG: the
    sum of gain * discount in the order by r minus that in the order by y. Either is divided by the ideal DCG unless
    ``use_idcg_normalization`` is 0. A session without relevant items has loss 0.

    Source: Wu, Burges, Svore and Gao, "Adapting Boosting for Information Retrieval Measures", 2010.
    """

    signature = "y (N): float, r (N): as y, session_lengths (S): int -> loss (S): as y, dy (N): as y"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("y"), g.input("session_lengths"), g.output("dy"), g.d_output("loss")]
        return [make_op("LambdaRankNdcgGradient", inputs, [g.d_input("y")])]


@register
@dataclass(frozen=True)
class LambdaRankNdcgGradient(_LambdaRank):
    """d_y = dy * dloss of the item's session."""

    signature = "y, session_lengths, dy, dloss -> d_y"


def _discounts(xp: Any, padded: Any, mask: Any) -> Any:
    """Return 1 / log2(1 + rank) of each item, where the greatest has rank 1; 0 for padding."""
    order = xp.argsort(xp.where(mask, -padded, padded.dtype.type(float("inf"))), axis=1, kind="stable")
    ranks = xp.argsort(order, axis=1, kind="stable").astype(padded.dtype)
    return xp.where(mask, 1 / xp.log2(ranks + 2), padded.dtype.type(0))


@kernel(LambdaRankNdcg)
def lambda_rank_ndcg(op: LambdaRankNdcg, ctx: RunContext, y: Any, r: Any, lengths: Any) -> tuple[Any, ...]:
    xp, sessions = ctx.xp, _Sessions(op, ctx, lengths, y.size)
    wide = "float32" if y.dtype == "float16" else y.dtype
    scores, relevance = sessions.pad(y.astype(wide)), sessions.pad(r.astype(wide))
    linear = op.use_ndcg_as_loss and not op.use_exp_gain
    gain = xp.where(sessions.mask, relevance if linear else xp.exp2(relevance), scores.dtype.type(0))
    ideal = (gain * _discounts(xp, relevance, sessions.mask)).sum(axis=1)
    discount = _discounts(xp, scores, sessions.mask)

    def pairwise(values: Any) -> Any:
        return values[:, :, None] - values[:, None, :]

    weights = abs(pairwise(discount) * pairwise(gain))
    weights = weights * (sessions.mask[:, :, None] & sessions.mask[:, None, :])  # no pairs with padding
    sign = xp.sign(pairwise(relevance))
    signed = sign * pairwise(scores)
    if op.use_ndcg_as_loss:
        loss = ideal - (gain * discount).sum(axis=1)
    else:
        loss = (weights * softplus(xp, -signed)).sum(axis=(1, 2))
    slopes = -(weights * sign * sigmoid(xp, -signed)).sum(axis=2)
    relevant = abs(relevance).sum(axis=1) > 1e-6
    share = relevant.astype(scores.dtype)
    if op.use_idcg_normalization:
        share = share / xp.maximum(ideal, scores.dtype.type(1e-5))
    return narrow(loss * share, y), narrow(sessions.unpad(slopes * share[:, None]), y)


@kernel(LambdaRankNdcgGradient)
def lambda_rank_ndcg_gradient(
    op: LambdaRankNdcgGradient, ctx: RunContext, y: Any, lengths: Any, dy: Any, dloss: Any
) -> tuple[Any, ...]:
    sessions = _Sessions(op, ctx, lengths, y.size)
    return (dy * sessions.unpad(ctx.xp.where(sessions.mask, dloss[:, None], dloss.dtype.type(0))),)
