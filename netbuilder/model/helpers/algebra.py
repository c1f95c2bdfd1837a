"""Sums, differences and products of blobs; transposition. ``blob_out=1`` lets the net name the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.engine import with_engine

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["add", "batch_mat_mul", "mat_mul", "reduce_sum", "sub", "sum", "transpose"]

Blob = str | BlobReference


def sum(model: ModelHelper, blob_in: Sequence[Blob], blob_out: Blob | int, **kwargs: Any) -> BlobReference:
    """Add any number of blobs of equal shape."""
    result: BlobReference = model.net.Sum(blob_in, blob_out, **kwargs)
    return result


def add(model: ModelHelper, blob_in: Sequence[Blob], blob_out: Blob | int, **kwargs: Any) -> BlobReference:
    """Add two blobs; the second may be broadcast (``broadcast``, ``axis`` of Add)."""
    result: BlobReference = model.net.Add(blob_in, blob_out, **kwargs)
    return result


def sub(model: ModelHelper, blob_in: Sequence[Blob], blob_out: Blob | int, **kwargs: Any) -> BlobReference:
    """Subtract the second blob from the first; it may be broadcast (``broadcast``, ``axis`` of Sub)."""
    result: BlobReference = model.net.Sub(blob_in, blob_out, **kwargs)
    return result


def mat_mul(model: ModelHelper, blob_in: Sequence[Blob], blob_out: Blob | int, **kwargs: Any) -> BlobReference:
    """Multiply two matrices (``trans_a``, ``trans_b`` of MatMul)."""
    result: BlobReference = model.net.MatMul(blob_in, blob_out, **kwargs)
    return result


def batch_mat_mul(
    model: ModelHelper, blob_in: Sequence[Blob], blob_out: Blob, enable_tensor_core: bool = False, **kwargs: Any
) -> BlobReference:
    """Multiply two batches of matrices (``trans_a``, ``trans_b`` of BatchMatMul).

    Args:
        enable_tensor_core: request the engine TENSORCORE.
    """
    if enable_tensor_core:
        kwargs["engine"] = "TENSORCORE"
    result: BlobReference = model.net.BatchMatMul(blob_in, blob_out, **kwargs)
    return result


def reduce_sum(model: ModelHelper, blob_in: Blob, blob_out: Blob, **kwargs: Any) -> BlobReference:
    """Sum over some axes (``axes``, ``keepdims`` of ReduceSum)."""
    result: BlobReference = model.net.ReduceSum(blob_in, blob_out, **kwargs)
    return result


def transpose(
    model: ModelHelper, blob_in: Blob, blob_out: Blob, use_cudnn: bool = False, **kwargs: Any
) -> BlobReference:
    """Reorder the axes (``axes`` of Transpose; reversed if not given)."""
    result: BlobReference = model.net.Transpose(blob_in, blob_out, **with_engine(kwargs, use_cudnn))
    return result
