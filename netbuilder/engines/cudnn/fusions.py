"""The table of cuDNN's fusions: neighboring operators that have one kernel."""

from __future__ import annotations

from functools import partial

from netbuilder.engines.convolution_tables import conv_fusions
from netbuilder.engines.cudnn.kernels_conv import fused_conv
from netbuilder.engines.cudnn.kernels_conv_norm import fused_conv_bn, fused_conv_bn_gradient
from netbuilder.engines.cudnn.kernels_dense import BY_CUDNN
from netbuilder.engines.cudnn.kernels_norm import (
    fused_bn_relu,
    fused_bn_relu_gradient,
    fused_bn_sum,
    fused_bn_sum_relu,
    fused_shared_gradient,
)
from netbuilder.engines.fusion import GRADIENT_OF_ACTIVATION, Fusion

__all__ = ["FUSIONS"]

_NUMBERS = "scale bias mean variance"
_GRADIENT_FORMS = (  # the values of a joined gradient, of which that of the Relu's result is da, with an addend or not
    ("SpatialBNGradient+ReluGradient: x scale da mean inverse y", "", ""),
    ("SpatialBNGradient+ReluGradient: x scale da mean inverse y", "", "g "),
    ("SpatialBNGradient+ReluGradient+Sum: x scale da mean inverse y other", " other", "g "),
    ("SpatialBNGradient+ReluGradient+Sum: x scale other mean inverse y da", " other", "g "),
)
_SHARED = "ReluGradient: y dy -> g; SpatialBNGradient: x scale g *statistics -> *dx"

FUSIONS = (
    Fusion(
        "SpatialBN: a b c d e -> h *statistics; Relu: h -> y", "a b c d e -> y *statistics", fused_bn_relu, "bn_relu"
    ),
    Fusion(
        "SpatialBN: a b c d e -> h *statistics; Sum: {h other} -> y", "a b c d e other -> y *statistics",
        fused_bn_sum, "bn_relu",
    ),
    Fusion(
        "SpatialBN+Sum: a b c d e other -> h *statistics; Relu: h -> y", "a b c d e other -> y *statistics",
        fused_bn_sum_relu, "bn_relu",
    ),
    Fusion("FC: *x -> a; Relu: a -> y", "*x -> y", BY_CUDNN.fused_fc_relu, "fc_relu"),
    *conv_fusions(fused_conv),
    Fusion(
        "ReluGradient: y dy -> g; SpatialBNGradient: x scale g mean deviation -> *dx",
        "x scale dy mean deviation y -> *dx",
        fused_bn_relu_gradient,
        "bn_relu_gradient",
        main=1,
        place=1,
        conditions=GRADIENT_OF_ACTIVATION,
    ),
    # The end of a residual block: others may read g, too; a Sum of two gradients before it is added.
    Fusion(
        f"Sum: u v -> dy; {_SHARED}", "x scale u *statistics y v -> g *dx",
        fused_shared_gradient, "bn_relu_gradient", main=2, place=1,
    ),
    Fusion(_SHARED, "x scale dy *statistics y -> g *dx", fused_shared_gradient, "bn_relu_gradient", main=1),
    *(
        Fusion(
            f"Conv: *x -> a; SpatialBN{'+Sum' * add}{'+Relu' * relu}: a {_NUMBERS}{' other' * add} -> y *statistics",
            f"*x {_NUMBERS}{' other' * add} -> a y *statistics", partial(fused_conv_bn, add=add, relu=relu), "conv_bn",
            place=1, further=(1,), of_joined=True,
        )
        for add, relu in ((False, False), (False, True), (True, False), (True, True))
    ),
    *(
        Fusion(
            f"ConvGradient: y w dy -> dw {db}da; {gradient} -> {g}dx ds dt",
            f"y w dy x scale mean inverse{other} -> dw {db}{g}dx ds dt",
            partial(fused_conv_bn_gradient, add=bool(other), shared=bool(g)), "conv_bn",
            place=1, further=(1,), of_joined=True,
        )
        for db in ("", "db ")
        for gradient, other, g in _GRADIENT_FORMS
    ),
)  # fmt: skip
