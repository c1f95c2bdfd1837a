"""Lookups in quantized tables, and dequantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["fused_8bit_rowwise_quantized_to_float", "sparse_lengths_sum_4bit_rowwise_sparse"]

Blob = str | BlobReference


def fused_8bit_rowwise_quantized_to_float(model: ModelHelper, blob_in: Blob, blob_out: Blob) -> BlobReference:
    """Dequantize the rows of an 8-bit table to float32 (Fused8BitRowwiseQuantizedToFloat)."""
    result: BlobReference = model.net.Fused8BitRowwiseQuantizedToFloat(blob_in, blob_out)
    return result


def sparse_lengths_sum_4bit_rowwise_sparse(
    model: ModelHelper, blob_in: Sequence[Blob], blob_out: Blob, **kwargs: Any
) -> BlobReference:
    """Sum rows of a pruned 4-bit table by indices and lengths (SparseLengthsSum4BitRowwiseSparse)."""
    result: BlobReference = model.net.SparseLengthsSum4BitRowwiseSparse(blob_in, blob_out, **kwargs)
    return result
