"""The table of oneDNN's fusions: neighboring operators that have one kernel."""

from __future__ import annotations

from netbuilder.engines.convolution_tables import conv_fusions
from netbuilder.engines.engine import Fusion, Pattern
from netbuilder.engines.onednn.kernels_conv import fused_conv
from netbuilder.engines.onednn.kernels_dense import fused_fc_relu
from netbuilder.engines.onednn.kernels_eltwise import fused_sum_relu
from netbuilder.engines.onednn.kernels_norm import fused_bn_relu, fused_bn_relu_gradient, fused_relu_gradient_stats

__all__ = ["FUSIONS"]

FUSIONS = (
    Fusion(Pattern.CHAIN, ("SpatialBN",), "Relu", fused_bn_relu, "bn_relu"),
    Fusion(Pattern.CHAIN, ("Sum",), "Relu", fused_sum_relu, "sum_relu", inputs=2),
    Fusion(Pattern.CHAIN, ("FC",), "Relu", fused_fc_relu, "fc_relu"),
    *conv_fusions(fused_conv),
    Fusion(
        Pattern.NORMALIZATION_GRADIENT,
        ("ReluGradient",),
        "SpatialBNGradient",
        fused_bn_relu_gradient,
        "bn_relu_gradient",
    ),
    Fusion(
        Pattern.STATISTICS_GRADIENT,
        ("ReluGradient",),
        "ChannelBackpropStats",
        fused_relu_gradient_stats,
        "relu_gradient_stats",
    ),
)
