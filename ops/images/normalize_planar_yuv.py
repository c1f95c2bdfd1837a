"""NormalizePlanarYUV: images normalized per channel with given means and standard deviations."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NormalizePlanarYUV"]


@register
@dataclass(frozen=True)
class NormalizePlanarYUV(Operator):
    """Y = (X - M) / S per channel; the first rows of M and S are the means and deviations. No gradient."""

    signature = "X (N, C, H, W): float, M (R, C): as X, S (Q, C): as X -> Y: as X"
    inplace = ((0, 0),)

    def check_inputs(self, x: TensorSpec, mean: TensorSpec, deviation: TensorSpec) -> None:
        for name, spec in (("M", mean), ("S", deviation)):
            require(spec.shape[0] >= 1, self, f"{name} must have a row, got shape {spec.shape}")


@kernel(NormalizePlanarYUV)
def normalize_planar_yuv(op: NormalizePlanarYUV, ctx: RunContext, x: Any, mean: Any, deviation: Any) -> tuple[Any, ...]:
    return ((x - mean[0].reshape(-1, 1, 1)) / deviation[0].reshape(-1, 1, 1),)
