"""Embeddings: rows of a table are looked up by index, and optionally summed for each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.extents import check_extents
from netbuilder.model.initializers import FillAndArguments, update_initializer
from netbuilder.proto import ArgumentError

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["embedding"]

_POOLED = {"sum": "SparseLengthsSum", "mean": "SparseLengthsMean"}


def embedding(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference | None,
    num_rows: int | None = None,
    dim_out: int | None = None,
    weight_init: FillAndArguments | None = None,
    *,
    table: str | BlobReference | None = None,
    lengths: str | BlobReference | None = None,
    weights: str | BlobReference | None = None,
    pooling: str = "sum",
    **kwargs: Any,
) -> BlobReference:
    """Look up rows of a table ``<blob_out>_w``, (num_rows, dim_out); with ``lengths``, sum the rows of each sample.

    The table's gradient is sparse: see ``docs/sparse.md``.

    Args:
        blob_in: indices of rows, int32 or int64, of any shape; with ``lengths``, the concatenated indices of all
            samples.
        blob_out: name of the result; None: a name made from the net's.
        weight_init: (fill operator, its arguments) of the table; XavierFill if None.
        table: an existing parameter to use, instead of a new one of ``num_rows`` and ``dim_out``.
        lengths: (samples,) int32: number of indices of each sample, 0 or more.
        weights: float32, a factor for each index; requires ``lengths``.
        pooling: "sum" or "mean" of the rows of a sample.
        kwargs: arguments of the operator, such as ``grad_on_weights`` for ``weights``.

    Returns:
        The rows, (*shape of the indices, dim_out); with ``lengths`` (samples, dim_out).

    Raises:
        ArgumentError: ``pooling`` is neither "sum" nor "mean"; ``weights`` are given without ``lengths`` or with
            "mean"; ``num_rows`` and ``dim_out`` are missing.
    """
    out = blob_out or model.net.NextName()
    if pooling not in _POOLED:
        raise ArgumentError(f"embedding {out!s}: pooling must be one of {', '.join(_POOLED)}, got {pooling!r}")
    if weights is not None and (lengths is None or pooling != "sum"):
        raise ArgumentError(f"embedding {out!s}: weights require lengths and pooling='sum'")
    if table is None:
        if num_rows is None or dim_out is None:
            raise ArgumentError(f"embedding {out!s}: give num_rows and dim_out, or an existing table")
        check_extents("embedding", out, num_rows=num_rows, dim_out=dim_out)
        table = model.create_param(
            out + "_w", [num_rows, dim_out], update_initializer(None, weight_init, ("XavierFill", {}))
        )
    if lengths is None:
        inputs, kind = [table, blob_in], "Gather"
        kwargs = {"wrap_indices": False, **kwargs}  # a negative index is a mistake
    elif weights is None:
        inputs, kind = [table, blob_in, lengths], _POOLED[pooling]
    else:
        inputs, kind = [table, weights, blob_in, lengths], "SparseLengthsWeightedSum"
    result: BlobReference = getattr(model.net, kind)(inputs, out, **kwargs)
    return result
