"""NormalizeImages: pixels as they are decoded, cast and normalized for each channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.image_transform import channel_scales
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.image_order import check_order
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NormalizeImages"]


@register
@dataclass(frozen=True)
class NormalizeImages(Operator):
    """Y = (X - mean) / std for each channel: X has the pixels of decoded images, Y is the input of a net.

    ``mean`` and ``std`` have one number, or one for each channel. ``order`` is that of Y. Y is computed in float32 as
    ``X * (1 / std) + (-mean / std)``, whose factors are rounded from float64, as ``netbuilder.data.ImageTransform``
    computes it: both give the same bits. It is a source: X gets no gradient.
    """

    signature = "X (N, H, W, C): uint8|float32 -> Y (N, C, H, W) if NCHW else (N, H, W, C): float32"
    flops_per_element = 2
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)
        if not self.std or min(self.std) <= 0:
            raise ArgumentError(f"NormalizeImages: std must be positive, got {list(self.std)}")

    def check_inputs(self, x: TensorSpec) -> None:
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            require(
                len(numbers) in (1, x.shape[-1]),
                self,
                f"{name} must have one number, or one for each channel of X {x.shape}, got {list(numbers)}",
            )

    def scales(self, channels: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the factor and the summand of each channel, float32."""
        return channel_scales(self.mean, self.std, channels)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # a source: no gradient


@kernel(NormalizeImages)
def normalize_images(op: NormalizeImages, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    factors, shifts = map(ctx.xp.asarray, op.scales(x.shape[-1]))
    y = x.astype(np.float32) * factors + shifts
    return (ctx.xp.ascontiguousarray(y.transpose(0, 3, 1, 2)) if op.order == "NCHW" else y,)
