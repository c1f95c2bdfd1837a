"""Similarities of the samples of two tensors: DotProduct, DotProductWithPadding, CosineSimilarity; with gradients."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.dense.distances import OfSamples, OfSamplesGradient, sample_rows
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "CosineSimilarity",
    "CosineSimilarityGradient",
    "DotProduct",
    "DotProductGradient",
    "DotProductWithPadding",
    "DotProductWithPaddingGradient",
]

_TINY = 1e-12  # squared norms are clamped to this minimum, as in Caffe2


@register
@dataclass(frozen=True)
class DotProduct(OfSamples):
    """Z[i] = sum(X[i] * Y[i]), for each sample i of the first axis."""

    in_batch = InBatch.ROW_BY_ROW


@kernel(DotProduct)
def dot_product(op: DotProduct, ctx: RunContext, x: Any, y: Any) -> tuple[Any, ...]:
    a, b = sample_rows(x, y)
    return (narrow((a * b).sum(axis=1), x),)


@register
@dataclass(frozen=True)
class DotProductGradient(OfSamplesGradient):
    """dX[i] = Y[i] * dZ[i], and dY[i] = X[i] * dZ[i]."""


@kernel(DotProductGradient)
def dot_product_gradient(op: DotProductGradient, ctx: RunContext, x: Any, y: Any, dz: Any) -> tuple[Any, ...]:
    per_sample = dz.reshape((-1, *[1] * (x.ndim - 1)) if x.ndim else ())
    return y * per_sample, x * per_sample


@register
@dataclass(frozen=True)
class CosineSimilarity(OfSamples):
    """Z[i] = sum(X[i] * Y[i]) / (|X[i]| * |Y[i]|), for each sample i of the first axis; norms are at least 1e-6."""

    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 6


def _inverse_norm(xp: Any, rows: Any) -> Any:
    return 1 / xp.sqrt(xp.maximum((rows * rows).sum(axis=1, keepdims=True), rows.dtype.type(_TINY)))


@kernel(CosineSimilarity)
def cosine_similarity(op: CosineSimilarity, ctx: RunContext, x: Any, y: Any) -> tuple[Any, ...]:
    a, b = sample_rows(x, y)
    scale = _inverse_norm(ctx.xp, a) * _inverse_norm(ctx.xp, b)
    return (narrow((a * b).sum(axis=1) * scale[:, 0], x),)


@register
@dataclass(frozen=True)
class CosineSimilarityGradient(OfSamplesGradient):
    """dX and dY of CosineSimilarity, from X, Y and dZ."""

    flops_per_element = 12


@kernel(CosineSimilarityGradient)
def cosine_similarity_gradient(
    op: CosineSimilarityGradient, ctx: RunContext, x: Any, y: Any, dz: Any
) -> tuple[Any, ...]:
    a, b = sample_rows(x, y)
    u, v = _inverse_norm(ctx.xp, a), _inverse_norm(ctx.xp, b)
    d_rows = widen(dz).reshape(-1, 1)
    a, b = a * u, b * v
    cosine = (a * b).sum(axis=1, keepdims=True)
    dx, dy = d_rows * (b - a * cosine) * u, d_rows * (a - b * cosine) * v
    return narrow(dx.reshape(x.shape), x), narrow(dy.reshape(y.shape), y)


@dataclass(frozen=True)
class _Padding(Operator):
    pad_value: float = 0.0
    replicate: bool = False

    def check_inputs(self, x: TensorSpec, y: TensorSpec, *others: TensorSpec) -> None:
        short, long = sorted(spec.shape[1] if spec.ndim == 2 else 1 for spec in (x, y))
        require(
            not self.replicate or (short > 0 and long % short == 0),
            self,
            f"with replicate=1 the longer rows must be a multiple of the shorter ones, got {x.shape} and {y.shape}",
        )


@register
@dataclass(frozen=True)
class DotProductWithPadding(_Padding):
    """Z[i] = sum(X[i] * Y[i]), with the shorter rows padded with ``pad_value`` or, with ``replicate``, repeated."""

    signature = "X (N) or (N, D): float, Y (N) or (N, M): as X -> Z (N): as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("Y"), g.d_output("Z")]
        outputs = [g.d_input("X"), g.d_input("Y")]
        arguments: dict[str, Any] = {"pad_value": self.pad_value, "replicate": self.replicate}
        return [make_op("DotProductWithPaddingGradient", inputs, outputs, **arguments)]

    def flops(self, x: TensorSpec, y: TensorSpec) -> int:
        return 2 * max(x.size, y.size)


@register
@dataclass(frozen=True)
class DotProductWithPaddingGradient(_Padding):
    """dX and dY of DotProductWithPadding, from X, Y and dZ."""

    signature = "X, Y, dZ {N}: as X -> dX, dY"

    def flops(self, x: TensorSpec, y: TensorSpec, dz: TensorSpec) -> int:
        return 2 * max(x.size, y.size)


def _padded(op: _Padding, xp: Any, rows: Any, length: int) -> Any:
    """Return rows padded, or repeated, to ``length``."""
    n, width = rows.shape
    if width == length:
        return rows
    if op.replicate:
        return xp.tile(rows, (1, length // width))
    padded = xp.full((n, length), op.pad_value, rows.dtype)
    padded[:, :width] = rows
    return padded


@kernel(DotProductWithPadding)
def dot_product_with_padding(op: DotProductWithPadding, ctx: RunContext, x: Any, y: Any) -> tuple[Any, ...]:
    a, b = sample_rows(x, y)
    length = max(a.shape[1], b.shape[1])
    a, b = (_padded(op, ctx.xp, rows, length) for rows in (a, b))
    return (narrow((a * b).sum(axis=1), x),)


def _unpadded_gradient(op: _Padding, d_padded: Any, length: int) -> Any:
    """Return the gradient of rows of ``length`` from that of the padded rows."""
    n, width = d_padded.shape
    if width == length:
        return d_padded
    return d_padded.reshape(n, width // length, length).sum(axis=1) if op.replicate else d_padded[:, :length]


@kernel(DotProductWithPaddingGradient)
def dot_product_with_padding_gradient(
    op: DotProductWithPaddingGradient, ctx: RunContext, x: Any, y: Any, dz: Any
) -> tuple[Any, ...]:
    a, b = sample_rows(x, y)
    d_rows, length = widen(dz).reshape(-1, 1), max(a.shape[1], b.shape[1])
    da = _unpadded_gradient(op, d_rows * _padded(op, ctx.xp, b, length), a.shape[1])
    db = _unpadded_gradient(op, d_rows * _padded(op, ctx.xp, a, length), b.shape[1])
    return tuple(ctx.xp.ascontiguousarray(narrow(d.reshape(like.shape), like)) for d, like in ((da, x), (db, y)))
