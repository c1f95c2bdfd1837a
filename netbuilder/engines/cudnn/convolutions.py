"""Tensors and windows of convolutions as cuDNN sees them: with two or three image axes, channels last."""

from __future__ import annotations

from typing import Any

from netbuilder.engines.cuda.gpu_layout import image_spec
from netbuilder.engines.cudnn.graphs import CHANNELS_LAST, Tensor, Window
from netbuilder.ops.core.conv_geometry import Geometry
from netbuilder.ops.core.image_order import channel_axis, image_extents
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Images", "channels_of", "image_tensor", "matrix_tensor", "window_of"]


def _padded(extents: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Return one number for each image axis, of at least two axes."""
    return (*(fill for _ in range(2 - len(extents))), *extents)


def image_tensor(spec: TensorSpec, order: str, elements: str) -> Tensor:
    """Return images or filters as a tensor; a matrix is images of one pixel."""
    channels = spec.shape[channel_axis(order, spec.ndim)]
    extents = image_extents(spec.shape, order) if spec.ndim > 2 else ()
    return Tensor((spec.shape[0], channels, *_padded(extents, 1)), CHANNELS_LAST, elements)


def channels_of(count: int, like: Tensor, elements: str) -> Tensor:
    """Return the tensor with one number for each of ``count`` channels, with as many axes as another tensor."""
    return Tensor((1, count, *(1 for _ in like.shape[2:])), CHANNELS_LAST, elements)


def matrix_tensor(rows: int, columns: int, elements: str) -> Tensor:
    """Return a matrix as images of one pixel, the columns as channels."""
    return Tensor((rows, columns, 1, 1), CHANNELS_LAST, elements)


def window_of(geometry: Geometry) -> Window | None:
    """Return the window of a convolution; None if elements before the first one are skipped.

    Padding after may be negative where the last windows do not reach the end of the images; it is given as 0, since
    the number of windows is rounded down.
    """
    if min(geometry.begin) < 0:
        return None
    after = tuple(max(0, pad) for pad in geometry.end)
    return Window(
        _padded(geometry.strides, 1), _padded(geometry.dilations, 1), _padded(geometry.begin, 0), _padded(after, 0)
    )


@dataclass(frozen=True)
class Images:
    """X, W and Y of a convolution or a transposed one, stored with elements of one type.

    Args:
        op: the operator, or its gradient.
        x, w: its specs.
        elements: the type of the elements.
    """

    op: Any
    x: TensorSpec
    w: TensorSpec
    elements: str

    @property
    def window(self) -> Window | None:
        return window_of(self.op.geometry(self.x, self.w))

    @property
    def channels_out(self) -> int:
        return int(self.op.channels_out(self.w))

    @property
    def y(self) -> TensorSpec:
        """The plain spec of Y."""
        return self.x.with_shape(self.op.y_shape(self.x, self.w))

    def spec(self, plain: TensorSpec) -> TensorSpec:
        """Return the spec in which images or filters are stored."""
        return image_spec(plain, self.op.order, self.elements)

    def tensor(self, plain: TensorSpec) -> Tensor:
        """Return images or filters as a tensor."""
        return image_tensor(plain, self.op.order, self.elements)
