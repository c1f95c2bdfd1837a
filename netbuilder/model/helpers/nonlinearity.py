"""Activation functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.engine import own_arguments, with_engine
from netbuilder.model.helpers.extents import check_extents
from netbuilder.model.initializers import FillAndArguments, update_initializer

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["HARD_SIGMOID", "elu", "hard_swish", "prelu", "relu", "sigmoid", "tanh"]

HARD_SIGMOID: Mapping[str, float] = {"alpha": 1 / 6, "beta": 0.5}
"""The arguments of HardSigmoid in MobileNets, and in other frameworks; those of Caffe2 are 0.2 and 0.5."""

Blob = str | BlobReference


def relu(
    model: ModelHelper, blob_in: Blob, blob_out: Blob, use_cudnn: bool = False, order: str = "NCHW", **kwargs: Any
) -> BlobReference:
    """Compute max(x, 0); ``blob_out`` may be ``blob_in``."""
    return _apply(model, "Relu", blob_in, blob_out, use_cudnn, order, kwargs)


def tanh(
    model: ModelHelper, blob_in: Blob, blob_out: Blob, use_cudnn: bool = False, order: str = "NCHW", **kwargs: Any
) -> BlobReference:
    """Compute tanh(x); ``blob_out`` may be ``blob_in``."""
    return _apply(model, "Tanh", blob_in, blob_out, use_cudnn, order, kwargs)


def sigmoid(
    model: ModelHelper, blob_in: Blob, blob_out: Blob, use_cudnn: bool = False, order: str = "NCHW", **kwargs: Any
) -> BlobReference:
    """Compute 1 / (1 + exp(-x)); ``blob_out`` may be ``blob_in``."""
    return _apply(model, "Sigmoid", blob_in, blob_out, use_cudnn, order, kwargs)


def elu(
    model: ModelHelper, blob_in: Blob, blob_out: Blob, use_cudnn: bool = False, order: str = "NCHW", **kwargs: Any
) -> BlobReference:
    """Compute x if it is positive, otherwise ``alpha * (exp(x) - 1)``; ``blob_out`` may be ``blob_in``.

    Args:
        kwargs: ``alpha`` of Elu.
    """
    return _apply(model, "Elu", blob_in, blob_out, use_cudnn, order, kwargs)


def hard_swish(model: ModelHelper, blob_in: Blob, blob_out: Blob, **kwargs: Any) -> BlobReference:
    """Compute x times x / 6 + 1 / 2 clipped to [0, 1]; the factor is ``<blob_out>_gate``.

    Source: Howard et al., "Searching for MobileNetV3", 2019, arXiv:1905.02244, section 5.2.
    """
    gate = model.net.HardSigmoid(blob_in, blob_out + "_gate", **{**HARD_SIGMOID, **own_arguments(kwargs)})
    result: BlobReference = model.net.Mul([blob_in, gate], blob_out)
    return result


def _apply(
    model: ModelHelper,
    op_type: str,
    blob_in: Blob,
    blob_out: Blob,
    use_cudnn: bool,
    order: str,
    kwargs: dict[str, Any],
) -> BlobReference:
    operator = getattr(model.net, op_type)
    result: BlobReference = operator(blob_in, blob_out, order=order, **with_engine(kwargs, use_cudnn))
    return result


def prelu(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob,
    num_channels: int = 1,
    slope_init: FillAndArguments | None = None,
    **kwargs: Any,
) -> BlobReference:
    """Multiply negative values by a learned slope, ``<blob_out>_slope``.

    Args:
        num_channels: 1 for a common slope, or the number of channels for one slope per channel.
        slope_init: (fill operator, its arguments); 0.25 if None.

    Source: He, Zhang, Ren and Sun, "Delving deep into rectifiers", 2015, arXiv:1502.01852, section 2.1.
    """
    check_extents("prelu", blob_out, num_channels=num_channels)
    fill = update_initializer(None, slope_init, ("ConstantFill", {"value": 0.25}))
    slope = model.create_param(blob_out + "_slope", [num_channels], fill)
    result: BlobReference = model.net.PRelu([blob_in, slope], blob_out, **own_arguments(kwargs))
    return result
