"""The base of RoIAlign and RoIAlignRotated: arguments, shapes and costs of boxes that are resampled to a fixed size."""

from __future__ import annotations

from typing import ClassVar, Literal

from netbuilder.ops.core.contexts import GradientContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.image_order import check_order, image_shape
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["BoxSamples", "BoxSamplesGradient", "SampledBoxes"]


@operator_class(frozen=True)
class SampledBoxes(Operator):
    """Base: a row of RoIs is a box of ``numbers`` numbers, after an image index that may be omitted."""

    numbers: ClassVar[int]
    spatial_scale: float = 1.0
    pooled_h: int = 1
    pooled_w: int = 1
    sampling_ratio: int = -1
    aligned: bool = False
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)
        if min(self.pooled_h, self.pooled_w) < 1 or not self.spatial_scale > 0:
            raise ArgumentError(
                f"{self.type}: pooled_h and pooled_w must be 1 or more and spatial_scale positive, got "
                f"{self.pooled_h}, {self.pooled_w} and {self.spatial_scale}"
            )

    def pooled(self, x: TensorSpec, rois: TensorSpec) -> tuple[int, ...]:
        """Return the shape of Y."""
        require_one_float_type(self, mixed_half=True, X=x, RoIs=rois)
        require(x.ndim == 4, self, f"X must have 4 axes, got shape {x.shape}")
        n = self.numbers
        fits = rois.ndim == 2 and rois.shape[1] in (n, n + 1)
        require(fits, self, f"RoIs must have {n} or {n + 1} columns, got shape {rois.shape}")
        channels, plane = (x.shape[1], x.shape[2:]) if self.order == "NCHW" else (x.shape[3], x.shape[1:3])
        require(min(plane) >= 1, self, f"X must have pixels to sample from, got shape {x.shape} in order {self.order}")
        return image_shape(self.order, rois.shape[0], channels, (self.pooled_h, self.pooled_w))


@operator_class(frozen=True)
class BoxSamples(SampledBoxes):
    """Base of RoIAlign and RoIAlignRotated."""

    signature = """
        X (N, C, H, W) or (N, H, W, C): float, by the order
        RoIs (R, D): as X, D = 4 or 5
        -> Y (R, C, P, Q) or (R, P, Q, C): as X
    """

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 1 else "here"

    def infer(self, x: TensorSpec, rois: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(self.pooled(x, rois)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("RoIs"), g.d_output("Y")]
        return [make_op(f"{self.type}Gradient", inputs, [g.d_input("X")])]

    def flops(self, x: TensorSpec, rois: TensorSpec) -> int:
        return 8 * max(1, self.sampling_ratio) ** 2 * self.infer(x, rois)[0].size


@operator_class(frozen=True)
class BoxSamplesGradient(SampledBoxes):
    """Base of the gradients of RoIAlign and RoIAlignRotated."""

    signature = "X, RoIs, dY -> dX"

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return ("any", "host", "here")[index]

    def infer(self, x: TensorSpec, rois: TensorSpec, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        shape = self.pooled(x, rois)
        require(dy.shape == shape, self, f"dY must have shape {shape}, got {dy.shape}")
        return (x.plain,)

    def flops(self, x: TensorSpec, rois: TensorSpec, dy: TensorSpec) -> int:
        return 8 * max(1, self.sampling_ratio) ** 2 * dy.size
