"""Compares the fields of records."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.records.build import as_record
from netbuilder.caffe2.records.field import Field
from netbuilder.proto import NetError

__all__ = ["equal_schemas", "is_schema_subset", "schema_check"]


def equal_schemas(
    schema: Field,
    original_schema: Field,
    check_field_names: bool = True,
    check_field_types: bool = True,
    check_field_metas: bool = False,
) -> bool:
    """Whether two records have the same names, types and metadata of scalars; the flags choose what to compare.

    Raises:
        TypeError: an argument is not a field.
    """
    for field in (schema, original_schema):
        if not isinstance(field, Field):
            raise TypeError(f"equal_schemas: both arguments must be records, got {field!r}")
    return (
        (not check_field_names or schema.field_names() == original_schema.field_names())
        and (not check_field_types or schema.field_types() == original_schema.field_types())
        and (not check_field_metas or schema.field_metadata() == original_schema.field_metadata())
    )


def is_schema_subset(schema: Field, original_schema: Field) -> bool:
    """Whether the other record has all field names of the first."""
    return set(schema.field_names()) <= set(original_schema.field_names())


def schema_check(schema: Any, previous: Any = None) -> Field:
    """Return ``as_record(schema)``.

    Raises:
        NetError: it has other fields than ``previous``.
    """
    record = as_record(schema)
    if previous is not None and not equal_schemas(record, as_record(previous)):
        raise NetError(f"schema_check: the record must have the same fields as before, got {record.field_names()}")
    return record
