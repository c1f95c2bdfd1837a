"""The table of cuDNN's fusions: neighboring operators that have one kernel."""

from __future__ import annotations

from netbuilder.engines.convolution_tables import conv_fusions
from netbuilder.engines.cudnn.kernels_conv import fused_conv
from netbuilder.engines.cudnn.kernels_dense import BY_CUDNN
from netbuilder.engines.cudnn.kernels_norm import (
    fused_bn_relu,
    fused_bn_relu_gradient,
    fused_bn_sum,
    fused_bn_sum_relu,
    fused_shared_gradient,
)
from netbuilder.engines.engine import Fusion, Pattern

__all__ = ["FUSIONS"]

FUSIONS = (
    Fusion(Pattern.CHAIN, ("SpatialBN",), "Relu", fused_bn_relu, "bn_relu", inputs=5),
    Fusion(Pattern.ADD, ("SpatialBN",), "Sum", fused_bn_sum, "bn_relu", inputs=5),
    Fusion(Pattern.CHAIN, ("SpatialBN", "Sum"), "Relu", fused_bn_sum_relu, "bn_relu", inputs=6),
    Fusion(Pattern.CHAIN, ("FC",), "Relu", BY_CUDNN.fused_fc_relu, "fc_relu"),
    *conv_fusions(fused_conv),
    Fusion(
        Pattern.NORMALIZATION_GRADIENT,
        ("ReluGradient",),
        "SpatialBNGradient",
        fused_bn_relu_gradient,
        "bn_relu_gradient",
        reads_result=True,
    ),
    Fusion(
        Pattern.SHARED_GRADIENT,
        ("ReluGradient",),
        "SpatialBNGradient",
        fused_shared_gradient,
        "bn_relu_gradient",
        reads_result=True,
    ),
)
