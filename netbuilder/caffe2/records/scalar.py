"""Scalar: a field of one blob, with its data type."""

from __future__ import annotations

import logging
from io import StringIO
from typing import Any

import numpy as np

from netbuilder.caffe2.records.field import Field, Metadata, is_blob
from netbuilder.proto import NetError

__all__ = ["Scalar", "as_field"]

_LOG = logging.getLogger(__name__)
_VOID = np.dtype(np.void)


class Scalar(Field):
    """A field with one blob, or one array.

    Args:
        dtype: NumPy data type, with an inner shape as in ``(np.float32, (3,))``; None: unknown.
        blob: a reference, an array, or a value to convert to an array of ``dtype``.
        metadata: describes the values.

    Raises:
        NetError: without ``dtype``, ``blob`` is neither a reference nor an array; the array's shape or the metadata
            does not match ``dtype``.
        TypeError: ``dtype`` is not a data type, or is ``np.void`` (unknown) with an inner shape.

    >>> Scalar((np.float32, (3,))).dtype.shape
    (3,)
    """

    dtype: Any = _VOID

    def __init__(self, dtype: Any = None, blob: Any = None, metadata: Metadata | None = None) -> None:
        self._metadata: Metadata | None = None
        self.set(dtype, blob, metadata, unsafe=True)
        super().__init__([])

    def field_names(self) -> list[str]:
        return [""]

    def field_type(self) -> Any:
        """Return the type."""
        return self.dtype

    def all_scalars(self) -> list[Scalar]:
        return [self]

    def has_blobs(self) -> bool:
        return self._blob is not None

    def slice(self) -> slice:
        return slice(self.id(), self.id() + 1)

    def clone(self, keep_blobs: bool = True) -> Scalar:
        return Scalar(self._original_dtype, self._blob if keep_blobs else None, self._metadata)

    def get(self) -> Any:
        """Return the blob or array.

        Raises:
            ValueError: the field has no blob.
        """
        if self._blob is None:
            raise NetError("the field has no blob; create a record with blobs by NewRecord or from_blob_list")
        return self._blob

    def __call__(self) -> Any:
        """Return the blob or array."""
        return self.get()

    @property
    def metadata(self) -> Metadata | None:
        """The description of the values."""
        return self._metadata

    def set_metadata(self, value: Metadata | None) -> None:
        """Set the description of the values."""
        if value is not None and not isinstance(value, Metadata):
            raise TypeError(f"Scalar: metadata must be a schema.Metadata, got {value!r}")
        self._metadata = value
        self._validate_metadata()

    def _validate_metadata(self) -> None:
        limit = None if self._metadata is None else self._metadata.categorical_limit
        if limit is None:
            return
        if limit < 0:
            raise NetError(f"Scalar: categorical_limit must not be negative, got {limit}")
        if self.dtype != _VOID and not np.issubdtype(self.dtype.base, np.integer):
            raise NetError(f"Scalar: categorical_limit is only for fields of integers, but this field is {self.dtype}")

    def set_value(self, blob: Any, throw_on_type_mismatch: bool = False, unsafe: bool = False) -> None:
        """Set the blob or array and keep the rest.

        Args:
            blob: the reference or array.
            throw_on_type_mismatch: raise an error for arrays of another data type, instead of converting them.
            unsafe: do not warn that the field may be part of a record.

        Raises:
            TypeError: the array has another data type and ``throw_on_type_mismatch`` is set.
        """
        if throw_on_type_mismatch and isinstance(blob, np.ndarray) and self._original_dtype is not None:
            if blob.dtype.base != self.dtype.base:
                raise TypeError(f"Scalar: the array must be {self.dtype.base}, as the field, got {blob.dtype.base}")
        self.set(self._original_dtype, blob, self._metadata, unsafe)

    def set(self, dtype: Any = None, blob: Any = None, metadata: Metadata | None = None, unsafe: bool = False) -> None:
        """Set all properties; see the constructor for the arguments, ``set_value`` for ``unsafe``."""
        if not unsafe:
            _LOG.warning("Scalar.set changes every record that shares this field; for a new field pass unsafe=True")
        if metadata is not None and not isinstance(metadata, Metadata):
            raise TypeError(f"Scalar: metadata must be a schema.Metadata, got {metadata!r}")
        self._original_dtype = dtype
        self.dtype = _element_type(dtype)
        if dtype is not None and self.dtype.base == _VOID:
            self._original_dtype = None
        self._blob = self._checked(blob)
        if metadata is not None:
            self._metadata = metadata
        self._validate_metadata()

    def _checked(self, blob: Any) -> Any:
        """Return ``blob`` as a reference, or as an array of the field's data type."""
        if blob is None or is_blob(blob):
            return blob
        if self._original_dtype is None:
            if not isinstance(blob, np.ndarray):
                raise NetError(f"Scalar: without dtype the blob must be a BlobReference or an array, got {blob!r}")
            return blob
        if not isinstance(blob, np.ndarray):
            made = np.atleast_1d(np.array(blob, dtype=self.dtype.base))
            return made if made.size else made.reshape((0, *self.dtype.shape))  # [] has no rows
        inner = self.dtype.shape
        if inner and blob.shape[1:] != inner:
            raise NetError(f"Scalar: rows of the array must have shape {inner}, as the field, got {blob.shape[1:]}")
        return blob if self.dtype.base.kind == "U" and blob.dtype.kind == "O" else blob.astype(self.dtype.base)

    def set_type(self, dtype: Any) -> None:
        """Set the type."""
        self._original_dtype = dtype
        self.dtype = _element_type(dtype)
        self._validate_metadata()

    def _pprint_impl(self, indent: int, str_buffer: StringIO) -> None:
        str_buffer.write(f"{'  ' * indent}Scalar({self.dtype!r}, {self._blob!r}, {self._metadata!r})\n")

    def id(self) -> int:
        """Return the index of the field among the scalars of the whole record."""
        return self._child_base_id()


def _element_type(dtype: Any) -> Any:
    """Return a NumPy data type; ``np.void`` for None."""
    if isinstance(dtype, tuple) and dtype and dtype[0] is not None and np.dtype(dtype[0]) == _VOID:
        raise TypeError(
            f"Scalar: a field of unknown type (np.void) cannot have an inner shape, got {dtype!r}; give its data type"
        )
    return _VOID if dtype is None else np.dtype(dtype)


def as_field(value: Any, keep_blobs: bool = True) -> Field:
    """Return a copy of a field, a field of unknown type for None, or a scalar of a data type or blob."""
    if value is None:
        return Scalar()
    if isinstance(value, Field):
        copied: Field = value.clone(keep_blobs=keep_blobs)
        return copied
    if isinstance(value, (type, np.dtype)):
        return Scalar(dtype=value)
    return Scalar(blob=value)
