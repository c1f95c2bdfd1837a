"""The table of cuDNN's prepared kernels by operator."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.engines.cudnn import kernels_conv as conv
from netbuilder.ops.engines.cudnn import kernels_dense as dense
from netbuilder.ops.engines.cudnn import kernels_norm as norm

__all__ = ["KERNELS"]

KERNELS: dict[str, Any] = {
    "BatchMatMul": dense.batch_matmul,
    "Conv": conv.conv,
    "ConvGradient": conv.conv_gradient,
    "ConvRelu": conv.conv_relu,
    "ConvTranspose": conv.conv_transpose,
    "ConvTransposeGradient": conv.conv_transpose_gradient,
    "FC": dense.fc,
    "FCGradient": dense.fc_gradient,
    "FCTransposed": dense.fc,
    "FCTransposedGradient": dense.fc_gradient,
    "MatMul": dense.matmul,
    "SpatialBN": norm.spatial_bn,
    "SpatialBNGradient": norm.spatial_bn_gradient,
    **{
        f"Conv{axes}D{suffix}": make
        for axes in (1, 2, 3)
        for suffix, make in (("", conv.conv), ("Gradient", conv.conv_gradient))
    },
}
