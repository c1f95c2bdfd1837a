"""Attention: softmax(scale * Q K^T + mask) V for the heads of each sample; and its gradient."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.broadcasting import sum_to
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.exponentials import exp_or_zero
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Attention", "AttentionGradient"]


@dataclass(frozen=True)
class _Arguments(Operator):
    scale: float | None = None
    causal: bool = False
    mask_gradient: bool = True
    zero_weights: str = "unseen"

    def check(self) -> None:
        if self.zero_weights not in ("unseen", "never", "nan"):
            raise ArgumentError(
                f"{self.type}: zero_weights must be 'unseen', 'never' or 'nan', got {self.zero_weights!r}"
            )

    def check_inputs(self, *inputs: TensorSpec) -> None:
        q, k, v, *masks = inputs[self.inputs.index("Q") :]
        heads, groups = q.shape[1], k.shape[1]
        require(
            groups > 0 and heads % groups == 0,
            self,
            f"the heads of Q must be a multiple of those of K and V, got {heads} and {groups}",
        )
        require(self.scale is not None or q.shape[3] > 0, self, f"Q of shape {q.shape} has no features; give scale")
        full = (*q.shape[:3], k.shape[2])
        for mask in masks:
            extents = (1,) * (4 - mask.ndim) + mask.shape
            require(
                mask.ndim <= 4 and all(n in (1, whole) for n, whole in zip(extents, full)),
                self,
                f"mask must be broadcastable to (N, H, T, S) = {full}, got shape {mask.shape}",
            )
            require(
                mask.dtype.kind == "b" or mask.dtype == q.dtype,
                self,
                f"mask must be boolean or of the type of Q, {q.dtype}, got {mask.dtype}",
            )

    def factor(self, features: int) -> float:
        """Return the scale of the scores of queries that have so many features."""
        return 1 / math.sqrt(features) if self.scale is None else self.scale


@register
@dataclass(frozen=True)
class Attention(_Arguments):
    """Y = softmax(scale * Q K^T + mask) V, for each sample and head; the softmax is taken over the S keys.

    ``scale`` is 1 / sqrt(D) unless it is given. Head h reads the keys and values of group h * G // H. A boolean mask is
    true where a query sees a key, another one is added to the scores. With ``causal``, query t sees the keys up to
    t + S - T. The softmax of a query that sees no key is NaN: with ``zero_weights`` "unseen" such a query gets zeros,
    with "never" NaN; with "nan" all weights that are NaN are zeros, as PyTorch's exporter writes it. With
    ``mask_gradient=0`` the mask is a constant; only then may a boolean mask be the result of an operator that has no
    gradient.

    Source: Vaswani and others, "Attention Is All You Need", 2017, arXiv:1706.03762, section 3.2; of groups: Ainslie and
    others, "GQA", 2023, arXiv:2305.13245.
    """

    signature = """
        Q (N, H, T, D): float
        K (N, G, S, D): as Q, with H a multiple of G
        V (N, G, S, E): as Q
        mask? (...): bool|float16|float32|float64, broadcastable to (N, H, T, S)
        -> Y (N, H, T, E): as Q
    """

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), *(g.input(i) for i in range(self.n_in))]
        wanted = self.n_in if self.mask_gradient else 3
        return [make_op("AttentionGradient", inputs, [g.d_input(i) for i in range(min(self.n_in, wanted))])]

    def flops(self, q: TensorSpec, k: TensorSpec, v: TensorSpec, *mask: TensorSpec) -> int:
        return (2 * q.shape[3] + 2 * v.shape[3] + 4) * math.prod(q.shape[:3]) * k.shape[2]


@register
@dataclass(frozen=True)
class AttentionGradient(_Arguments):
    """Gradients of Attention: of Q, K, V and, if it is asked for, the mask; that of a boolean mask is zeros."""

    signature = "dY, Q, K, V, mask? -> dQ, dK, dV, dmask? (...): as Q"

    def infer(
        self, dy: TensorSpec, q: TensorSpec, k: TensorSpec, v: TensorSpec, *mask: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        self.check_specs(dy, q, k, v, *mask)
        return q, k, v, *(q.with_shape(m.shape) for m in mask[: self.n_out - 3])

    def flops(self, dy: TensorSpec, q: TensorSpec, k: TensorSpec, v: TensorSpec, *mask: TensorSpec) -> int:
        return (6 * q.shape[3] + 4 * v.shape[3] + 8) * math.prod(q.shape[:3]) * k.shape[2]


def _grouped(x: Any, groups: int) -> Any:
    """Return values of each head, (N, H, ...), as (N, G, H / G, ...)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _weights(op: _Arguments, xp: Any, q: Any, k: Any, mask: Any) -> Any:
    """Return the softmax of the scores, (N, H, T, S)."""
    groups, (t, s) = k.shape[1], (q.shape[2], k.shape[2])
    products = xp.matmul(_grouped(q, groups), k[:, :, None].swapaxes(-1, -2))
    scores = products.reshape(*q.shape[:3], s) * op.factor(q.shape[3])
    if mask is not None:
        scores = xp.where(mask, scores, -math.inf) if mask.dtype.kind == "b" else scores + widen(mask)
    if op.causal:
        scores = xp.where(xp.arange(s) <= xp.arange(t)[:, None] + (s - t), scores, -math.inf)
    scores = scores.astype(q.dtype, copy=False)
    if scores.size == 0:
        return scores
    most = scores.max(axis=-1, keepdims=True)
    e = exp_or_zero(xp, scores - xp.where(most == -math.inf, most.dtype.type(0), most))
    total = e.sum(axis=-1, keepdims=True)
    if op.zero_weights == "never":
        return e / xp.where(total == 0, total.dtype.type(math.nan), total)
    if op.zero_weights == "nan":
        e = xp.where(xp.isnan(total), e.dtype.type(0), e)
        total = xp.where(xp.isnan(total), total.dtype.type(0), total)
    return e / xp.where(total == 0, total.dtype.type(1), total)


