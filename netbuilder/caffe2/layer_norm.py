"""``brew.layer_norm`` as in Caffe2: with its epsilon, and with means and standard deviations among the results."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew

__all__ = ["layer_norm"]


def layer_norm(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    dim_in: int | Sequence[int],
    axis: int = 1,
    epsilon: float = 1e-4,
    initial_scale: float = 1.0,
    initial_bias: float = 0.0,
) -> tuple[BlobReference, BlobReference, BlobReference]:
    """Add ``netbuilder.model.brew.layer_norm``; return its result, the means and the standard deviations."""
    result: BlobReference = brew.layer_norm(
        model, blob_in, blob_out, dim_in, axis, epsilon, initial_scale, initial_bias
    )
    return result, result + "_mean", result + "_std"
