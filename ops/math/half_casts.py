"""Casts of whole tensors between float32 and float16: FloatToHalf and HalfToFloat."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FloatToHalf", "HalfToFloat"]

_LARGEST = float(np.finfo(np.float16).max)


@register
@dataclass(frozen=True)
class FloatToHalf(Operator):
    """Y = X, float32, rounded to the nearest float16; magnitudes above 65504 become infinite.

    With ``clip`` they become 65504 instead, with the sign of X; NaN stays NaN.
    """

    signature = "X (*S): float32 -> Y (*S): float16"
    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW
    copy_arguments = False
    clip: bool = False

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("HalfToFloat", [g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class HalfToFloat(Operator):
    """Y = X, float16, converted to float32, which is exact."""

    signature = "X (*S): float16 -> Y (*S): float32"
    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("FloatToHalf", [g.d_output("Y")], [g.d_input("X")])]


@kernel(FloatToHalf)
def float_to_half(op: FloatToHalf, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if op.clip:
        x = ctx.xp.clip(x, -_LARGEST, _LARGEST)
    with np.errstate(over="ignore"):
        return (x.astype(np.float16),)


@kernel(HalfToFloat)
def half_to_float(op: HalfToFloat, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x.astype(np.float32),)