@kernel(Attention)
def attention(op: Attention, ctx: RunContext, q: Any, k: Any, v: Any, mask: Any = None) -> tuple[Any, ...]:
    weights = _weights(op, ctx.xp, widen(q), widen(k), mask)
    y = ctx.xp.matmul(_grouped(weights, k.shape[1]), widen(v)[:, :, None])
    return (narrow(y.reshape(*q.shape[:3], v.shape[3]), q),)


@kernel(AttentionGradient)
def attention_gradient(
    op: AttentionGradient, ctx: RunContext, dy: Any, q: Any, k: Any, v: Any, mask: Any = None
) -> tuple[Any, ...]:
    matmul, groups = ctx.xp.matmul, k.shape[1]
    queries, keys, values, d_y = widen(q), widen(k), widen(v), _grouped(widen(dy), groups)
    weights = _weights(op, ctx.xp, queries, keys, mask)
    grouped = _grouped(weights, groups)
    d_values = matmul(grouped.swapaxes(-1, -2), d_y).sum(axis=2)
    d_weights = matmul(d_y, values[:, :, None].swapaxes(-1, -2)).reshape(weights.shape)
    d_scores = weights * (d_weights - (d_weights * weights).sum(axis=-1, keepdims=True))
    scaled = _grouped(d_scores * op.factor(q.shape[3]), groups)
    d_queries = matmul(scaled, keys[:, :, None]).reshape(q.shape)
    d_keys = matmul(scaled.swapaxes(-1, -2), _grouped(queries, groups)).sum(axis=2)
    found = [narrow(d_queries, q), narrow(d_keys, q), narrow(d_values, q)]
    if op.n_out > 3:
        boolean = mask.dtype.kind == "b"
        found.append(
            ctx.xp.zeros(mask.shape, q.dtype) if boolean else narrow(sum_to(d_scores, mask.shape, mask.shape), q)
        )
    return tuple(found)
