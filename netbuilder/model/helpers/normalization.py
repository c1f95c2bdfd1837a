"""Normalization of activations: batch, instance, group, layer, root mean square and local response normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.extents import check_extents
from netbuilder.model.initializers import update_initializer
from netbuilder.model.parameter_info import ParameterTags

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["instance_norm", "layer_norm", "lrn", "moments_with_running_stats", "rms_norm", "spatial_bn", "spatial_gn"]


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
    """Normalize each channel over the batch and the image plane, then scale and shift it.

    Training uses the statistics of the batch on this device, and updates running averages
    ``r = momentum * r + (1 - momentum) * batch`` in ``<blob_out>_rm`` and ``<blob_out>_riv``; a net with
    ``is_test`` uses these. Scale and shift are ``<blob_out>_s`` and ``<blob_out>_b``; statistics of the
    batch are written to ``<blob_out>_sm`` (mean) and ``<blob_out>_siv`` (inverse standard deviation).

    Args:
        blob_in: activations, (N, C, H, W), or (N, H, W, C) with ``order="NHWC"``.
        blob_out: name of the result.
        dim_in: number of channels C.
        init_scale, init_bias: initial value of all scales and of all shifts.
        ScaleInitializer, BiasInitializer, RunningMeanInitializer, RunningVarianceInitializer:
            initializer classes, see ``netbuilder.model.initializers``.
        kwargs: ``is_test``, ``epsilon``, ``momentum`` and the other arguments of SpatialBN.

    Source: Ioffe and Szegedy, "Batch Normalization", 2015, arXiv:1502.03167, section 3.
    """
    fills = (ScaleInitializer, BiasInitializer)
    scale_and_bias = _scale_and_bias(model, blob_out, dim_in, ("_s", "_b"), (init_scale, init_bias), fills)
    running = _running_statistics(model, blob_out, dim_in, RunningMeanInitializer, RunningVarianceInitializer)
    outputs = [blob_out]
    if not kwargs.get("is_test"):
        outputs += [*running, blob_out + "_sm", blob_out + "_siv"]
    return _first(model.net.SpatialBN([blob_in, *scale_and_bias, *running], outputs, order=order, **kwargs))


def lrn(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    order: str = "NCHW",
    use_cudnn: bool = False,
    **kwargs: Any,
) -> BlobReference:
    """Local response normalization: divide each activation by a power of the sum of squares in neighboring channels.

    The divisor is ``(bias + alpha / size * sum of squares) ** beta``; its base is stored in ``_<blob_out>_scale``.

    Args:
        kwargs: ``size``, ``alpha``, ``beta``, ``bias`` of LRN.

    Source: Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural
    networks", 2012, section 3.3.
    """
    scale = "_" + blob_out + "_scale"
    result: BlobReference = model.net.LRN(blob_in, [blob_out, scale], order=order, **kwargs)[0]
    return result


def instance_norm(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    dim_in: int,
    order: str = "NCHW",
    **kwargs: Any,
) -> BlobReference:
    """Normalize each channel of each image separately, then scale and shift it.

    Scale and shift are ``<blob_out>_s`` and ``<blob_out>_b``. In training, the statistics are written to
    ``<blob_out>_sm`` (mean) and ``<blob_out>_siv`` (inverse standard deviation).

    Args:
        blob_in: activations, (N, C, H, W), or (N, H, W, C) with ``order="NHWC"``.
        blob_out: name of the result.
        dim_in: number of channels C.
        kwargs: ``is_test``, ``epsilon`` of InstanceNorm.

    Source: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", 2016, arXiv:1607.08022.
    """
    scale, bias = _scale_and_bias(model, blob_out, dim_in, ("_s", "_b"), (1.0, 0.0))
    outputs = [blob_out] if kwargs.get("is_test") else [blob_out, blob_out + "_sm", blob_out + "_siv"]
    return _first(model.net.InstanceNorm([blob_in, scale, bias], outputs, order=order, **kwargs))


def spatial_gn(
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
    """Normalize each image over groups of its channels, then scale and shift each channel.

    Scale and shift are ``<blob_out>_s`` and ``<blob_out>_b``; the statistics of groups are written to
    ``<blob_out>_mean`` and ``<blob_out>_std`` (the inverse standard deviation).

    Args:
        blob_in: activations, (N, C, H, W), or (N, H, W, C) with ``order="NHWC"``.
        blob_out: name of the result.
        dim_in: number of channels C.
        init_scale, init_bias: initial value of all scales and of all shifts.
        ScaleInitializer, BiasInitializer: initializer classes, see ``netbuilder.model.initializers``.
        RunningMeanInitializer, RunningVarianceInitializer: ignored: groups have no running statistics.
        kwargs: ``group`` (32) and ``epsilon`` of GroupNorm.

    Source: Wu and He, "Group Normalization", 2018, arXiv:1803.08494.
    """
    fills = (ScaleInitializer, BiasInitializer)
    scale, bias = _scale_and_bias(model, blob_out, dim_in, ("_s", "_b"), (init_scale, init_bias), fills)
    if order != "NCHW":
        kwargs["order"] = order
    outputs = [blob_out, blob_out + "_mean", blob_out + "_std"]
    return _first(model.net.GroupNorm([blob_in, scale, bias], outputs, **kwargs))


def layer_norm(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    dim_in: int | Sequence[int],
    axis: int = 1,
    epsilon: float = 1e-5,
    initial_scale: float = 1.0,
    initial_bias: float = 0.0,
) -> BlobReference:
    """Normalize each sample over the axes from ``axis`` on, then scale and shift each feature.

    Scale and shift are ``<blob_out>_scale`` and ``<blob_out>_bias``; means and standard deviations of the samples are
    written to ``<blob_out>_mean`` and ``<blob_out>_std``.

    Args:
        blob_in: activations.
        blob_out: name of the result.
        dim_in: number of features, the product of the extents from ``axis`` on; or these extents.
        axis: the first axis of a sample's features.
        epsilon: added to the variance.
        initial_scale, initial_bias: initial value of all scales and of all shifts.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450.
    """
    scale, bias = _scale_and_bias(model, blob_out, dim_in, ("_scale", "_bias"), (initial_scale, initial_bias))
    outputs = [blob_out, blob_out + "_mean", blob_out + "_std"]
    return _first(
        model.net.LayerNorm([blob_in, scale, bias], outputs, axis=axis, epsilon=epsilon, elementwise_affine=True)
    )


def rms_norm(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    dim_in: int | Sequence[int],
    axis: int = 1,
    epsilon: float = 1e-5,
    *,
    bias: bool = False,
) -> BlobReference:
    """Divide each sample by its root mean square over the axes from ``axis`` on, then scale each feature.

    The scale is ``<blob_out>_scale``, the shift ``<blob_out>_bias``; the inverses of the root mean squares are written
    to ``<blob_out>_rrms``.

    Args:
        blob_in: activations.
        blob_out: name of the result.
        dim_in: number of features, the product of the extents from ``axis`` on; or these extents.
        axis: the first axis of a sample's features.
        epsilon: added to the mean square.
        bias: whether the shift is learned; otherwise it stays 0.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
    """
    tag = ParameterTags.BIAS if bias else ParameterTags.COMPUTED_PARAM
    scale, shift = _scale_and_bias(model, blob_out, dim_in, ("_scale", "_bias"), (1.0, 0.0), bias_tag=tag)
    return _first(model.net.RMSNorm([blob_in, scale, shift], [blob_out, blob_out + "_rrms"], axis=axis, eps=epsilon))


def moments_with_running_stats(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    dim_in: int,
    RunningMeanInitializer: Any = None,
    RunningVarianceInitializer: Any = None,
    order: str = "NCHW",
    **kwargs: Any,
) -> tuple[BlobReference, BlobReference]:
    """Compute mean ``<blob_out>_sm`` and variance ``<blob_out>_sv`` of each channel over a batch of images.

    Computed parameters for running averages, ``<blob_out>_rm`` and ``<blob_out>_riv``, are created; as in Caffe2, the
    model has to update them itself.

    Args:
        blob_in: activations, (N, C, H, W), or (N, H, W, C) with ``order="NHWC"``.
        blob_out: prefix of the names of the results.
        dim_in: number of channels C.
        RunningMeanInitializer, RunningVarianceInitializer: initializer classes; zeros and ones if None.
        kwargs: arguments that Caffe2's helpers pass to any operator.
    """
    _running_statistics(model, blob_out, dim_in, RunningMeanInitializer, RunningVarianceInitializer)
    axes = [0, 2, 3] if order == "NCHW" else [0, 1, 2]
    made: tuple[BlobReference, BlobReference] = model.net.Moments(
        [blob_in], [blob_out + "_sm", blob_out + "_sv"], axes=axes, order=order, keepdims=False, **kwargs
    )
    return made


def _scale_and_bias(
    model: ModelHelper,
    blob_out: str | BlobReference,
    dim_in: int | Sequence[int],
    suffixes: tuple[str, str],
    values: tuple[float, float],
    initializers: tuple[Any, Any] = (None, None),
    bias_tag: str = ParameterTags.BIAS,
) -> list[BlobReference]:
    made = []
    shape = list(dim_in) if isinstance(dim_in, Sequence) else [dim_in]
    for extent in shape:
        check_extents("normalization", blob_out, dim_in=extent)
    for suffix, value, initializer, tag in zip(suffixes, values, initializers, (ParameterTags.WEIGHT, bias_tag)):
        fill = update_initializer(initializer, None, ("ConstantFill", {"value": value}))
        made.append(model.create_param(blob_out + suffix, shape, fill, tag))
    return made


def _running_statistics(
    model: ModelHelper, blob_out: str | BlobReference, dim_in: int, mean: Any, variance: Any
) -> list[BlobReference]:
    """Create the computed parameters for running mean and variance, with these initializers; return them."""
    made = []
    for suffix, initializer, value in (("_rm", mean, 0.0), ("_riv", variance, 1.0)):
        fill = update_initializer(initializer, None, ("ConstantFill", {"value": value}))
        made.append(model.create_param(blob_out + suffix, [dim_in], fill, ParameterTags.COMPUTED_PARAM))
    return made


def _first(made: Any) -> BlobReference:
    result: BlobReference = made[0] if isinstance(made, tuple) else made
    return result
