"""LookupRows and RowsToOwners: rows of tables whose rows are divided over the processes, there and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.worlds.session import Collective
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.ops.collectives.worlds import OverWorld, world_of
from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.extensions import SplitKernel
from netbuilder.ops.core.indexing import check_indices, rows_of_shard
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LookupRows", "RowsToOwners"]

Array = Any


@dataclass(frozen=True)
class _OverShards(OverWorld):
    """Base: pairs of blobs of some tables; ``rows`` has the number of rows that each table has in all."""

    rows: tuple[int, ...] = ()

    def check(self) -> None:
        if self.n_in != 2 * len(self.rows) + 1 or self.n_out != 2 * len(self.rows) or min(self.rows, default=0) < 1:
            raise ArgumentError(
                f"{self.type} takes a common world and two blobs for each table, returns as many, and rows must be "
                f"the numbers of rows of the tables; got {self.n_in} inputs, {self.n_out} outputs, rows "
                f"{list(self.rows)}"
            )

    def _check_indices(self, number: int, indices: TensorSpec) -> None:
        kind = indices.dtype
        require(kind in (np.int32, np.int64), self, f"input {number} must be indices, int32 or int64, got {kind}")


@register
@dataclass(frozen=True)
class LookupRows(_OverShards):
    """Look up rows of tables that are divided over the processes: each gets those that its indices name.

    Process r has of a table of ``rows[i]`` rows those from r n on, with n = ``rows_of_shard(rows[i], processes)``.
    Output 2i has a row for each index, in their order, and output 2i + 1 the numbers of these rows, in the shape of the
    indices: what ``Gather`` and its like read in place of the table and the indices. Indices may count from the end of
    the table, as those of Gather, where ``from_end`` is true. All tables take three messages together.
    """

    signature = """
        common_world: object
        table_and_indices+ (...): any, the shard (n, *S) of a table, then indices (*I), int32 or int64
        -> rows_and_numbers+ (...): any, rows (indices, *S) as the table, then their numbers (*I) as the indices
    """
    outputs_on_host = True
    from_end: tuple[bool, ...] = ()

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        super().infer(*inputs)
        outputs = []
        for i, (table, indices) in enumerate(zip(inputs[1::2], inputs[2::2])):
            require(table.ndim > 0, self, f"input {2 * i + 1} must be the rows of a table, got shape {table.shape}")
            self._check_indices(2 * i + 2, indices)
            outputs += [TensorSpec((indices.size, *table.shape[1:]), table.dtype), indices.plain]
        return tuple(outputs)


@register
@dataclass(frozen=True)
class RowsToOwners(_OverShards):
    """Give rows, such as those of sparse gradients, to the processes that have these rows of the tables.

    Each process gets those that all have for it, with their indices in its shard: what it updates the shard with. They
    are those of the last rank first, and otherwise in the order in which they were given, as the backward pass of one
    process has those of its replicas, so that sums have its order. All tables take two messages together.
    """

    signature = """
        common_world: object
        indices_and_values+ (...): any, indices (*I), int32 or int64, then a row for each, (*I, *S) or (indices, *S)
        -> own+ (...): any, the indices in the shard of the process, a vector, then their rows
    """
    dynamic = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        super().infer(*inputs)
        for i, (indices, values) in enumerate(zip(inputs[1::2], inputs[2::2])):
            self._check_indices(2 * i + 1, indices)
            _row_shape(self, 2 * i + 2, indices.shape, values.shape)
        raise NotImplementedError("RowsToOwners: the numbers of rows depend on the other processes")


def _row_shape(op: OverWorld, number: int, indices: Sequence[int], values: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a row of values."""
    axes, count = len(indices), math.prod(indices)
    if tuple(values[:axes]) == tuple(indices):
        return tuple(values[axes:])
    if values and values[0] == count:
        return tuple(values[1:])
    raise ShapeError(
        f"{op.type}: input {number} must have a row for each of the indices of shape {tuple(indices)}, got shape "
        f"{tuple(values)}"
    )


