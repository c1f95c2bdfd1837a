"""Restores a record's structure from the names of its scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.caffe2.records.field import FIELD_SEPARATOR, Field
from netbuilder.caffe2.records.lists import List, ListWithEvicted
from netbuilder.caffe2.records.scalar import Scalar
from netbuilder.caffe2.records.struct import Struct
from netbuilder.proto import NetError

__all__ = ["from_column_list"]

_Tree = dict[str, Any]
_LISTS = ({"lengths", "values"}, {"lengths", "values", "_evicted_values"})


def from_column_list(
    col_names: Sequence[str],
    col_types: Sequence[Any] | None = None,
    col_blobs: Sequence[Any] | None = None,
    col_metadata: Sequence[Any] | None = None,
) -> Struct:
    """Return a record from names as of ``field_names``; "x:lengths" and "x:values" make a list.

    Args:
        col_names: names of scalars.
        col_types, col_blobs, col_metadata: one for each name, or None.

    Raises:
        NetError: an argument has another length than the names, or a name is both a structure and a scalar.

    >>> from_column_list(["a", "b:lengths", "b:values"]).field_names()
    ['a', 'b:lengths', 'b:values']
    """
    columns = []
    for what, given in (("types", col_types), ("blobs", col_blobs), ("metadata", col_metadata)):
        if given is not None and len(given) != len(col_names):
            raise NetError(f"from_column_list: there are {len(col_names)} names, but {len(given)} {what}")
        columns.append(given if given is not None else [None] * len(col_names))
    root: _Tree = {}
    for name, dtype, blob, metadata in zip(col_names, *columns):
        *outer, last = name.split(FIELD_SEPARATOR)
        node = root
        for part in outer:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise NetError(f"from_column_list: {name!r} is inside a column that is a scalar")
        if last in node:
            raise NetError(f"from_column_list: the column {name!r} occurs twice")
        node[last] = Scalar(dtype=dtype, blob=blob, metadata=metadata)
    return Struct(*((name, _field(node)) for name, node in root.items()))


def _field(node: _Tree | Scalar) -> Field:
    if isinstance(node, Scalar):
        return node
    fields = {name: _field(inner) for name, inner in node.items()}
    if set(fields) in _LISTS and isinstance(fields["lengths"], Scalar):
        if "_evicted_values" in fields:
            return ListWithEvicted(fields["values"], fields["lengths"], fields["_evicted_values"])
        return List(fields["values"], fields["lengths"])
    return Struct(*fields.items())
