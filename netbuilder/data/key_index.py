"""Index: numbers for keys in the order of their arrival; how it is stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.data.tensor_records import proto_to_tensor, tensor_to_proto
from netbuilder.proto import BlobProto, OperatorError, ParseError

__all__ = ["MAX_ELEMENTS", "Index", "read_index", "write_index"]

MAX_ELEMENTS = 2**31 - 1
_KEY_TYPES = (np.dtype(np.int32), np.dtype(np.int64), np.dtype(object))


class Index:
    """Numbers for keys, from 1 in the order of arrival; 0 stands for an unknown key.

    Args:
        dtype: of the keys: int32, int64, or object for strings.
        max_elements: maximum count of numbers, 0 included.
        frozen: whether unknown keys are no longer added.
    """

    def __init__(self, dtype: np.dtype[Any], max_elements: int = MAX_ELEMENTS, *, frozen: bool = False) -> None:
        self.key_type = dtype
        self.max_elements = max_elements
        self.frozen = frozen
        self._lock = new_lock()
        self._keys = self._sorted = np.zeros(0, dtype)
        self._numbers = np.zeros(0, np.int64)

    @property
    def keys(self) -> Any:
        """The keys in the order of their numbers, from number 1 on."""
        return self._keys.copy()

    def __len__(self) -> int:
        return self._keys.size + 1

    def get(self, keys: Any) -> Any:
        """Return the number of each key, int64; unless the index is frozen, unknown keys are added.

        Raises:
            OperatorError: there would be more than ``max_elements``.
        """
        flat = keys.reshape(-1)
        with self._lock:
            if not self.frozen and flat.size:
                self._append(flat[self._look_up(flat) == 0])
            return self._look_up(flat).reshape(keys.shape)

    def load(self, keys: Any) -> None:
        """Replace all keys by these, numbered from 1.

        Raises:
            OperatorError: a key occurs twice, or there are more than ``max_elements`` allows.
        """
        with self._lock:
            if np.unique(keys).size < keys.size:
                raise OperatorError("the keys that an index loads must be distinct, but some occur twice")
            self._check_capacity(keys.size)
            self._keys = keys.copy()
            self._sort()

    def _look_up(self, keys: Any) -> Any:
        numbers = np.zeros(keys.size, np.int64)
        if self._sorted.size:
            at = np.searchsorted(self._sorted, keys).clip(0, self._sorted.size - 1)
            known = self._sorted[at] == keys
            numbers[known] = self._numbers[at[known]]
        return numbers

    def _append(self, keys: Any) -> None:
        if keys.size:
            new, first = np.unique(keys, return_index=True)
            self._check_capacity(self._keys.size + new.size)
            self._keys = np.concatenate([self._keys, new[np.argsort(first)]])
            self._sort()

    def _check_capacity(self, count: int) -> None:
        if count + 1 > self.max_elements:
            raise OperatorError(
                f"an index has capacity for {self.max_elements} elements, number 0 included, but needs {count + 1}; "
                "raise max_elements"
            )

    def _sort(self) -> None:
        order = np.argsort(self._keys, kind="stable")
        self._sorted, self._numbers = self._keys[order], order + 1


def write_index(blob: BlobProto, index: Index) -> None:
    """Write an index into a record."""
    keys = index.keys
    blob.tensor.CopyFrom(tensor_to_proto(keys, blob.name, segment=(0, keys.size)))
    blob.content = f"{index.max_elements} {int(index.frozen)}".encode()


def read_index(blob: BlobProto) -> Index:
    """Return the index in a record."""
    try:
        max_elements, frozen = (int(word) for word in blob.content.split())
    except ValueError:
        raise ParseError(f"an index needs its size and whether it is frozen, got {blob.content!r}") from None
    keys = proto_to_tensor(blob.tensor)
    if keys.dtype not in _KEY_TYPES:
        raise ParseError(f"an index has keys of int32, int64 or strings, got {keys.dtype}")
    index = Index(keys.dtype, max_elements)
    index.load(keys.reshape(-1))
    index.frozen = bool(frozen)
    return index
