"""Objects in blobs, other than tensors, that can be stored in files: counters, cursors, indexes, maps, mutexes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.data.counter import Counter, read_counter, write_counter
from netbuilder.data.forking import new_lock
from netbuilder.data.key_index import Index, read_index, write_index
from netbuilder.data.key_map import KEY_MAPS, map_reader, write_map
from netbuilder.data.record_tree import TreeCursor
from netbuilder.proto import BlobProto, ParseError, TensorProto
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ObjectKind", "kind_named", "kind_of", "known_kinds"]


@dataclass(frozen=True)
class ObjectKind:
    """How objects of a class are written to a BlobProto, and read from it.

    Args:
        name: type of the record.
        holds: the class.
        write: writes an object into the tensor and content of a record.
        read: returns the object that a record holds.
    """

    name: str
    holds: type
    write: Callable[[BlobProto, Any], None]
    read: Callable[[BlobProto], Any]


def _write_cursor(blob: BlobProto, cursor: TreeCursor) -> None:
    blob.content = b"".join(name.encode() + b" " for name in cursor.names)
    if cursor.place:
        blob.tensor.data_type = TensorProto.INT64
        blob.tensor.dims.append(len(cursor.place))
        blob.tensor.int64_data.extend(cursor.place)


def _read_cursor(blob: BlobProto) -> TreeCursor:
    names = blob.content.decode(errors="replace").split()
    cursor = TreeCursor(names)
    place = np.array(blob.tensor.int64_data, np.int64)
    if place.size and (names and place.size != len(cursor.tree(len(names)).start()) or place.min() < 0):
        raise ParseError(
            f"a cursor over the columns {names} must have one position, 0 or greater, per domain, got {place.tolist()}"
        )
    cursor.place = place.tolist()
    return cursor


_KINDS = {
    kind.name: kind
    for kind in (
        ObjectKind("std::unique_ptr<Counter<int64_t>>", Counter, write_counter, read_counter),
        ObjectKind("std::unique_ptr<TreeCursor>", TreeCursor, _write_cursor, _read_cursor),
        ObjectKind("std::unique_ptr<caffe2::IndexBase>", Index, write_index, read_index),
        ObjectKind(
            "std::unique_ptr<std::mutex>", type(threading.Lock()), lambda blob, lock: None, lambda blob: new_lock()
        ),
        *(
            ObjectKind(f"(std::unordered_map<{keys}_t, {values}_t>)", holds, write_map, map_reader(holds))
            for (keys, values), holds in KEY_MAPS.items()
        ),
    )
}


def kind_of(value: Any) -> ObjectKind | None:
    """Return how an object is stored; None if it cannot be stored."""
    return next((kind for kind in _KINDS.values() if isinstance(value, kind.holds)), None)


def kind_named(name: str) -> ObjectKind | None:
    """Return how records of a type are read; None if the type is unknown."""
    return _KINDS.get(name)


def known_kinds() -> list[str]:
    """Return the known types of records."""
    return sorted(_KINDS)
