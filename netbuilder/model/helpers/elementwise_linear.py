"""A layer with a weight and a bias for each feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.extents import check_extents
from netbuilder.model.initializers import FillAndArguments, update_initializer
from netbuilder.model.parameter_info import ParameterTags

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["elementwise_linear"]


def elementwise_linear(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference | None,
    dim: int,
    weight_init: FillAndArguments | None = None,
    bias_init: FillAndArguments | None = None,
    **kwargs: Any,
) -> BlobReference:
    """Multiply each feature by its own weight, ``<blob_out>_w``, and add its own bias, ``<blob_out>_b``.

    Args:
        blob_in: activations; the axes from ``axis`` (1) on are flattened to ``dim`` features.
        blob_out: name of the result; None: a name made from the net's.
        dim: number of features.
        weight_init, bias_init: (fill operator, its arguments); ones and zeros if None.
        kwargs: ``axis`` of ElementwiseLinear.
    """
    out = blob_out or model.net.NextName()
    check_extents("elementwise_linear", out, dim=dim)
    weight_fill = update_initializer(None, weight_init, ("ConstantFill", {"value": 1.0}))
    bias_fill = update_initializer(None, bias_init, ("ConstantFill", {"value": 0.0}))
    weight = model.create_param(out + "_w", [dim], weight_fill, ParameterTags.WEIGHT)
    bias = model.create_param(out + "_b", [dim], bias_fill, ParameterTags.BIAS)
    result: BlobReference = model.net.ElementwiseLinear([blob_in, weight, bias], out, **kwargs)
    return result
