"""Windows that slide over images: their arguments in all of Caffe2's spellings, and their geometry for a shape."""

from __future__ import annotations

from typing import ClassVar

from netbuilder.ops.core.image_order import check_order, image_extents
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "CAFFE_LEGACY_POOLING",
    "NOTSET",
    "SAME",
    "VALID",
    "FixedAxes",
    "Geometry",
    "WindowArguments",
]

NOTSET, VALID, SAME, CAFFE_LEGACY_POOLING = range(4)
"""Values of ``legacy_pad``: the pads given; no pads; pads that make the output extents ceil(input / stride); output
extents rounded up, so that the last window may extend over the edge."""


@dataclass(frozen=True)
class Geometry:
    """How windows slide over images of one shape: one number per image axis, outermost first, in elements.

    Args:
        kernel: extents of the window, without dilation.
        strides: steps between windows.
        begin, end: pads before and after; negative where elements of the input are skipped.
        dilations: distances between the elements of a window.
        out: extents of the output.
        groups: number of groups of the channels.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    dilations: tuple[int, ...]
    out: tuple[int, ...]
    groups: int = 1

    @property
    def reach(self) -> tuple[int, ...]:
        """Extents of the window with dilation."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations))


@dataclass(frozen=True)
class WindowArguments(Operator):
    """Base of convolution and pooling: the arguments of a window.

    An argument is given for all axes (``stride``), for height and width (``stride_h``, ``stride_w``) or as a list with
    one number per axis, outermost first (``strides``); if several are given, the most detailed one is used. ``pads``
    are the pads before each axis, then those after each axis.
    """

    kernel: int = 0
    kernel_h: int = 0
    kernel_w: int = 0
    kernels: tuple[int, ...] = ()
    stride: int = 1
    stride_h: int = 0
    stride_w: int = 0
    strides: tuple[int, ...] = ()
    dilation: int = 1
    dilation_h: int = 0
    dilation_w: int = 0
    dilations: tuple[int, ...] = ()
    pad: int = 0
    pad_t: int = 0
    pad_l: int = 0
    pad_b: int = 0
    pad_r: int = 0
    pads: tuple[int, ...] = ()
    legacy_pad: int = NOTSET
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)
        if self.legacy_pad not in (NOTSET, VALID, SAME, CAFFE_LEGACY_POOLING):
            raise ArgumentError(f"{self.type}: legacy_pad must be 0 to 3, got {self.legacy_pad}")
        padding = (self.pad, self.pad_t, self.pad_l, self.pad_b, self.pad_r, *self.pads)
        if self.legacy_pad in (VALID, SAME) and any(padding):
            raise ArgumentError(
                f"{self.type}: legacy_pad={self.legacy_pad} determines the pads, but pads {padding} are given; give "
                "only one of the two"
            )
        if min(padding) < 0:
            raise ArgumentError(f"{self.type}: pads must not be negative, got {padding}")

    def per_axis(self, name: str, axes: int) -> tuple[int, ...]:
        """Return ``kernel``, ``stride``, ``dilation`` or ``adj`` for each image axis."""
        listed: tuple[int, ...] = getattr(self, name + "s")
        everywhere: int = getattr(self, name)
        height, width = getattr(self, name + "_h"), getattr(self, name + "_w")
        if listed:
            require(len(listed) == axes, self, f"{name}s must have {axes} numbers, one per image axis, got {listed}")
            return listed
        if height or width:
            require(axes == 2, self, f"{name}_h and {name}_w need images with 2 axes, got {axes}; use {name}s")
            return (height or everywhere, width or everywhere)
        return (everywhere,) * axes

    def explicit_pads(self, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the pads before and after each axis, as the arguments give them."""
        if self.pads:
            require(
                len(self.pads) == 2 * axes,
                self,
                f"pads must have {2 * axes} numbers, those before each image axis, then those after, got {self.pads}",
            )
            return self.pads[:axes], self.pads[axes:]
        if self.pad_t or self.pad_l or self.pad_b or self.pad_r:
            require(axes == 2, self, f"pad_t, pad_l, pad_b and pad_r need images with 2 axes, got {axes}; use pads")
            return (self.pad_t, self.pad_l), (self.pad_b, self.pad_r)
        return (self.pad,) * axes, (self.pad,) * axes

    def image_axes(self, x: TensorSpec) -> int:
        """Return the number of axes that the windows slide over.

        Raises:
            ShapeError: X has no such axis.
        """
        require(x.ndim >= 3, self, f"X must have a batch, a channel and at least one image axis, got shape {x.shape}")
        return x.ndim - 2

    def slide(self, x: TensorSpec, kernel: tuple[int, ...], groups: int = 1) -> Geometry:
        """Return the geometry of windows of extents ``kernel`` over X.

        Raises:
            ShapeError: X is smaller than a window, or an argument has the wrong number of values.
        """
        axes = self.image_axes(x)
        extents = image_extents(x.shape, self.order)
        strides, dilations = self.per_axis("stride", axes), self.per_axis("dilation", axes)
        for name, values in (("kernel", kernel), ("stride", strides), ("dilation", dilations)):
            require(min(values) >= 1, self, f"{name} must be at least 1 along every image axis, got {values}")
        begin, end = self.explicit_pads(axes)
        found = [
            self._along(n, (k - 1) * d + 1, s, b, e)
            for n, k, s, d, b, e in zip(extents, kernel, strides, dilations, begin, end)
        ]
        out = tuple(row[0] for row in found)
        require(
            min(out) >= 1,
            self,
            f"a window of {kernel} (dilation {dilations}) does not fit X {x.shape} with pads {begin} and {end}",
        )
        ends = tuple(row[2] for row in found)
        require(
            self.legacy_pad != CAFFE_LEGACY_POOLING or all(e < k for e, k in zip(ends, kernel)),
            self,
            f"with output extents rounded up, the last window of {kernel} with strides {strides} is outside of X "
            f"{x.shape}; use strides up to the kernel, or pads",
        )
        return Geometry(kernel, strides, tuple(row[1] for row in found), ends, dilations, out, groups)

    def _along(self, extent: int, reach: int, stride: int, begin: int, end: int) -> tuple[int, int, int]:
        """Return the output extent and the pads along one axis."""
        if self.legacy_pad == SAME:
            out = -(-extent // stride)
            missing = (out - 1) * stride + reach - extent  # negative if windows are shorter than strides
            begin = int(missing / 2)
            return out, begin, missing - begin
        if self.legacy_pad == CAFFE_LEGACY_POOLING:
            out = -(-(extent + begin + end - reach) // stride) + 1
            if begin > 0 and (out - 1) * stride >= extent + begin:
                out -= 1  # the last window would start in the padding
            return out, begin, (out - 1) * stride + reach - extent - begin
        return (extent + begin + end - reach) // stride + 1, begin, end


@dataclass(frozen=True)
class FixedAxes(WindowArguments):
    """Base of operators on images with exactly ``axes`` axes."""

    axes: ClassVar[int]

    def image_axes(self, x: TensorSpec) -> int:
        text = f"X must have a batch, channels and {self.axes} image axes, got shape {x.shape}"
        require(x.ndim == self.axes + 2, self, text)
        return self.axes
