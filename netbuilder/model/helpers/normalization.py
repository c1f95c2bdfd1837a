"""Normalisation of activations: over the batch, and across channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.initializers import update_initializer
from netbuilder.model.parameter_info import ParameterTags

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["lrn", "spatial_bn"]

_COMPUTED = ParameterTags.COMPUTED_PARAM


def spatial_bn(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    dim_in: int,
    init_scale: float = 1.0,
    init_bias: float = 0.0,
    ScaleInitializer: Any = None,
    BiasInitializer: Any = None,
    RunningMeanInitializer: Any = None,
    RunningVarianceInitializer: Any = None,
    order: str = "NCHW",
    **kwargs: Any,
) -> BlobReference:
    """Normalise each channel over the batch and the image plane, then scale and shift it.

    Training uses the statistics of the batch on this device, and keeps running ones
    ``r = momentum * r + (1 - momentum) * batch`` in ``<blob_out>_rm`` and ``<blob_out>_riv``; a net with
    ``is_test`` uses those. Scale and shift are ``<blob_out>_s`` and ``<blob_out>_b``; statistics of the
    batch are left in ``<blob_out>_sm`` (mean) and ``<blob_out>_siv`` (inverse deviation).

    Args:
        blob_in: activations, (N, C, H, W), or (N, H, W, C) with ``order="NHWC"``.
        blob_out: name of the result.
        dim_in: number of channels C.
        init_scale, init_bias: what all scales and shifts start from.
        ScaleInitializer, BiasInitializer, RunningMeanInitializer, RunningVarianceInitializer:
            initialiser classes, see ``netbuilder.model.initializers``.
        kwargs: ``is_test``, ``epsilon``, ``momentum`` and the other arguments of SpatialBN.

    Source: Ioffe and Szegedy, "Batch Normalization", 2015, arXiv:1502.03167, section 3.
    """

    def param(suffix: str, initializer: Any, value: float, tag: str) -> BlobReference:
        fill = update_initializer(initializer, None, ("ConstantFill", {"value": value}))
        return model.create_param(blob_out + suffix, [dim_in], fill, tag)

    scale = param("_s", ScaleInitializer, init_scale, ParameterTags.WEIGHT)
    bias = param("_b", BiasInitializer, init_bias, ParameterTags.BIAS)
    mean = param("_rm", RunningMeanInitializer, 0.0, _COMPUTED)
    variance = param("_riv", RunningVarianceInitializer, 1.0, _COMPUTED)
    outputs = [blob_out]
    if not kwargs.get("is_test"):
        outputs += [mean, variance, blob_out + "_sm", blob_out + "_siv"]
    made = model.net.SpatialBN([blob_in, scale, bias, mean, variance], outputs, order=order, **kwargs)
    result: BlobReference = made[0] if isinstance(made, tuple) else made
    return result


def lrn(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    order: str = "NCHW",
    use_cudnn: bool = False,
    **kwargs: Any,
) -> BlobReference:
    """Divide each activation by a power of the squares of its neighbours in other channels.

    The divisor is ``(bias + alpha / size * sum of squares) ** beta``; the sum is kept in ``_<blob_out>_scale``.

    Args:
        kwargs: ``size``, ``alpha``, ``beta``, ``bias`` of LRN.

    Source: Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural
    networks", 2012, section 3.3.
    """
    scale = "_" + blob_out + "_scale"
    result: BlobReference = model.net.LRN(blob_in, [blob_out, scale], order=order, **kwargs)[0]
    return result
