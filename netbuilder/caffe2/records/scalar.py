"""Scalar: a field that is one blob, with its type."""

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
        dtype: NumPy's type of an element, with an inner shape as in ``(np.float32, (3,))``; None: not known.
        blob: a reference, or an array, or what an array of ``dtype`` is made of.
        metadata: what is known of the values.

    Raises:
        NetError: ``blob`` is none and, without ``dtype``, no array; its shape or the metadata does not fit.
        TypeError: ``dtype`` is not a type, or is ``np.void``, which says that it is not known, with an inner shape.

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
            ValueError: there is none.
        """
        if self._blob is None:
            raise NetError("the field has no blob; NewRecord or from_blob_list give a record blobs")
        return self._blob

    def __call__(self) -> Any:
        """Return the blob or array."""
        return self.get()

    @property
    def metadata(self) -> Metadata | None:
        """What is known of the values."""
        return self._metadata

    def set_metadata(self, value: Metadata | None) -> None:
        """Set what is known of the values."""
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
            raise NetError(f"Scalar: categorical_limit is of fields of whole numbers, this one is of {self.dtype}")

    def set_value(self, blob: Any, throw_on_type_mismatch: bool = False, unsafe: bool = False) -> None:
        """Set the blob or array and keep the rest.

        Args:
            blob: the reference or array.
            throw_on_type_mismatch: refuse arrays of another type, instead of converting them.
            unsafe: without it, a warning says that the field may be part of a record.

        Raises:
            TypeError: the array is of another type, and this is refused.
        """
        if throw_on_type_mismatch and isinstance(blob, np.ndarray) and self._original_dtype is not None:
            if blob.dtype.base != self.dtype.base:
                raise TypeError(f"Scalar: the field is of type {self.dtype.base}, the array of {blob.dtype.base}")
        self.set(self._original_dtype, blob, self._metadata, unsafe)

    def set(self, dtype: Any = None, blob: Any = None, metadata: Metadata | None = None, unsafe: bool = False) -> None:
        """Set everything anew; see the constructor for the arguments, ``set_value`` for ``unsafe``."""
        if not unsafe:
            _LOG.warning("fields are shared by records: Scalar.set is for new ones, which unsafe=True says")
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
        """Return ``blob`` as it is kept: a reference, or an array of the field's type."""
        if blob is None or is_blob(blob):
            return blob
        if self._original_dtype is None:
            if not isinstance(blob, np.ndarray):
                raise NetError(f"Scalar: without a type, its value must be a BlobReference or an array, got {blob!r}")
            return blob
        if not isinstance(blob, np.ndarray):
            made = np.atleast_1d(np.array(blob, dtype=self.dtype.base))
            return made if made.size else made.reshape((0, *self.dtype.shape))  # no rows, as a list []
        inner = self.dtype.shape
        if inner and blob.shape[1:] != inner:
            raise NetError(f"Scalar: a row of the field has shape {inner}, one of the array {blob.shape[1:]}")
        return blob if self.dtype.base.kind == "U" and blob.dtype.kind == "O" else blob.astype(self.dtype.base)

    def set_type(self, dtype: Any) -> None:
        """Set the type."""
        self._original_dtype = dtype
        self.dtype = _element_type(dtype)
        self._validate_metadata()

    def _pprint_impl(self, indent: int, str_buffer: StringIO) -> None:
        str_buffer.write(f"{'  ' * indent}Scalar({self.dtype!r}, {self._blob!r}, {self._metadata!r})\n")

    def id(self) -> int:
        """Return the number of the field among the scalars of the whole record."""
        return self._child_base_id()


def _element_type(dtype: Any) -> Any:
    """Return NumPy's type for what was given as one; ``np.void`` for None."""
    if isinstance(dtype, tuple) and dtype and dtype[0] is not None and np.dtype(dtype[0]) == _VOID:
        raise TypeError(f"Scalar: a field of unknown type (np.void) has no inner shape, got {dtype!r}; give its type")
    return _VOID if dtype is None else np.dtype(dtype)


def as_field(value: Any, keep_blobs: bool = True) -> Field:
    """Return a field as a copy; None as a field of unknown type, anything else as a scalar of this type or blob."""
    if value is None:
        return Scalar()
    if isinstance(value, Field):
        copied: Field = value.clone(keep_blobs=keep_blobs)
        return copied
    if isinstance(value, (type, np.dtype)):
        return Scalar(dtype=value)
    return Scalar(blob=value)
