"""Maps from integers to integers: CreateMap, KeyValueToMap, MapToKeyValue; and KeySplit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.data.object_records import ObjectKind, register_kind
from netbuilder.data.tensor_records import proto_to_tensor, tensor_to_proto
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.data_types import numpy_type
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, BlobProto, ParseError, ShapeError, TensorProto, TensorProtos

__all__ = ["CreateMap", "KeyMap", "KeySplit", "KeyValueToMap", "MapToKeyValue", "empty_map"]

_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))
_HANDLE = TensorSpec((), STRING)


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


_CLASSES: dict[tuple[np.dtype[Any], np.dtype[Any]], type[KeyMap]] = {
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
    if kinds not in _CLASSES:
        raise ArgumentError(f"a map has keys and values of int32 or int64, got {kinds[0]} and {kinds[1]}")
    return _CLASSES[kinds]()


def _filled(keys: Any, values: Any) -> KeyMap:
    """Return the map from ``keys`` to ``values``, two vectors; of repeated keys, the first counts."""
    _, first = np.unique(keys, return_index=True)
    first.sort()
    made = empty_map(keys.dtype, values.dtype)
    made.update(zip(keys[first].tolist(), values[first].tolist()))
    return made


def _write(blob: BlobProto, entries: KeyMap) -> None:
    both = (entries.key_array, entries.value_array)
    protos = [tensor_to_proto(array, segment=(0, array.size)) for array in both]
    blob.content = TensorProtos(protos=protos).SerializeToString()


def _reader_of(cls: type[KeyMap]) -> Callable[[BlobProto], KeyMap]:
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
        return _filled(*arrays)

    return read


for (_keys, _values), _class in _CLASSES.items():
    register_kind(ObjectKind(f"(std::unordered_map<{_keys}_t, {_values}_t>)", _class, _write, _reader_of(_class)))


@operator_class(frozen=True)
class _OnMap(Operator):
    """Base: works on the host, with a map stored in a blob."""

    signature = "-> map"
    stateful = True
    outputs_on_host = True

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host"

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@register
@operator_class(frozen=True)
class CreateMap(_OnMap):
    """Create an empty map with keys and values of int32 (the default) or int64.

    ``key_dtype`` and ``value_dtype`` are element types by their numbers in TensorProto.
    """

    signature = "-> map: object"
    effects = ""

    key_dtype: int = TensorProto.INT32
    value_dtype: int = TensorProto.INT32

    def check(self) -> None:
        for name, number in (("key_dtype", self.key_dtype), ("value_dtype", self.value_dtype)):
            if number not in (TensorProto.INT32, TensorProto.INT64):
                raise ArgumentError(
                    f"CreateMap: {name} must be INT32 ({TensorProto.INT32}) or INT64 ({TensorProto.INT64}), "
                    f"got {number}"
                )


@kernel(CreateMap)
def create_map(op: CreateMap, ctx: RunContext) -> tuple[Any, ...]:
    return (empty_map(*(numpy_type(number, "CreateMap: dtype") for number in (op.key_dtype, op.value_dtype))),)


@register
@operator_class(frozen=True)
class KeyValueToMap(_OnMap):
    """Create a map from keys to values; of repeated keys, the first counts."""

    signature = "keys (*S): int32|int64, values {prod(S)}: int32|int64 -> map: object"
    effects = ""


@kernel(KeyValueToMap)
def key_value_to_map(op: KeyValueToMap, ctx: RunContext, keys: Any, values: Any) -> tuple[Any, ...]:
    return (_filled(ctx.host(keys).reshape(-1), ctx.host(values).reshape(-1)),)


@register
@operator_class(frozen=True)
class MapToKeyValue(_OnMap):
    """The keys of a map, in any order, and their values."""

    signature = "map: object -> keys (N): int32|int64, values (N): int32|int64"
    effects = ""
    dynamic = True


@kernel(MapToKeyValue)
def map_to_key_value(op: MapToKeyValue, ctx: RunContext, entries: Any) -> tuple[Any, ...]:
    held = shared_object(op, entries, KeyMap, "CreateMap or KeyValueToMap")
    return held.key_array, held.value_array


@register
@operator_class(frozen=True)
class KeySplit(Operator):
    """For each k below ``categorical_limit``, an output with the positions of k in the flattened keys, int32."""

    signature = """
        keys (*S): int64
        -> positions+ (...): int32, (M) for each key
    """
    dynamic = True
    categorical_limit: int = 0

    def check(self) -> None:
        if self.categorical_limit < 1 or self.categorical_limit != self.n_out:
            raise ArgumentError(
                f"KeySplit: categorical_limit must be positive, and the number of outputs; got "
                f"{self.categorical_limit} for {self.n_out} outputs"
            )

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@kernel(KeySplit)
def key_split(op: KeySplit, ctx: RunContext, keys: Any) -> tuple[Any, ...]:
    require(keys.dtype == np.int64, op, f"keys must be int64, got {keys.dtype}")
    flat = keys.reshape(-1)
    if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < op.categorical_limit:
        raise ShapeError(
            f"KeySplit: keys must lie in [0, {op.categorical_limit}), the categorical_limit, got values from "
            f"{int(flat.min())} to {int(flat.max())}"
        )
    order = ctx.xp.argsort(flat, kind="stable").astype(np.int32)
    counts = np.bincount(ctx.host(flat), minlength=op.categorical_limit)
    ends = np.cumsum(counts)
    return tuple(order[end - n : end] for n, end in zip(counts.tolist(), ends.tolist()))
