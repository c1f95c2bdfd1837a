"""Values stored as small integers: indices into a codebook, or steps between two bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import add_rows, checked_indices
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import NetError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ByteWeightDequant", "QuantDecode", "QuantDecodeGradient"]

_CODES = (np.uint8, np.uint16, np.int32)


def _check_codes(op: Operator, codebook: TensorSpec, codes: tuple[TensorSpec, ...]) -> None:
    text = f"codebook must be a vector of floating-point numbers, got {codebook.shape} {codebook.dtype}"
    require(codebook.ndim == 1 and codebook.dtype.kind == "f", op, text)
    for index, spec in enumerate(codes):
        require(spec.dtype in _CODES, op, f"codes_{index} must be uint8, uint16 or int32, got {spec.dtype}")


@register
@dataclass(frozen=True)
class QuantDecode(Operator):
    """decoded = for each tensor of codes, the elements of ``codebook`` at these indices."""

    signature = "codebook (K): float, codes+ (...): int32|uint8|uint16 -> decoded+ (...): as codebook"

    def check(self) -> None:
        if self.n_in != self.n_out + 1:
            raise NetError(
                f"QuantDecode has an output for each tensor of codes, got {self.n_in} inputs, {self.n_out} outputs"
            )

    def infer(self, codebook: TensorSpec, *codes: TensorSpec) -> tuple[TensorSpec, ...]:
        _check_codes(self, codebook, codes)
        return tuple(spec.plain.with_dtype(codebook.dtype) for spec in codes)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        used = [i for i in range(self.n_out) if g.has_d_output(i)]
        inputs = [g.input(0), *(g.input(i + 1) for i in used), *(g.d_output(i) for i in used)]
        return [make_op("QuantDecodeGradient", inputs, [g.d_input(0)])]


@kernel(QuantDecode)
def quant_decode(op: QuantDecode, ctx: RunContext, codebook: Any, *codes: Any) -> tuple[Any, ...]:
    return tuple(codebook[checked_indices(ctx, op.type, each, codebook.shape[0])] for each in codes)


@register
@dataclass(frozen=True)
class QuantDecodeGradient(Operator):
    """dcodebook = for each element, the sum of the gradients of the elements that were decoded to it."""

    signature = "codebook, codes_and_gradients+ -> dcodebook"

    def check(self) -> None:
        if self.n_in % 2 == 0:
            raise NetError(f"{self.type} takes a codebook, and as many gradients as codes, got {self.n_in} inputs")

    def infer(self, codebook: TensorSpec, *rest: TensorSpec) -> tuple[TensorSpec, ...]:
        codes, gradients = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        _check_codes(self, codebook, codes)
        for spec, gradient in zip(codes, gradients):
            text = f"a gradient must have the size of its codes, {spec.shape}, got {gradient.shape}"
            require(gradient.size == spec.size, self, text)
        return (codebook.plain,)


@kernel(QuantDecodeGradient)
def quant_decode_gradient(op: QuantDecodeGradient, ctx: RunContext, codebook: Any, *rest: Any) -> tuple[Any, ...]:
    total = ctx.xp.zeros_like(codebook)
    for codes, gradient in zip(rest[: len(rest) // 2], rest[len(rest) // 2 :]):
        rows = checked_indices(ctx, op.type, codes, codebook.shape[0]).reshape(-1).astype(np.int64)
        add_rows(ctx.xp, total, rows, gradient.reshape(-1).astype(codebook.dtype), ctx.add_in_order)
    return (total,)


@register
@dataclass(frozen=True)
class ByteWeightDequant(Operator):
    """Y = bytes as float32 numbers of ``shape``: ``min`` for 0, ``max`` for 255, linear between them. No gradient.

    The bytes are a tensor of uint8, or a single string.
    """

    signature = """
        X (N): uint8|string, string is of shape (1)
        -> Y (*S): float32
    """
    min: float = -3.0
    max: float = 3.0
    shape: tuple[int, ...] = ()

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(x.dtype in (np.uint8, STRING), self, f"X must be bytes (uint8) or a string, got {x.dtype}")
        out = TensorSpec(self.shape, np.dtype(np.float32))
        require(min(self.shape, default=0) >= 0, self, f"shape must not have negative extents, got {self.shape}")
        require(x.dtype == STRING or out.size <= x.size, self, _too_few(self, x.size))
        return (out,)


def _too_few(op: ByteWeightDequant, size: int) -> str:
    return f"shape {op.shape} needs more bytes than X has, {size}"


@kernel(ByteWeightDequant)
def byte_weight_dequant(op: ByteWeightDequant, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if x.dtype == STRING:
        x = ctx.xp.asarray(np.frombuffer(bytes(x.reshape(-1)[0]), np.uint8))
    size = int(np.prod(op.shape, dtype=np.int64))
    if size > x.size:
        raise ShapeError(f"{op.type}: {_too_few(op, x.size)}")
    step = np.float32((np.float32(op.max) - np.float32(op.min)) / 255.0)
    return ((x.reshape(-1)[:size] * step + np.float32(op.min)).reshape(op.shape),)
