"""Creates records of blobs, constants and data types, and empty records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from netbuilder.caffe2.records.data_types import data_type_for_dtype
from netbuilder.caffe2.records.field import Field, Metadata
from netbuilder.caffe2.records.scalar import Scalar, as_field
from netbuilder.caffe2.records.struct import Struct, Tuple
from netbuilder.proto import NetError

if TYPE_CHECKING:
    from netbuilder.graph.net import Net

__all__ = [
    "ConstRecord",
    "InitEmptyRecord",
    "NewRecord",
    "as_record",
    "attach_metadata_to_scalars",
    "from_blob_list",
    "from_dtype",
]


def from_blob_list(schema: Field, values: Sequence[Any], throw_on_type_mismatch: bool = False) -> Any:
    """Return a record with the fields of ``schema`` and new blobs or arrays.

    Args:
        values: one for each scalar, in order.
        throw_on_type_mismatch: raise an error for arrays of another data type than the field's.

    Raises:
        NetError: the number of values differs from that of scalars.
    """
    if not isinstance(schema, Field):
        raise TypeError(f"from_blob_list: schema must be a record, got {schema!r}")
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"from_blob_list: values must be a list, got {values!r}")
    record = schema.clone_schema()
    scalars = record.all_scalars()
    if len(scalars) != len(values):
        raise NetError(
            f"from_blob_list: the record has {len(scalars)} scalars and needs as many values, got {len(values)}"
        )
    for scalar, value in zip(scalars, values):
        scalar.set_value(value, throw_on_type_mismatch, unsafe=True)
    return record


def as_record(value: Any) -> Any:
    """Convert a value to a field: a dict or a list of (name, value) to a ``Struct``, another list to a ``Tuple``.

    A field is returned unchanged; anything else becomes a ``Scalar``.
    """
    if isinstance(value, Field):
        return value
    if isinstance(value, Mapping):
        return Struct(*((name, as_record(inner)) for name, inner in value.items()))
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(v, tuple) and len(v) == 2 and type(v[0]) is str for v in value):
            return Struct(*((name, as_record(inner)) for name, inner in value))
        return Tuple(*map(as_record, value))
    return as_field(value)


def NewRecord(net: Net, schema: Field) -> Any:
    """Return a record with the fields of ``schema`` and new blobs of ``net``, named after the fields."""
    if isinstance(schema, Scalar):
        return from_blob_list(schema, [net.NextScopedBlob("unnamed_scalar")])
    return from_blob_list(schema, [net.NextScopedBlob(name) for name in schema.field_names()])


def ConstRecord(net: Net, array_record: Field) -> Any:
    """Return a record whose blobs ``net`` fills with the arrays in ``array_record``."""
    blobs = NewRecord(net, array_record)
    for blob, array in zip(blobs.field_blobs(), array_record.field_blobs()):
        net.Const(array, blob_out=blob)
    return blobs


def InitEmptyRecord(net: Net, schema_or_record: Field, enforce_types: bool = False) -> Any:
    """Return a record whose blobs ``net`` fills with zero rows of the fields' data types and inner shapes.

    Args:
        schema_or_record: if it has no blobs, new ones are created.
        enforce_types: raise an error for fields of unknown type, instead of using float32.

    Raises:
        TypeError: a field's type is unknown.
    """
    record = schema_or_record if schema_or_record.has_blobs() else NewRecord(net, schema_or_record)
    for scalar in record.all_scalars():
        options: dict[str, Any] = {}
        try:
            options["dtype"] = data_type_for_dtype(scalar.dtype)
        except TypeError:
            if enforce_types:
                raise
        net.ConstantFill([], scalar.get(), shape=[0, *scalar.dtype.shape], **options)
    return record


def attach_metadata_to_scalars(field: Field, metadata: Metadata) -> None:
    """Set the metadata of all scalars of a record."""
    for scalar in field.all_scalars():
        scalar.set_metadata(metadata)


def from_dtype(dtype: Any, _outer_shape: tuple[int, ...] = ()) -> Any:
    """Return a record for a NumPy data type: a ``Struct`` if it has fields, otherwise a ``Scalar``.

    >>> from_dtype(np.dtype([("a", np.int32), ("b", np.float32, (2,))])).field_names()
    ['a', 'b']
    """
    dtype = np.dtype(dtype)
    shape = (*_outer_shape, *dtype.shape)
    if dtype.base.names is None:
        return Scalar((dtype.base, shape) if shape else dtype.base)
    fields = dtype.base.fields or {}
    return Struct(*((name, from_dtype(fields[name][0], shape)) for name in dtype.base.names))
