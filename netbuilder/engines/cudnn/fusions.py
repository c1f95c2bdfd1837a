"""The table of cuDNN's fusions: neighboring operators that have one kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
    limit_of,
)
from netbuilder.engines.fusion import GRADIENT_OF_ACTIVATION, Fusion
from netbuilder.ops.core.contexts import Prepared

__all__ = ["FUSIONS"]

_NUMBERS = "scale bias mean variance"
_ACTIVATIONS = ("Relu", "ReluN")


def _with_limit(make: Callable[..., Prepared | None], operators: int = 1, **options: Any) -> Callable[..., Any]:
    """Return the function of a fusion whose operators are followed by a Relu, a ReluN, or the gradient of one.

    Args:
        make: is given the operators but that, and its limit by name.
        operators: how many it is given.
        options: further ones of ``make``.
    """

    def made(*arguments: Any) -> Prepared | None:
        activation = arguments[operators]
        return make(*arguments[:operators], *arguments[operators + 1 :], limit=limit_of(activation), **options)

    return made


def _of_normalization(activation: str) -> tuple[Fusion, ...]:
    """Return the fusions of SpatialBN, and of the Sum after it, with an activation."""
    return (
        Fusion(
            f"SpatialBN: a b c d e -> h *statistics; {activation}: h -> y", "a b c d e -> y *statistics",
            _with_limit(fused_bn_relu), "bn_relu", further=(1,),
        ),
        Fusion(
            f"SpatialBN+Sum: a b c d e other -> h *statistics; {activation}: h -> y",
            "a b c d e other -> y *statistics", _with_limit(fused_bn_sum_relu), "bn_relu", further=(2,),
        ),
    )  # fmt: skip


def _of_gradient(activation: str) -> tuple[Fusion, ...]:
    """Return the fusions of the gradients of an activation and of the SpatialBN before it."""
    shared = f"{activation}Gradient: y dy -> g; SpatialBNGradient: x scale g *statistics -> *dx"
    make = _with_limit(fused_shared_gradient)
    return (
        Fusion(
            f"{activation}Gradient: y dy -> g; SpatialBNGradient: x scale g mean deviation -> *dx",
            "x scale dy mean deviation y -> *dx", _with_limit(fused_bn_relu_gradient), "bn_relu_gradient",
            main=1, place=1, further=(0,), conditions=GRADIENT_OF_ACTIVATION,
        ),
        # The end of a residual block: others may read g, too; a Sum of two gradients before it is added.
        Fusion(
            f"Sum: u v -> dy; {shared}", "x scale u *statistics y v -> g *dx", make, "bn_relu_gradient",
            main=2, place=1, further=(1,),
        ),
        Fusion(shared, "x scale dy *statistics y -> g *dx", make, "bn_relu_gradient", main=1, further=(0,)),
    )  # fmt: skip


def _of_convolution(activation: str, *, add: bool) -> Fusion:
    """Return the fusion of Conv and the SpatialBN after it, with a Sum or not, and with an activation or none."""
    following = f"{'+Sum' * add}{f'+{activation}' * bool(activation)}"
    last = (2 + add,) if activation else ()
    return Fusion(
        f"Conv: *x -> a; SpatialBN{following}: a {_NUMBERS}{' other' * add} -> y *statistics",
        f"*x {_NUMBERS}{' other' * add} -> a y *statistics",
        _with_limit(fused_conv_bn, 2, add=add) if activation else partial(fused_conv_bn, add=add), "conv_bn",
        place=1, further=(1, *last), of_joined=True,
    )  # fmt: skip


def _of_convolution_gradient(activation: str) -> tuple[Fusion, ...]:
    """Return the fusions of ConvGradient with the gradients of the activation and of the SpatialBN before the Conv."""
    pair = f"SpatialBNGradient+{activation}Gradient"
    forms = (  # the values of a joined gradient, of which that of the Relu's result is da, with an addend or not
        (f"{pair}: x scale da mean inverse y", "", ""),
        (f"{pair}: x scale da mean inverse y", "", "g "),
        (f"{pair}+Sum: x scale da mean inverse y other", " other", "g "),
        (f"{pair}+Sum: x scale other mean inverse y da", " other", "g "),
    )
    return tuple(
        Fusion(
            f"ConvGradient: y w dy -> dw {db}da; {gradient} -> {g}dx ds dt",
            f"y w dy x scale mean inverse{other} -> dw {db}{g}dx ds dt",
            _with_limit(fused_conv_bn_gradient, 2, add=bool(other), shared=bool(g)), "conv_bn",
            place=1, further=(1, 2), of_joined=True,
        )
        for db in ("", "db ")
        for gradient, other, g in forms
    )  # fmt: skip


FUSIONS = (
    Fusion(
        "SpatialBN: a b c d e -> h *statistics; Sum: {h other} -> y", "a b c d e other -> y *statistics",
        fused_bn_sum, "bn_relu",
    ),
    *(fusion for activation in _ACTIVATIONS for fusion in _of_normalization(activation)),
    Fusion("FC: *x -> a; Relu: a -> y", "*x -> y", BY_CUDNN.fused_fc_relu, "fc_relu"),
    *conv_fusions(fused_conv),
    *(fusion for activation in _ACTIVATIONS for fusion in _of_gradient(activation)),
    *(_of_convolution(activation, add=add) for add in (False, True) for activation in ("", *_ACTIVATIONS)),
    *(fusion for activation in _ACTIVATIONS for fusion in _of_convolution_gradient(activation)),
)  # fmt: skip
