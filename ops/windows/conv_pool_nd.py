"""Convolution and pooling of images with one, two or three axes: Conv2D, MaxPool1D and the like.

They compute what Conv, MaxPool and AveragePool do, and raise ShapeError for images with another number of axes.
"""

from __future__ import annotations

from netbuilder.ops.core.conv_geometry import FixedAxes
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.windows.conv import Conv, ConvGradient, conv, conv_gradient
from netbuilder.ops.windows.pool import (
    AveragePool,
    AveragePoolGradient,
    MaxPool,
    MaxPoolGradient,
    average_pool,
    average_pool_gradient,
    max_pool,
    max_pool_gradient,
)
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "AveragePool1D",
    "AveragePool1DGradient",
    "AveragePool2D",
    "AveragePool2DGradient",
    "AveragePool3D",
    "AveragePool3DGradient",
    "Conv1D",
    "Conv1DGradient",
    "Conv2D",
    "Conv2DGradient",
    "Conv3D",
    "Conv3DGradient",
    "MaxPool1D",
    "MaxPool1DGradient",
    "MaxPool2D",
    "MaxPool2DGradient",
    "MaxPool3D",
    "MaxPool3DGradient",
]


@register
@dataclass(frozen=True)
class Conv1D(FixedAxes, Conv):
    """Conv of images with one axis."""

    axes = 1


@register
@dataclass(frozen=True)
class Conv1DGradient(FixedAxes, ConvGradient):
    """ConvGradient of images with one axis."""

    axes = 1


@register
@dataclass(frozen=True)
class Conv2D(FixedAxes, Conv):
    """Conv of images with two axes."""

    axes = 2


@register
@dataclass(frozen=True)
class Conv2DGradient(FixedAxes, ConvGradient):
    """ConvGradient of images with two axes."""

    axes = 2


@register
@dataclass(frozen=True)
class Conv3D(FixedAxes, Conv):
    """Conv of images with three axes."""

    axes = 3


@register
@dataclass(frozen=True)
class Conv3DGradient(FixedAxes, ConvGradient):
    """ConvGradient of images with three axes."""

    axes = 3


@register
@dataclass(frozen=True)
class MaxPool1D(FixedAxes, MaxPool):
    """MaxPool of images with one axis."""

    axes = 1


@register
@dataclass(frozen=True)
class MaxPool1DGradient(FixedAxes, MaxPoolGradient):
    """MaxPoolGradient of images with one axis."""

    axes = 1


@register
@dataclass(frozen=True)
class MaxPool2D(FixedAxes, MaxPool):
    """MaxPool of images with two axes."""

    axes = 2


@register
@dataclass(frozen=True)
class MaxPool2DGradient(FixedAxes, MaxPoolGradient):
    """MaxPoolGradient of images with two axes."""

    axes = 2


@register
@dataclass(frozen=True)
class MaxPool3D(FixedAxes, MaxPool):
    """MaxPool of images with three axes."""

    axes = 3


@register
@dataclass(frozen=True)
class MaxPool3DGradient(FixedAxes, MaxPoolGradient):
    """MaxPoolGradient of images with three axes."""

    axes = 3


@register
@dataclass(frozen=True)
class AveragePool1D(FixedAxes, AveragePool):
    """AveragePool of images with one axis."""

    axes = 1


@register
@dataclass(frozen=True)
class AveragePool1DGradient(FixedAxes, AveragePoolGradient):
    """AveragePoolGradient of images with one axis."""

    axes = 1


@register
@dataclass(frozen=True)
class AveragePool2D(FixedAxes, AveragePool):
    """AveragePool of images with two axes."""

    axes = 2


@register
@dataclass(frozen=True)
class AveragePool2DGradient(FixedAxes, AveragePoolGradient):
    """AveragePoolGradient of images with two axes."""

    axes = 2


@register
@dataclass(frozen=True)
class AveragePool3D(FixedAxes, AveragePool):
    """AveragePool of images with three axes."""

    axes = 3


@register
@dataclass(frozen=True)
class AveragePool3DGradient(FixedAxes, AveragePoolGradient):
    """AveragePoolGradient of images with three axes."""

    axes = 3


for _conv in (Conv1D, Conv2D, Conv3D):
    kernel(_conv)(conv)
for _conv_gradient in (Conv1DGradient, Conv2DGradient, Conv3DGradient):
    kernel(_conv_gradient)(conv_gradient)
for _max in (MaxPool1D, MaxPool2D, MaxPool3D):
    kernel(_max)(max_pool)
for _max_gradient in (MaxPool1DGradient, MaxPool2DGradient, MaxPool3DGradient):
    kernel(_max_gradient)(max_pool_gradient)
for _mean in (AveragePool1D, AveragePool2D, AveragePool3D):
    kernel(_mean)(average_pool)
for _mean_gradient in (AveragePool1DGradient, AveragePool2DGradient, AveragePool3DGradient):
    kernel(_mean_gradient)(average_pool_gradient)