class _Sorted:
    """Indices of a table, sorted by the process that has their rows.

    Args:
        op: for errors.
        indices: of any shape.
        rows: of the table.
        size: number of processes.
        from_end: negative ones count from the end.

    Attributes:
        order: the places of the indices, sorted by owner and otherwise as they are.
        local: the indices in this order, in the shards of the owners.
        counts: how many each process has.
    """

    def __init__(self, op: OverWorld, indices: Array, rows: int, size: int, *, from_end: bool) -> None:
        flat = np.ascontiguousarray(indices).reshape(-1)
        if check_indices(op.type, flat, rows, -rows if from_end else 0):
            flat = np.where(flat < 0, flat + rows, flat)
        shard = rows_of_shard(rows, size)
        owners = (flat // shard).astype(np.int16 if size < 1 << 15 else np.int64)  # sorted in linear time
        self.order = np.argsort(owners, kind="stable")
        self.local = flat[self.order].astype(np.int64) % shard
        self.counts = np.bincount(owners, minlength=size)

    def parts(self, values: Array) -> list[Array]:
        """Return what each process gets of values in this order."""
        return np.split(values, self.counts.cumsum()[:-1])


def _exchanged_counts(communicator: Communicator, tables: Sequence[_Sorted]) -> Array:
    """Return how many rows of each table (columns) each process (rows) has for this one, or wants of it."""
    size, count = communicator.size, len(tables)
    own = np.stack([table.counts for table in tables], axis=1).astype(np.int64)
    return communicator.alltoall(own, [count] * size, [count] * size).reshape(size, count)


def _exchanged(
    communicator: Communicator, parts: Sequence[Sequence[Array]], sizes: Array, dtype: Any
) -> Sequence[Sequence[Array]]:
    """Return the parts that the ranks give to this one: [rank][table].

    Args:
        parts: of each table those for the ranks, of one dtype.
        sizes: the number of elements that each rank (rows) has for this one, of each table (columns).
        dtype: of the elements on the way.
    """
    mixed = [part[rank].reshape(-1).view(dtype) for rank in range(communicator.size) for part in parts]
    counts = [sum(part[rank].size * part[rank].itemsize for part in parts) for rank in range(communicator.size)]
    width = np.dtype(dtype).itemsize
    given = np.concatenate([np.empty(0, dtype), *mixed])
    taken = communicator.alltoall(given, [count // width for count in counts], sizes.sum(axis=1).tolist())
    ends = [0, *itertools.accumulate(sizes.reshape(-1).tolist())]
    found = [taken[start:end] for start, end in itertools.pairwise(ends)]
    return [found[at : at + sizes.shape[1]] for at in range(0, len(found), sizes.shape[1])]


def _look_up(
    op: LookupRows, communicator: Communicator, tables: Sequence[Array], wanted: Sequence[_Sorted], out: Sequence[Array]
) -> None:
    """Write the rows of all tables that this process wants, and give the others theirs."""
    asked_counts = _exchanged_counts(communicator, wanted)
    asked = _exchanged(communicator, [each.parts(each.local) for each in wanted], asked_counts, np.int64)
    widths = np.array([math.prod(table.shape[1:]) * table.itemsize for table in tables], np.int64)
    answers = [
        [np.ascontiguousarray(table.take(of_rank[number], axis=0)).view(np.uint8).reshape(-1) for of_rank in asked]
        if table.size and widths[number]
        else [np.empty(0, np.uint8)] * communicator.size
        for number, table in enumerate(tables)
    ]
    sizes = np.stack([each.counts for each in wanted], axis=1) * widths
    found = _exchanged(communicator, answers, sizes, np.uint8)
    for number, (each, rows) in enumerate(zip(wanted, out)):
        own = np.concatenate([of_rank[number] for of_rank in found]).view(rows.dtype)
        rows[each.order] = own.reshape(rows.shape)


@kernel(LookupRows)
def lookup_rows(op: LookupRows, ctx: RunContext, world: Any, *pairs: Any) -> tuple[Any, ...]:
    there = [ctx.host(each) for each in pairs]
    tables, indices = there[::2], there[1::2]
    outputs = []
    for table, given in zip(tables, indices):
        outputs += [np.empty((given.size, *table.shape[1:]), table.dtype), _numbers(given)]
    common = world_of(op, world)
    _begin_lookup(op, common, _call_of(op, common, ctx), tables, indices, outputs[::2])()
    return tuple(map(ctx.xp.asarray, outputs))


@prepare(LookupRows, device=CPU)
def _prepare_lookup(op: LookupRows, ctx: PlanContext, world: TensorSpec, *pairs: TensorSpec) -> Prepared:
    ins = [spec.plain for spec in pairs]
    outs = [spec.plain for spec in op.infer(world, *ins)]

    def bind(given: Sequence[Any], made: Sequence[Any], scratch: Any) -> Any:
        common = world_of(op, given[0])
        call = _call_of(op, common, ctx.run)
        tables, indices, rows, numbers = given[1::2], given[2::2], made[::2], made[1::2]

        def begin() -> Any:
            for each in numbers:
                each[...] = _numbers(each)
            return _begin_lookup(op, common, call, tables, indices, rows)

        return begin

    return Prepared([world, *ins], outs, bind, name="mpi", extensions=(SplitKernel(),))


def _numbers(indices: Array) -> Array:
    return np.arange(indices.size, dtype=indices.dtype).reshape(indices.shape)


def _call_of(op: _OverShards, common: CommonWorld, ctx: RunContext) -> Collective:
    return common.call(op.type, ctx.op_def.input[1], f"rows={list(op.rows)}", located=ctx.located)


def _begin_lookup(
    op: LookupRows,
    common: CommonWorld,
    call: Collective,
    tables: Sequence[Array],
    indices: Sequence[Array],
    out: Sequence[Array],
) -> Any:
    """Check the indices, and begin to exchange rows; return a function that waits."""
    ends = op.from_end or (False,) * len(op.rows)
    wanted = [
        _Sorted(op, each, rows, common.size, from_end=bool(end)) for each, rows, end in zip(indices, op.rows, ends)
    ]
    for table, rows in zip(tables, op.rows):
        if len(table) != rows_of_shard(rows, common.size):
            raise ShapeError(
                f"{op.type}: each of {common.size} processes has {rows_of_shard(rows, common.size)} rows of a table of "
                f"{rows}, got shape {table.shape}; feed or load the rows of this process"
            )
    return common.begin(call, lambda communicator, _: _look_up(op, communicator, tables, wanted, out))


@kernel(RowsToOwners)
def rows_to_owners(op: RowsToOwners, ctx: RunContext, world: Any, *pairs: Any) -> tuple[Any, ...]:
    common = world_of(op, world)
    there = [ctx.host(each) for each in pairs]
    indices, values = there[::2], there[1::2]
    tables = [_Sorted(op, each, rows, common.size, from_end=True) for each, rows in zip(indices, op.rows)]
    shapes = [_row_shape(op, 2 * i + 2, each.shape, values[i].shape) for i, each in enumerate(indices)]
    rows = [
        np.ascontiguousarray(value).reshape(len(table.local), *shape)[table.order]
        for value, table, shape in zip(values, tables, shapes)
    ]
    widths = np.array([math.prod(shape) * value.itemsize for shape, value in zip(shapes, values)], np.int64)

    def work(communicator: Communicator, _: bool) -> list[Any]:
        counts = _exchanged_counts(communicator, tables)
        given = [each.parts(each.local) for each in tables] + [each.parts(row) for each, row in zip(tables, rows)]
        found = _exchanged(communicator, given, np.concatenate([8 * counts, counts * widths], axis=1), np.uint8)
        outputs = []
        for number, (each, value, shape) in enumerate(zip(indices, values, shapes)):
            own = np.concatenate([of_rank[number] for of_rank in reversed(found)]).view(np.int64).astype(each.dtype)
            flat = np.concatenate([of_rank[len(tables) + number] for of_rank in reversed(found)]).view(value.dtype)
            outputs += [own, flat.reshape(len(own), *shape)]
        return outputs

    return tuple(map(ctx.xp.asarray, common.run(_call_of(op, common, ctx), work)))
