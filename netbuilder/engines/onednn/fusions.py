"""The table of oneDNN's fusions: neighboring operators that have one kernel."""

from __future__ import annotations

from netbuilder.engines.convolution_tables import conv_fusions
from netbuilder.engines.fusion import GRADIENT_OF_ACTIVATION, Condition, Fusion
from netbuilder.engines.onednn.kernels_conv import fused_conv
from netbuilder.engines.onednn.kernels_dense import fused_fc_relu
from netbuilder.engines.onednn.kernels_norm import fused_bn_relu, fused_bn_relu_gradient, fused_relu_gradient_stats

__all__ = ["FUSIONS"]

FUSIONS = (
    Fusion("SpatialBN: *x -> a *statistics; Relu: a -> y", "*x -> y *statistics", fused_bn_relu, "bn_relu"),
    Fusion("FC: *x -> a; Relu: a -> y", "*x -> y", fused_fc_relu, "fc_relu"),
    *conv_fusions(fused_conv),
    Fusion(
        "ReluGradient: y dy -> g; SpatialBNGradient: x scale g mean deviation -> *dx",
        "x scale dy mean deviation -> *dx",
        fused_bn_relu_gradient,
        "bn_relu_gradient",
        main=1,
        place=1,
        conditions=GRADIENT_OF_ACTIVATION,
    ),
    Fusion(
        "ReluGradient: y dy -> g; ChannelBackpropStats: x mean deviation g *more -> *sums",
        "x mean deviation dy *more -> g *sums",
        fused_relu_gradient_stats,
        "relu_gradient_stats",
        main=1,
        conditions={"mean": Condition.OF_ACTIVATION},
    ),
)
