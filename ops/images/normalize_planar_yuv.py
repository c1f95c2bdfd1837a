"""NormalizePlanarYUV: images normalized per channel with given means and standard deviations."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register

__all__ = ["NormalizePlanarYUV"]


@register
@operator_class(frozen=True)
class NormalizePlanarYUV(Operator):
    """Y = (X - M) / S per channel; the first rows of M and S are the means and deviations. No gradient."""

    signature = "X (N, C, H, W): float, M (R, C): as X, S (R, C): as X -> Y (N, C, H, W): as X"
    inplace = ((0, 0),)

    def infer(self, x: TensorSpec, mean: TensorSpec, deviation: TensorSpec) -> tuple[TensorSpec, ...]:
        require(
            x.ndim == 4 and x.dtype.kind == "f", self, f"X must be (N, C, H, W), floats, got {x.shape} of {x.dtype}"
        )
        for name, spec in (("M", mean), ("S", deviation)):
            require(
                spec.ndim == 2 and spec.shape[0] >= 1 and spec.shape[1] == x.shape[1] and spec.dtype == x.dtype,
                self,
                f"{name} must be a matrix with {x.shape[1]} columns of {x.dtype}, got {spec.shape} of {spec.dtype}",
            )
        return (x.plain,)


@kernel(NormalizePlanarYUV)
def normalize_planar_yuv(op: NormalizePlanarYUV, ctx: RunContext, x: Any, mean: Any, deviation: Any) -> tuple[Any, ...]:
    return ((x - mean[0].reshape(-1, 1, 1)) / deviation[0].reshape(-1, 1, 1),)
