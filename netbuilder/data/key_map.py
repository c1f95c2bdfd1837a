"""KeyMap: a map from integers to integers; how it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from netbuilder.data.tensor_records import proto_to_tensor, tensor_to_proto
from netbuilder.proto import ArgumentError, BlobProto, ParseError, TensorProtos

__all__ = ["KEY_MAPS", "KeyMap", "empty_map", "filled_map", "map_reader", "write_map"]

_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


class KeyMap(dict[int, int]):
    """A dict of integers with an element type, int32 or int64, of its keys and of its values; see ``empty_map``."""

    key_type: ClassVar[np.dtype[Any]]
    value_type: ClassVar[np.dtype[Any]]

    @property
    def key_array(self) -> Any:
        """The keys, of shape (number of entries,)."""
        return np.fromiter(self.keys(), self.key_type, len(self))

    @property
    def value_array(self) -> Any:
        """The values, in the order of the keys."""
        return np.fromiter(self.values(), self.value_type, len(self))


KEY_MAPS: dict[tuple[np.dtype[Any], np.dtype[Any]], type[KeyMap]] = {
    (keys, values): type(f"KeyMap_{keys}_{values}", (KeyMap,), {"key_type": keys, "value_type": values})
    for keys in _INTEGERS
    for values in _INTEGERS
}


def empty_map(key_type: Any, value_type: Any) -> KeyMap:
    """Return a map without entries.

    Raises:
        ArgumentError: a type is neither int32 nor int64.

    >>> found = empty_map(np.int64, np.int32)
    >>> found[7] = 1
    >>> found.key_array.dtype, found.value_array.tolist()
    (dtype('int64'), [1])
    """
    kinds = np.dtype(key_type), np.dtype(value_type)
    if kinds not in KEY_MAPS:
        raise ArgumentError(f"a map has keys and values of int32 or int64, got {kinds[0]} and {kinds[1]}")
    return KEY_MAPS[kinds]()


def filled_map(keys: Any, values: Any) -> KeyMap:
    """Return the map from ``keys`` to ``values``, two vectors; of repeated keys, the first counts."""
    _, first = np.unique(keys, return_index=True)
    first.sort()
    made = empty_map(keys.dtype, values.dtype)
    made.update(zip(keys[first].tolist(), values[first].tolist()))
    return made


def write_map(blob: BlobProto, entries: KeyMap) -> None:
    """Write a map into a record."""
    both = (entries.key_array, entries.value_array)
    protos = [tensor_to_proto(array, segment=(0, array.size)) for array in both]
    blob.content = TensorProtos(protos=protos).SerializeToString()


def map_reader(cls: type[KeyMap]) -> Callable[[BlobProto], KeyMap]:
    """Return the function that returns the map, of this class, in a record."""

    def read(blob: BlobProto) -> KeyMap:
        message = TensorProtos()
        try:
            message.ParseFromString(blob.content)
        except Exception as error:  # what protobuf raises depends on its version
            raise ParseError(f"a map's record is broken: {error}") from None
        arrays = [proto_to_tensor(proto).reshape(-1) for proto in message.protos]
        expected = [cls.key_type, cls.value_type]
        if [array.dtype for array in arrays] != expected or arrays[0].size != arrays[1].size:
            found = ", ".join(f"{array.size} of {array.dtype}" for array in arrays) or "nothing"
            raise ParseError(
                f"a map's record has as many keys of {expected[0]} as values of {expected[1]}, got {found}"
            )
        return filled_map(*arrays)

    return read
