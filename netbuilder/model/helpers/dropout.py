"""Dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.engine import CUDNN
from netbuilder.proto import ArgumentError

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["dropout"]


def dropout(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    use_cudnn: bool = False,
    **kwargs: Any,
) -> BlobReference:
    """Set activations to 0 at random and scale the others up; the mask is stored in ``_<blob_out>_mask``.

    Args:
        kwargs: ``is_test`` (required; in a test net activations are unchanged), ``ratio`` (dropout probability,
            in [0, 1)).

    Raises:
        ArgumentError: ``is_test`` is missing.

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
    """
    if "is_test" not in kwargs:
        raise ArgumentError(f"dropout {str(blob_out)!r}: is_test is required: 0 in a training net, 1 in a test net")
    engine = CUDNN if use_cudnn else "DEFAULT"
    mask = "_" + blob_out + "_mask"
    result: BlobReference = model.net.Dropout(blob_in, [blob_out, mask], engine=engine, **kwargs)[0]
    return result
