"""BBoxTransform: boxes transformed by the deltas that a net predicts."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.boxes import AngleArguments, clip_boxes, transform_boxes
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BBoxTransform"]


@register
@dataclass(frozen=True)
class BBoxTransform(AngleArguments):
    """box_out = the boxes of ``rois`` transformed by deltas, one box for each class, clipped to their images.

    A row of rois is the index of an image, which may be omitted if there is only one, and a box: left, top, right,
    bottom, in pixels of the scaled image. For each class, deltas are the shift of the center, in widths and heights,
    and the logarithms of the factors of the size, all multiplied by ``weights``. A row of im_info is the height, width
    and scale of an image. Results are in pixels of the scaled image or, without ``apply_scale``, of the original one.
    roi_batch_splits are the numbers of boxes per image. With ``rotated``, boxes are x and y of the center, width,
    height and an angle in degrees, and deltas have a fifth number, the change of the angle in radians. No gradient.

    Source: Girshick et al., "Rich feature hierarchies for accurate object detection", 2014, arXiv:1311.2524.
    """

    signature = """
        rois (R, 4) or (R, 5) or (R, 6): float32
        deltas (R, D): float32, D = 4 or 5 per class
        im_info (N, 3): float32
        -> box_out (R, D): float32
        -> roi_batch_splits? (N): float32
    """
    weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    apply_scale: bool = True
    rotated: bool = False

    def check(self) -> None:
        super().check()
        if len(self.weights) != 4 or 0 in self.weights:
            raise ArgumentError(f"BBoxTransform: weights must be four numbers other than 0, got {self.weights}")

    def infer(self, rois: TensorSpec, deltas: TensorSpec, im_info: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, rois=rois, deltas=deltas, im_info=im_info)
        numbers = 5 if self.rotated else 4
        columns = rois.shape[1] if rois.ndim == 2 else 0
        require(
            columns in (numbers, numbers + 1),
            self,
            f"rois must have {numbers} or {numbers + 1} columns, got shape {rois.shape}",
        )
        fits = deltas.ndim == 2 and deltas.shape[0] == rois.shape[0] and deltas.shape[1] % numbers == 0
        require(fits, self, f"deltas must be ({rois.shape[0]}, {numbers} * classes), got shape {deltas.shape}")
        require(
            im_info.ndim == 2 and im_info.shape[1] == 3, self, f"im_info must be (images, 3), got shape {im_info.shape}"
        )
        indexed = columns > numbers or im_info.shape[0] == 1
        require(indexed, self, f"rois without image indices need exactly one image, got {im_info.shape[0]}")
        return (deltas.plain, im_info.with_shape(im_info.shape[:1]))[: self.n_out]

    def flops(self, rois: TensorSpec, deltas: TensorSpec, im_info: TensorSpec) -> int:
        return 8 * deltas.size


@kernel(BBoxTransform)
def bbox_transform(op: BBoxTransform, ctx: RunContext, rois: Any, deltas: Any, im_info: Any) -> tuple[Any, ...]:
    xp, numbers = ctx.xp, 5 if op.rotated else 4
    images = xp.zeros(len(rois), int) if rois.shape[1] == numbers else rois[:, 0].astype(int)
    images = checked_indices(ctx, op.type, images, len(im_info), named="images of rois")
    scales = im_info[:, 2:]
    scale = scales[images][:, None]
    extent = xp.floor(im_info[:, 1::-1] / scales + rois.dtype.type(0.5))[images][:, None]
    boxes = rois[:, None, -numbers:]
    lengths = slice(0, 4)  # an angle has no scale
    unscaled = xp.concatenate([boxes[..., lengths] / scale, boxes[..., 4:]], axis=-1)
    moved = transform_boxes(
        xp, op, unscaled, deltas.reshape(len(rois), deltas.shape[1] // numbers, numbers), op.weights
    )
    clipped = clip_boxes(xp, op, moved, extent)
    if op.apply_scale:
        clipped = xp.concatenate([clipped[..., lengths] * scale, clipped[..., 4:]], axis=-1)
    splits = (images[:, None] == xp.arange(len(im_info))).sum(axis=0).astype(im_info.dtype)
    return clipped.reshape(deltas.shape), splits
