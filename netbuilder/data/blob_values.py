"""Values of blobs: tensors, converted from anything that NumPy takes as an array, and objects that operators share."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.object_records import kind_of
from netbuilder.proto import NetError

__all__ = ["BlobObject", "as_tensor", "is_blob_object", "is_numeric"]


class BlobObject:
    """Base class of objects in blobs (queues, readers, scopes); those of a registered ``ObjectKind`` do not need it."""

    __slots__ = ()


def is_blob_object(value: Any) -> bool:
    """Whether an object is one that operators keep in blobs."""
    return isinstance(value, BlobObject) or kind_of(value) is not None


def is_numeric(value: Any) -> bool:
    """Whether a value is an array of NumPy's own class with numbers, which ``as_tensor`` returns unchanged."""
    return type(value) is np.ndarray and value.dtype.kind in "biuf"


def as_tensor(value: Any, what: str) -> np.ndarray[Any, Any]:
    """Return a value as an array; an array is returned unchanged.

    Args:
        value: an array, also of another library (by ``__array__``, a buffer, or DLPack), a number, a string or lists.
        what: what to call it in errors.

    Raises:
        NetError: it is none of these, on a device that NumPy cannot read, or of a type that blobs cannot hold; or it
            has masked elements, for which blobs have no place.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise NetError(
            f"{what}: the array has {np.ma.count_masked(value)} masked elements, and a blob has no mask; replace them "
            "with .filled(value), or feed the mask as a blob of its own"
        )
    array = value if isinstance(value, np.ndarray) else _read(value, what)
    if array.dtype.kind not in "biufSUO":
        raise NetError(f"{what}: arrays of dtype {array.dtype} cannot be fed; convert it to a real type")
    if array.dtype.hasobject:
        for item in array.flat:
            if not isinstance(item, (str, bytes)) and not is_blob_object(item):
                raise NetError(_no_array(value, item, what))
    return array


def _read(value: Any, what: str) -> np.ndarray[Any, Any]:
    kind = type(value)  # the class, not the object: messages and modules may answer any name by __getattr__
    try:
        if not hasattr(kind, "__dlpack__") or hasattr(kind, "__array__") or hasattr(kind, "__array_interface__"):
            return np.asarray(value)
        array: np.ndarray[Any, Any] = np.from_dlpack(value)
        return array
    except Exception as error:
        text = f"{value!r}" if isinstance(value, (list, tuple)) else f"a value of type {_name(value)} as an array"
        made = "make an array of" if isinstance(value, (list, tuple)) else "read"
        raise NetError(f"{what}: cannot {made} {text}: {error}") from error


def _no_array(value: Any, item: Any, what: str) -> str:
    if isinstance(value, dict):
        return f"{what}: a dict is not an array; feed each of its values to a blob of its own"
    if item is value or not isinstance(value, (np.ndarray, list, tuple)):
        return (
            f"{what}: a value of type {_name(value)} cannot be converted to an array of numbers or strings; "
            "blobs hold arrays, numbers, strings, lists of these, and objects that operators share, such as queues "
            "(the function of a Python operator may use any other object)"
        )
    return f"{what}: an array of strings may hold only str and bytes, got an item of type {_name(item)}"


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
