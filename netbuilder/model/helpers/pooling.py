"""Pooling over windows of the image plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.engine import own_arguments, with_engine

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["average_pool", "max_pool", "max_pool_with_index"]


def max_pool(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    use_cudnn: bool = False,
    order: str = "NCHW",
    **kwargs: Any,
) -> BlobReference:
    """Compute the maximum of each window.

    Args:
        blob_in: images, (N, C, H, W), or (N, H, W, C) with ``order="NHWC"``.
        kwargs: arguments of MaxPool: ``kernel``, ``stride``, ``pad`` (pixels), ``global_pooling``, ...
    """
    result: BlobReference = model.net.MaxPool(blob_in, blob_out, order=order, **with_engine(kwargs, use_cudnn))
    return result


def average_pool(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    use_cudnn: bool = False,
    order: str = "NCHW",
    **kwargs: Any,
) -> BlobReference:
    """Compute the mean of each window; arguments as for ``max_pool``."""
    result: BlobReference = model.net.AveragePool(blob_in, blob_out, order=order, **with_engine(kwargs, use_cudnn))
    return result


def max_pool_with_index(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    order: str = "NCHW",
    **kwargs: Any,
) -> BlobReference:
    """Compute the maximum of each window, and its position in ``<blob_out>_index``; arguments as for ``max_pool``.

    Args:
        blob_in: images, (N, C, H, W).
        order: must be NCHW, as in Caffe2.
    """
    outputs = [blob_out, f"{blob_out}_index"]
    result: BlobReference = model.net.MaxPoolWithIndex(blob_in, outputs, order=order, **own_arguments(kwargs))[0]
    return result
