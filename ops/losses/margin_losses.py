"""Losses with a margin, element by element: MarginRankingCriterion and CosineEmbeddingCriterion; with gradients."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "CosineEmbeddingCriterion",
    "CosineEmbeddingCriterionGradient",
    "MarginRankingCriterion",
    "MarginRankingCriterionGradient",
]


@register
@dataclass(frozen=True)
class MarginRankingCriterion(Operator):
    """loss = max(0, margin - Y * (X1 - X2)): with Y = 1, X1 should be the greater by the margin, with Y = -1, X2."""

    signature = "X1 (*S): float, X2 (*S): as X1, Y (*S): int32|int64 -> loss (*S): as X1"
    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 4
    margin: float = 1.0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [*map(g.input, self.inputs), g.d_output("loss")]
        return [make_op("MarginRankingCriterionGradient", inputs, [g.d_input("X1"), g.d_input("X2")])]


@register
@dataclass(frozen=True)
class MarginRankingCriterionGradient(Operator):
    """dX1 = -Y * dloss where the loss is positive, else 0; dX2 = -dX1."""

    signature = "X1, X2, Y, dloss -> dX1, dX2"
    flops_per_element = 5
    margin: float = 1.0


@kernel(MarginRankingCriterion)
def margin_ranking(op: MarginRankingCriterion, ctx: RunContext, x1: Any, x2: Any, label: Any) -> tuple[Any, ...]:
    a, b = widen(x1), widen(x2)
    loss = a.dtype.type(op.margin) - label.astype(a.dtype) * (a - b)
    return (narrow(ctx.xp.maximum(loss, a.dtype.type(0)), x1),)


@kernel(MarginRankingCriterionGradient)
def margin_ranking_gradient(
    op: MarginRankingCriterionGradient, ctx: RunContext, x1: Any, x2: Any, label: Any, dloss: Any
) -> tuple[Any, ...]:
    a, b = widen(x1), widen(x2)
    sign = label.astype(a.dtype)
    active = a.dtype.type(op.margin) - sign * (a - b) > 0
    dx2 = ctx.xp.where(active, sign * widen(dloss), a.dtype.type(0))
    return narrow(-dx2, x1), narrow(dx2, x2)


@register
@dataclass(frozen=True)
class CosineEmbeddingCriterion(Operator):
    """loss = 1 - S where Y is 1, else max(0, S - margin); S is the cosine of a pair, Y says if it belongs together."""

    signature = "S (*S): float, Y (*S): int32|int64 -> loss (*S): as S"
    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 3
    margin: float = 0.0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("S"), g.input("Y"), g.d_output("loss")]
        return [make_op("CosineEmbeddingCriterionGradient", inputs, [g.d_input("S")])]


@register
@dataclass(frozen=True)
class CosineEmbeddingCriterionGradient(Operator):
    """dS = -dloss where Y is 1, else dloss where S is at least the margin, else 0."""

    signature = "S, Y, dloss -> dS"
    flops_per_element = 3
    margin: float = 0.0


@kernel(CosineEmbeddingCriterion)
def cosine_embedding(op: CosineEmbeddingCriterion, ctx: RunContext, s: Any, label: Any) -> tuple[Any, ...]:
    kind = s.dtype.type
    return (ctx.xp.where(label == 1, kind(1) - s, ctx.xp.maximum(s - kind(op.margin), kind(0))),)


@kernel(CosineEmbeddingCriterionGradient)
def cosine_embedding_gradient(
    op: CosineEmbeddingCriterionGradient, ctx: RunContext, s: Any, label: Any, dloss: Any
) -> tuple[Any, ...]:
    kind = s.dtype.type
    apart = ctx.xp.where(s >= kind(op.margin), dloss, kind(0))
    return (ctx.xp.where(label == 1, -dloss, apart),)
