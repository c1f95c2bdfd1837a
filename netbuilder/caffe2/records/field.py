"""The base of all fields of records."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from netbuilder.graph.blob import BlobReference

if TYPE_CHECKING:
    from netbuilder.caffe2.records.scalar import Scalar

__all__ = ["FIELD_SEPARATOR", "FeatureSpec", "Field", "Metadata", "joined"]

FIELD_SEPARATOR = ":"
"""The separator between the name of a field and that of a nested field."""


def joined(prefix: str, suffix: str) -> str:
    """Return the name of a nested field.

    >>> joined("a", "b"), joined("a", "")
    ('a:b', 'a')
    """
    return f"{prefix}{FIELD_SEPARATOR}{suffix}" if prefix and suffix else prefix or suffix


class FeatureSpec(NamedTuple):
    """Describes the features of a field; stored only."""

    feature_type: Any = None
    feature_names: Any = None
    feature_ids: Any = None
    feature_is_request_only: Any = None
    desired_hash_size: Any = None
    feature_to_index: Any = None


class Metadata(NamedTuple):
    """Describes a field's values.

    Args:
        categorical_limit: integers are in [0, limit).
        expected_value: expected mean.
        feature_specs: see ``FeatureSpec``.
    """

    categorical_limit: int | None = None
    expected_value: Any = None
    feature_specs: Any = None


class Field:
    """A field of a record: a scalar, or a structure or list of fields.

    Its scalars are ordered; lists of names, types and blobs have the same order. Do not change a field once it is part
    of another one.

    Args:
        children: the nested fields, in order.
    """

    def __init__(self, children: Iterable[Field]) -> None:
        object.__setattr__(self, "_parent", (None, 0))
        offset, offsets = 0, []
        for index, child in enumerate(children):
            offsets.append(offset)
            offset += len(child.all_scalars())
            child._set_parent(self, index)
        offsets.append(offset)
        object.__setattr__(self, "_field_offsets", offsets)

    _parent: tuple[Field | None, int]
    _field_offsets: list[int]

    def _set_parent(self, parent: Field, relative_id: int) -> None:
        object.__setattr__(self, "_parent", (parent, relative_id))

    def _child_base_id(self, child_index: int | None = None) -> int:
        """Return the index of a nested field's first scalar in the whole record."""
        parent, position = self._parent
        own = 0 if parent is None else parent._child_base_id(position)
        return own if child_index is None else own + self._field_offsets[child_index]

    def slice(self) -> slice:
        """Return the slice of the whole record's scalars that this field contains."""
        base = self._child_base_id()
        return slice(base, base + self._field_offsets[-1])

    def field_names(self) -> list[str]:
        """Return the names of the scalars, with ":" between the names of nested fields."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must define field_names")

    def field_types(self) -> list[Any]:
        """Return the scalars' types."""
        return [scalar.dtype for scalar in self.all_scalars()]

    def field_metadata(self) -> list[Metadata | None]:
        """Return the scalars' metadata."""
        return [scalar.metadata for scalar in self.all_scalars()]

    def field_blobs(self) -> list[Any]:
        """Return the scalars' blobs or arrays.

        Raises:
            ValueError: a scalar has no blob.
        """
        return [scalar.get() for scalar in self.all_scalars()]

    def all_scalars(self) -> list[Scalar]:
        """Return the scalars in it."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must define all_scalars")

    def has_blobs(self) -> bool:
        """Whether every scalar has a blob."""
        return all(scalar.has_blobs() for scalar in self.all_scalars())

    def clone(self, keep_blobs: bool = True) -> Any:
        """Return a copy, with the same blobs or without blobs."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must define clone")

    def clone_schema(self) -> Any:
        """Return a copy without blobs."""
        return self.clone(keep_blobs=False)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Field)
            and self.__class__ is other.__class__
            and self.field_names() == other.field_names()
            and self.field_types() == other.field_types()
            and self.field_metadata() == other.field_metadata()
        )

    def _pprint_impl(self, indent: int, str_buffer: StringIO) -> None:
        raise NotImplementedError(f"{type(self).__name__}: subclasses must define _pprint_impl")

    def __repr__(self) -> str:
        buffer = StringIO()
        self._pprint_impl(0, buffer)
        return buffer.getvalue()


def is_blob(value: Any) -> bool:
    """Whether a value is a reference to a blob."""
    return isinstance(value, BlobReference)
