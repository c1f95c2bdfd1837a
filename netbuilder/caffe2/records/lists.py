"""Lists and maps: fields with a variable number of values per row."""

from __future__ import annotations

from io import StringIO
from typing import Any

import numpy as np

from netbuilder.caffe2.records.field import Field, joined
from netbuilder.caffe2.records.scalar import Scalar, as_field
from netbuilder.caffe2.records.struct import Struct

__all__ = ["List", "ListWithEvicted", "Map", "MapWithEvicted"]


class List(Field):
    """A field with several values per row: ``values`` has those of all rows, ``lengths`` their number in each row.

    Args:
        values: a field, type or blob.
        lengths_blob: the blob of the lengths, int32, or a Scalar.

    >>> List(np.float32).field_names()
    ['lengths', 'values']
    """

    lengths: Any = ()  # each object has its own

    def __init__(self, values: Any, lengths_blob: Any = None) -> None:
        self.lengths = _lengths(lengths_blob)
        self._items = as_field(values)
        super().__init__([self.lengths, self._items])

    def _parts(self) -> list[tuple[str, Field]]:
        return [("lengths", self.lengths), ("values", self._items)]

    def field_names(self) -> list[str]:
        return [joined(part, name) for part, field in self._parts() for name in field.field_names()]

    def all_scalars(self) -> list[Scalar]:
        return [scalar for _, field in self._parts() for scalar in field.all_scalars()]

    def clone(self, keep_blobs: bool = True) -> List:
        return type(self)(self._items.clone(keep_blobs), self.lengths.clone(keep_blobs))

    def __getattr__(self, item: str) -> Any:
        """Return a field of the values, such as ``keys`` of a map; ``items`` and ``value`` are all values."""
        if item.startswith("_") or item == "lengths":
            raise AttributeError(item)
        if item in ("items", "value") and not (isinstance(self._items, Struct) and item in self._items.fields):
            return self._items
        return getattr(self._items, item)

    def __getitem__(self, item: str) -> Any:
        """Return a nested field by its full or partial name, as in ``field_names``."""
        first, _, rest = item.partition(":")
        field: Any
        for part, field in self._parts():
            if first == part:
                return field[rest] if rest else field
        raise KeyError(f"a list has the fields {[part for part, _ in self._parts()]}, not {item!r}")

    def _pprint_impl(self, indent: int, str_buffer: StringIO) -> None:
        shown = {"lengths": self.lengths, "_items": self._items}
        write_parts(type(self).__name__, [*shown.items(), *_evicted(self)], indent, str_buffer)


class ListWithEvicted(List):
    """A list that also has the values evicted from it.

    Args:
        values, lengths_blob: see ``List``.
        evicted_values: the blob of the evicted values, int64, or a Scalar.
    """

    def __init__(self, values: Any, lengths_blob: Any = None, evicted_values: Any = None) -> None:
        given = isinstance(evicted_values, Field)
        self._evicted_values = as_field(evicted_values) if given else Scalar(np.int64, evicted_values)
        super().__init__(values, lengths_blob)
        Field.__init__(self, [self.lengths, self._items, self._evicted_values])

    def _parts(self) -> list[tuple[str, Field]]:
        return [*super()._parts(), ("_evicted_values", self._evicted_values)]

    def clone(self, keep_blobs: bool = True) -> ListWithEvicted:
        parts = [field.clone(keep_blobs) for _, field in self._parts()]
        return type(self)(parts[1], parts[0], parts[2])


def _evicted(field: List) -> list[tuple[str, Field]]:
    return [("_evicted_values", field._evicted_values)] if isinstance(field, ListWithEvicted) else []


def _lengths(blob: Any) -> Any:
    return blob.clone() if isinstance(blob, Field) else Scalar(np.int32, blob)


def write_parts(kind: str, parts: list[tuple[str, Field]], indent: int, buffer: StringIO) -> None:
    """Write a field with its nested fields, each on separate lines."""
    space = "  " * indent
    buffer.write(f"{space}{kind}(\n")
    for name, field in parts:
        buffer.write(f"{space}  {name}=\n")
        field._pprint_impl(indent + 2, buffer)
    buffer.write(f"{space})\n")


def Map(keys: Any, values: Any, keys_name: str = "keys", values_name: str = "values", lengths_blob: Any = None) -> List:
    """Return a list of structures of key and value.

    Args:
        keys, values: fields, types or blobs.
        keys_name, values_name: their names.
        lengths_blob: number of pairs of each row.
    """
    return List(Struct((keys_name, keys), (values_name, values)), lengths_blob)


def MapWithEvicted(
    keys: Any,
    values: Any,
    keys_name: str = "keys",
    values_name: str = "values",
    lengths_blob: Any = None,
    evicted_values: Any = None,
) -> ListWithEvicted:
    """Return a map that also has the values evicted from it; see ``Map`` and ``ListWithEvicted``."""
    return ListWithEvicted(Struct((keys_name, keys), (values_name, values)), lengths_blob, evicted_values)
