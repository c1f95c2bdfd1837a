"""Rows partitioned by their keys, and gathered again: Partition, LengthsPartition, GatherByKey."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import counts_of_lengths, segment_numbers
from netbuilder.proto import NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GatherByKey", "LengthsPartition", "Partition"]


def _check_keys(op: Operator, keys: Any) -> None:
    require(keys.dtype in (np.int32, np.int64), op, f"keys must be int32 or int64, got {keys.dtype}")


def _assign(ctx: RunContext, keys: Any, parts: int) -> tuple[Any, Any]:
    """Return the part of each key, key modulo ``parts``, and the number of keys of each part, on the host."""
    part = keys.reshape(-1) % parts
    return part, np.bincount(ctx.host(part), minlength=parts)


@dataclass(frozen=True)
class _Parts(Operator):
    """Base: each part has one output per input; the part of a row is its key modulo the number of parts.

    With ``pack_first_input``, the keys in the outputs are divided by the number of parts, rounded down.
    """

    signature = "-> partitions+"
    dynamic = True
    flops_per_element = 0
    first: ClassVar[int] = 0  # the input that holds the keys
    pack_first_input: bool = False

    def check(self) -> None:
        if self.n_out % self.n_in:
            raise NetError(
                f"{self.type}: the number of outputs must be a multiple of {self.n_in}, that of the inputs, "
                f"got {self.n_out}"
            )

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable, as in Caffe2

    def split(self, ctx: RunContext, keys: Any, others: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], Any]:
        """Return the keys and rows of each part, and the part of each key."""
        _check_keys(self, keys)
        parts = self.n_out // self.n_in
        part, counts = _assign(ctx, keys, parts)
        order = ctx.xp.argsort(part, kind="stable")
        ends = np.cumsum(counts)
        flat = (keys // parts if self.pack_first_input else keys).reshape(-1)
        rows = [flat]
        for i, other in enumerate(others):
            require(
                other.shape[: keys.ndim] == keys.shape,
                self,
                f"input {self.first + 1 + i} must begin with the shape of the keys, {keys.shape}, got {other.shape}",
            )
            rows.append(
                other.reshape(-1, *other.shape[keys.ndim :])
                if other.size
                else other.reshape(flat.shape + other.shape[keys.ndim :])
            )
        chosen = [order[end - n : end] for n, end in zip(counts.tolist(), ends.tolist())]
        return [tuple(row.take(which, axis=0) for row in rows) for which in chosen], part


@register
@dataclass(frozen=True)
class Partition(_Parts):
    """Partition keys and the rows that belong to them; the part is the key modulo the number of parts."""

    signature = """
        keys (*S): int32|int64
        others* (*S, ...): any
        -> partitions+ (...): any, of each part keys and others
    """


@kernel(Partition)
def partition(op: Partition, ctx: RunContext, keys: Any, *others: Any) -> tuple[Any, ...]:
    made, _ = op.split(ctx, keys, others)
    return tuple(array for arrays in made for array in arrays)


@register
@dataclass(frozen=True)
class LengthsPartition(_Parts):
    """As Partition, for segments: the first input holds their lengths, and each part gets the lengths of its own."""

    signature = """
        lengths (N): int32
        keys (I): int32|int64
        others* (I, ...): any
        -> partitions+ (...): any, of each part lengths, keys and others
    """
    first = 1
    inputs_on_host = (0,)


@kernel(LengthsPartition)
def lengths_partition(op: LengthsPartition, ctx: RunContext, lengths: Any, keys: Any, *others: Any) -> tuple[Any, ...]:
    require(keys.ndim == 1, op, f"keys must be a vector, got shape {keys.shape}")
    counts = counts_of_lengths(op, ctx, lengths, keys.shape[0])
    made, part = op.split(ctx, keys, others)
    parts = len(made)
    where = ctx.host(segment_numbers(ctx, counts)) * parts + ctx.host(part)
    counted = np.bincount(where, minlength=counts.size * parts).reshape(counts.size, parts).astype(np.int32)
    lengths_of_parts = [ctx.xp.asarray(np.ascontiguousarray(counted[:, p])) for p in range(parts)]
    return tuple(array for n, arrays in zip(lengths_of_parts, made) for array in (n, *arrays))


@register
@dataclass(frozen=True)
class GatherByKey(Operator):
    """Y[i] = the next row of the part of ``keys[i]``: the inverse of Partition by the same keys."""

    signature = """
        keys (N): int32|int64
        values+ (..., *S): any, (M, *S), the rows of each part
        -> Y (N, *S): as values
    """
    flops_per_element = 0

    def infer(self, keys: TensorSpec, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        _check_keys(self, keys)
        require(keys.ndim == 1, self, f"keys must be a vector, got shape {keys.shape}")
        first = values[0]
        for value in values:
            require(
                value.ndim >= 1 and value.shape[1:] == first.shape[1:] and value.dtype == first.dtype,
                self,
                f"all values must have rows like the first, {first.shape[1:]} of {first.dtype}, "
                f"got shape {value.shape} of {value.dtype}",
            )
        rows = sum(value.shape[0] for value in values)
        require(rows == keys.shape[0], self, f"there must be a row for each of the {keys.shape[0]} keys, got {rows}")
        return (first.with_shape((keys.shape[0], *first.shape[1:])),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        parts = range(1, self.n_in)
        outputs = [name for i in parts for name in (f"_{g.d_input(i)}_keys", g.d_input(i))]
        return [make_op("Partition", [g.input("keys"), g.d_output("Y")], outputs, pack_first_input=0)]


@kernel(GatherByKey)
def gather_by_key(op: GatherByKey, ctx: RunContext, keys: Any, *values: Any) -> tuple[Any, ...]:
    part, counts = _assign(ctx, keys, len(values))
    got = [value.shape[0] for value in values]
    require(counts.tolist() == got, op, f"the keys need {counts.tolist()} rows of the parts, got {got}")
    y = ctx.xp.empty((keys.shape[0], *values[0].shape[1:]), values[0].dtype)
    y[ctx.xp.argsort(part, kind="stable")] = ctx.xp.concatenate(values)
    return (y,)
