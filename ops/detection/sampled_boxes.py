"""The base of RoIAlign and RoIAlignRotated: arguments, shapes and costs of boxes that are resampled to a fixed size."""

from __future__ import annotations

from typing import ClassVar, Literal

from netbuilder.ops.core.contexts import GradientContext
from netbuilder.ops.core.image_order import check_order, image_extents
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BoxSamples", "BoxSamplesGradient", "SampledBoxes"]


@dataclass(frozen=True)
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

    def check_inputs(self, x: TensorSpec, *others: TensorSpec) -> None:
        plane = image_extents(x.shape, self.order)
        require(min(plane) >= 1, self, f"X must have pixels to sample from, got shape {x.shape} in order {self.order}")


@dataclass(frozen=True)
class BoxSamples(SampledBoxes):
    """Base of RoIAlign and RoIAlignRotated."""

    signature = """
        X (N, C, H, W) if NCHW else (N, H, W, C): float
        RoIs (R, numbers) or (R, numbers + 1): wide X
        -> Y (R, C, pooled_h, pooled_w) if NCHW else (R, pooled_h, pooled_w, C): as X
    """
    inputs_on_host = (1,)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("RoIs"), g.d_output("Y")]
        return [make_op(f"{self.type}Gradient", inputs, [g.d_input("X")])]

    def flops(self, x: TensorSpec, rois: TensorSpec) -> int:
        return 8 * max(1, self.sampling_ratio) ** 2 * self.infer(x, rois)[0].size


@dataclass(frozen=True)
class BoxSamplesGradient(SampledBoxes):
    """Base of the gradients of RoIAlign and RoIAlignRotated."""

    signature = "X, RoIs, dY -> dX"

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return ("any", "host", "here")[index]

    def flops(self, x: TensorSpec, rois: TensorSpec, dy: TensorSpec) -> int:
        return 8 * max(1, self.sampling_ratio) ** 2 * dy.size
