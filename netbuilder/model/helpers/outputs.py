"""Softmax, accuracy, concatenation, arg max and arg min."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.engine import own_arguments, with_engine

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["accuracy", "arg_max", "arg_min", "concat", "depth_concat", "softmax"]

Blob = str | BlobReference


def softmax(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob | None = None,
    use_cudnn: bool = False,
    *,
    one_axis: bool = False,
    **kwargs: Any,
) -> BlobReference:
    """Compute exp(x) / sum(exp(x)) for each row.

    Args:
        blob_in: scores, (N, classes).
        blob_out: name of the result; None: a name made from the net's and the operator's.
        one_axis: sum along ``axis`` alone, such as the channels of images, not over all axes from that one on. This is
            the exponential of a LogSoftmax, ``<blob_out>_logs``.
        kwargs: ``axis`` of Softmax, 1 if it is omitted.
    """
    if one_axis:
        out = blob_out or model.net.NextName()
        logs = model.net.LogSoftmax(blob_in, out + "_logs", **{"axis": 1, **own_arguments(kwargs)})
        along: BlobReference = model.net.Exp(logs, out)
        return along
    result: BlobReference = model.net.Softmax(blob_in, blob_out, **with_engine(kwargs, use_cudnn))
    return result


def accuracy(model: ModelHelper, blob_in: Sequence[Blob], blob_out: Blob, **kwargs: Any) -> BlobReference:
    """Compute the fraction of samples whose label has the greatest score.

    Args:
        blob_in: scores, (N, classes), and labels, (N,).
        blob_out: name of the result, a scalar in [0, 1].
        kwargs: ``top_k``: a sample is correct if its label is among the ``top_k`` greatest scores.
    """
    result: BlobReference = model.net.Accuracy(blob_in, blob_out, **own_arguments(kwargs))
    return result


def concat(model: ModelHelper, blobs_in: Sequence[Blob], blob_out: Blob, **kwargs: Any) -> BlobReference:
    """Concatenate blobs along an axis; their extents on it are stored in ``_<blob_out>_concat_dims``.

    Args:
        kwargs: ``axis`` of Concat, or ``order`` ("NCHW", "NHWC") for the channel axis.
    """
    if "axis" in kwargs:
        kwargs.pop("order", None)
    dims = "_" + blob_out + "_concat_dims"
    result: BlobReference = model.net.Concat(blobs_in, [blob_out, dims], **kwargs)[0]
    return result


def depth_concat(model: ModelHelper, blobs_in: Sequence[Blob], blob_out: Blob, **kwargs: Any) -> BlobReference:
    """Concatenate blobs along the channels; an older name of ``concat``."""
    return concat(model, blobs_in, blob_out, **kwargs)


def arg_max(model: ModelHelper, blob_in: Blob, blob_out: Blob, **kwargs: Any) -> BlobReference:
    """Compute the index of the maximum along an axis (``axis``, ``keepdims`` of ArgMax)."""
    result: BlobReference = model.net.ArgMax(blob_in, blob_out, **kwargs)
    return result


def arg_min(model: ModelHelper, blob_in: Blob, blob_out: Blob, **kwargs: Any) -> BlobReference:
    """Compute the index of the smallest element along an axis (``axis``, ``keepdims`` of ArgMin)."""
    result: BlobReference = model.net.ArgMin(blob_in, blob_out, **kwargs)
    return result
