"""The table of cuDNN's prepared kernels by operator."""

from __future__ import annotations

from typing import Any

from netbuilder.engines.convolution_tables import with_fixed_ranks
from netbuilder.engines.cudnn import kernels_conv as conv
from netbuilder.engines.cudnn import kernels_norm as norm
from netbuilder.engines.cudnn import kernels_pool as pool
from netbuilder.engines.cudnn.kernels_dense import BY_CUDNN as dense

__all__ = ["KERNELS"]

KERNELS: dict[str, Any] = with_fixed_ranks(
    {
        "AveragePool": pool.average_pool,
        "AveragePoolGradient": pool.average_pool_gradient,
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
        "MaxPool": pool.max_pool,
        "MaxPoolGradient": pool.max_pool_gradient,
        "NormalizeImages": conv.normalize_images,
        "SpatialBN": norm.spatial_bn,
        "SpatialBNGradient": norm.spatial_bn_gradient,
    }
)
