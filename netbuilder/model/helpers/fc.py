"""Fully connected layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.extents import check_extents
from netbuilder.model.initializers import FillAndArguments, update_initializer
from netbuilder.model.parameter_info import ParameterTags

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["fc"]


def fc(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference | None,
    dim_in: int,
    dim_out: int,
    weight_init: FillAndArguments | None = None,
    bias_init: FillAndArguments | None = None,
    WeightInitializer: Any = None,
    BiasInitializer: Any = None,
    enable_tensor_core: bool = False,
    float16_compute: bool = False,
    **kwargs: Any,
) -> BlobReference:
    """Multiply by weights ``<blob_out>_w``, (dim_out, dim_in), and add a bias ``<blob_out>_b``.

    Args:
        blob_in: activations; the axes from ``axis`` (1) on are flattened to ``dim_in`` elements.
        blob_out: name of the result; None: a name made from the net's.
        dim_in, dim_out: lengths of input and output vectors.
        weight_init, bias_init: (fill operator, its arguments); Xavier and zeros if None.
        WeightInitializer, BiasInitializer: initializer classes, see ``netbuilder.model.initializers``.
        enable_tensor_core: request the engine TENSORCORE.
        float16_compute: accumulate in float16, if the engine supports it.
        kwargs: arguments of FC: ``axis``, ``axis_w``, ``engine``, ...

    Raises:
        ArgumentError: a length is not a positive integer; an argument is unknown.
    """
    out = blob_out or model.net.NextName()
    check_extents("fc", out, dim_in=dim_in, dim_out=dim_out)
    weight_fill = update_initializer(WeightInitializer, weight_init, ("XavierFill", {}))
    bias_fill = update_initializer(BiasInitializer, bias_init, ("ConstantFill", {}))
    weight = model.create_param(out + "_w", [dim_out, dim_in], weight_fill, ParameterTags.WEIGHT)
    bias = model.create_param(out + "_b", [dim_out], bias_fill, ParameterTags.BIAS)
    if enable_tensor_core:
        kwargs["engine"] = "TENSORCORE"
    if float16_compute:
        kwargs["float16_compute"] = True
    result: BlobReference = model.net.FC([blob_in, weight, bias], out, **kwargs)
    return result
