"""Feeds records to a workspace and fetches them."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.caffe2.records import Field, Scalar, from_blob_list
from netbuilder.proto import NetError
from netbuilder.runtime.execute import default

__all__ = ["FeedRecord", "FetchRecord"]


def _fields(blob_record: Any) -> list[Scalar]:
    if not isinstance(blob_record, Field):
        raise TypeError(f"the record must be a schema.Struct, List or Scalar, got {blob_record!r}")
    return blob_record.all_scalars()


def FeedRecord(blob_record: Field, arrays: Any, ws: Any = None) -> None:
    """Feed the blobs of a record.

    Args:
        blob_record: a record with blobs.
        arrays: a record with arrays of the same fields, or a list of one value for each scalar.
        ws: the workspace; None: the current one.

    Raises:
        NetError: the number of arrays differs from that of scalars.
    """
    scalars = _fields(blob_record)
    values = arrays.field_blobs() if isinstance(arrays, Field) else list(arrays)
    if len(values) != len(scalars):
        raise NetError(f"FeedRecord: the record has {len(scalars)} scalars and needs as many arrays, got {len(values)}")
    workspace = default.workspace() if ws is None else ws
    for scalar, value in zip(scalars, values):
        if not isinstance(value, np.ndarray):
            known = scalar.dtype.kind != "V" or scalar.dtype.shape
            value = np.array(value, dtype=scalar.dtype.base if known else None)
        _feed(workspace, scalar.get(), value)


def _feed(workspace: Any, blob: Any, value: Any) -> None:
    if hasattr(workspace, "create_blob"):
        workspace.create_blob(str(blob)).feed(value)
    else:
        workspace.feed(str(blob), value)


def FetchRecord(blob_record: Field, ws: Any = None, throw_on_type_mismatch: bool = False) -> Any:
    """Return a record with the values of the blobs of ``blob_record``.

    Args:
        blob_record: a record with blobs.
        ws: the workspace; None: the current one.
        throw_on_type_mismatch: raise an error for values of another data type than the field's, instead of converting.
    """
    workspace = default.workspace() if ws is None else ws
    values = [_as_text(scalar, workspace.fetch(str(scalar.get()))) for scalar in _fields(blob_record)]
    return from_blob_list(blob_record, values, throw_on_type_mismatch)


def _as_text(scalar: Scalar, value: Any) -> Any:
    """Return strings instead of bytes if the field holds strings."""
    if scalar.dtype.kind != "U" or not isinstance(value, np.ndarray) or value.dtype.kind != "O":
        return value
    texts = [item.decode() if isinstance(item, bytes) else item for item in value.reshape(-1)]
    return np.array(texts, dtype=object).reshape(value.shape)
