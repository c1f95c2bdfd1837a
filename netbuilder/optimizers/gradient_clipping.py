"""Clipping of gradients by their global norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.scope import DeviceScope, NameScope
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.placement import get_param_device
from netbuilder.proto import ArgumentError, DeviceOption, TensorProto
from netbuilder.proto.arguments import make_device_option

__all__ = ["norm_ratio"]

_SCOPE = "norm_clipped_grad_update"


def norm_ratio(
    model: Any, params: Sequence[ParameterInfo], param_to_device: Mapping[str, DeviceOption], max_gradient_norm: float
) -> BlobReference:
    """Add operators that compute the global norm of the gradients; return the factor for the learning rate.

    The factor is ``bound / max(bound, norm)``, a scalar on the CPU, so gradients are not scaled below the bound.
    The rows of a sparse gradient are not aggregated first: each repeated row is a term of the norm.

    Args:
        model: the model, after its backward pass.
        params: the parameters whose gradients count; a single copy of each replicated one.
        param_to_device: device of each parameter.
        max_gradient_norm: the bound, positive.

    Raises:
        ArgumentError: the bound is not positive.

    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013,
    arXiv:1211.5063, algorithm 1.
    """
    if not max_gradient_norm > 0:
        raise ArgumentError(f"max_gradient_norm must be positive, got {max_gradient_norm}")
    net, init_net = model.net, model.param_init_net
    squares = []
    with NameScope(_SCOPE):
        for i, info in enumerate(params):
            grad: Any = info.grad.values if isinstance(info.grad, GradientSlice) else info.grad
            with DeviceScope(get_param_device(info.name, info.grad, param_to_device)):
                if not isinstance(info.grad, GradientSlice) and TensorProto.FLOAT in (info.blob_copy or {}):
                    grad = net.HalfToFloat(grad, f"grad_{i}_fp32")  # in float16 the sum of squares would overflow
                squares.append(net.EnsureCPUOutput(net.SumSqrElements([grad], f"grad_{i}_squared_sum")))
        with DeviceScope(make_device_option()):
            norm = net.Pow(net.Sum(squares, "grad_squared_full_sum"), "global_norm", exponent=0.5)
            bound = init_net.ConstantFill([], "clip_norm", shape=[], value=float(max_gradient_norm))
            ratio: BlobReference = net.Div([bound, net.Max([norm, bound], "max_norm")], "norm_ratio")
    return ratio
