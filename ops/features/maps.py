"""Maps from integers to integers: CreateMap, KeyValueToMap, MapToKeyValue; and KeySplit."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.key_map import KeyMap, empty_map, filled_map
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.data_types import numpy_type
from netbuilder.ops.core.objects import OnHost, shared_object
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, ShapeError, TensorProto
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CreateMap", "KeySplit", "KeyValueToMap", "MapToKeyValue"]

_HANDLE = TensorSpec((), STRING)


@dataclass(frozen=True)
class _OnMap(OnHost):
    """Base: works with a map stored in a blob."""

    signature = "-> map"
    effects = ""


@register
@dataclass(frozen=True)
class CreateMap(_OnMap):
    """Create an empty map with keys and values of int32 (the default) or int64.

    ``key_dtype`` and ``value_dtype`` are element types by their numbers in TensorProto.
    """

    signature = "-> map: object"

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
@dataclass(frozen=True)
class KeyValueToMap(_OnMap):
    """Create a map from keys to values; of repeated keys, the first counts."""

    signature = "keys (*S): int32|int64, values {prod(S)}: int32|int64 -> map: object"


@kernel(KeyValueToMap)
def key_value_to_map(op: KeyValueToMap, ctx: RunContext, keys: Any, values: Any) -> tuple[Any, ...]:
    return (filled_map(ctx.host(keys).reshape(-1), ctx.host(values).reshape(-1)),)


@register
@dataclass(frozen=True)
class MapToKeyValue(_OnMap):
    """The keys of a map, in any order, and their values."""

    signature = "map: object -> keys (N): int32|int64, values (N): int32|int64"
    dynamic = True


@kernel(MapToKeyValue)
def map_to_key_value(op: MapToKeyValue, ctx: RunContext, entries: Any) -> tuple[Any, ...]:
    held = shared_object(op, entries, KeyMap, "CreateMap or KeyValueToMap")
    return held.key_array, held.value_array


@register
@dataclass(frozen=True)
class KeySplit(Operator):
    """For each k below ``categorical_limit``, an output with the positions of k in the flattened keys, int32."""

    signature = """
        keys (*S): int64
        -> positions+ (...): int32, (M) for each key
    """
    dynamic = True
    flops_per_element = 0
    categorical_limit: int = 0

    def check(self) -> None:
        if self.categorical_limit < 1 or self.categorical_limit != self.n_out:
            raise ArgumentError(
                f"KeySplit: categorical_limit must be positive, and the number of outputs; got "
                f"{self.categorical_limit} for {self.n_out} outputs"
            )


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
