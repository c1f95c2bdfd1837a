"""The table of cuDNN's fusions: neighboring operators that have one kernel."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.engines.cudnn.kernels_conv import fused_conv
from netbuilder.ops.engines.cudnn.kernels_dense import fused_fc_relu
from netbuilder.ops.engines.cudnn.kernels_norm import fused_bn_relu, fused_bn_relu_gradient
from netbuilder.ops.engines.engine import Fusion, Pattern

__all__ = ["FUSIONS"]


def _conv_relu(op: Any, ctx: Any, *specs: Any) -> Prepared | None:
    return fused_conv(op, ctx, specs, relu=True)


def _conv_sum(op: Any, ctx: Any, *specs: Any) -> Prepared | None:
    return fused_conv(op, ctx, specs[:-1], add=specs[-1])


def _conv_sum_relu(op: Any, ctx: Any, *specs: Any) -> Prepared | None:
    return fused_conv(op, ctx, specs[:-1], relu=True, add=specs[-1])


FUSIONS = (
    Fusion(Pattern.CHAIN, ("SpatialBN",), "Relu", fused_bn_relu, "bn_relu"),
    Fusion(Pattern.CHAIN, ("FC",), "Relu", fused_fc_relu, "fc_relu"),
    Fusion(Pattern.CHAIN, ("Conv",), "Relu", _conv_relu, "conv_relu"),
    Fusion(Pattern.CHAIN, ("Conv", "Sum"), "Relu", _conv_sum_relu, "conv_relu"),
    Fusion(Pattern.ACCUMULATE, ("Conv",), "Sum", _conv_sum, "conv_sum"),
    Fusion(
        Pattern.NORMALIZATION_GRADIENT,
        ("ReluGradient",),
        "SpatialBNGradient",
        fused_bn_relu_gradient,
        "bn_relu_gradient",
        reads_result=True,
    ),
)
