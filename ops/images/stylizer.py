"""Conversions between images of four bytes per pixel (blue, green, red, alpha) and float32, for style transfer."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BRGNCHWCToPackedInt8BGRAStylizerDeprocess", "PackedInt8BGRANHWCToNCHWCStylizerPreprocess"]


@register
@dataclass(frozen=True)
class PackedInt8BGRANHWCToNCHWCStylizerPreprocess(Operator):
    """Y = X - mean + noise for the first three channels of X, as channels-first images.

    The noise is ``noise_size`` normal numbers of standard deviation ``noise_std``, repeated over all pixels and
    channels of an image, and the same for each image and in each run.
    """

    signature = "X (N, H, W, 4): uint8, mean {3}: float32 -> Y (N, 3, H, W): float32"
    noise_std: float = 10.0
    noise_size: int = 491

    def check(self) -> None:
        if self.noise_size < 1 or not self.noise_std >= 0:
            raise ArgumentError(
                f"{self.type}: noise_size must be at least 1 and noise_std at least 0, "
                f"got {self.noise_size} and {self.noise_std}"
            )


@kernel(PackedInt8BGRANHWCToNCHWCStylizerPreprocess)
def stylizer_preprocess(
    op: PackedInt8BGRANHWCToNCHWCStylizerPreprocess, ctx: RunContext, x: Any, mean: Any
) -> tuple[Any, ...]:
    xp, (h, w) = ctx.xp, x.shape[1:3]
    noise = np.random.default_rng(op.noise_size).standard_normal(min(op.noise_size, h * w * 3)) * op.noise_std
    spread = xp.asarray(np.resize(noise, h * w * 3).astype(np.float32)).reshape(h, w, 3)
    y = x[..., :3].astype(np.float32) - mean.reshape(3) + spread
    return (xp.ascontiguousarray(y.transpose(0, 3, 1, 2)),)


@register
@dataclass(frozen=True)
class BRGNCHWCToPackedInt8BGRAStylizerDeprocess(Operator):
    """Y = X + mean, clipped to [0, 255] and truncated to integers, as channels-last images with a fourth channel.

    The fourth channel is 255. NaN becomes 0.
    """

    signature = "X (N, 3, H, W): float32, mean {3}: float32 -> Y (N, H, W, 4): uint8"


@kernel(BRGNCHWCToPackedInt8BGRAStylizerDeprocess)
def stylizer_deprocess(
    op: BRGNCHWCToPackedInt8BGRAStylizerDeprocess, ctx: RunContext, x: Any, mean: Any
) -> tuple[Any, ...]:
    xp, (n, _, h, w) = ctx.xp, x.shape
    values = xp.clip(x + mean.reshape(3, 1, 1), 0, 255)
    y = xp.full((n, h, w, 4), 255, "uint8")
    y[..., :3] = xp.where(values == values, values, 0).astype("uint8").transpose(0, 2, 3, 1)
    return (y,)
