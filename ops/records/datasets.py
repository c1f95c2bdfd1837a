"""Records in blobs: cursors that read them row by row, and operators that append to, trim and check them."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.record_tree import RecordTree, TreeCursor
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Append",
    "AtomicAppend",
    "CheckDatasetConsistency",
    "ComputeOffset",
    "CreateTreeCursor",
    "GetCursorOffset",
    "OnHost",
    "ReadNextBatch",
    "ReadRandomBatch",
    "ResetCursor",
    "SortAndShuffle",
    "TrimDataset",
    "tree_of",
]

Arrays = tuple[Any, ...]
_MAX_BLOBS = 500


@dataclass(frozen=True)
class OnHost(Operator):
    """Base: records are stored on the host, whatever the device."""

    dynamic = True
    stateful = True
    outputs_on_host = True
    inputs_on_host = True


@register
@dataclass(frozen=True)
class CreateTreeCursor(OnHost):
    """Create a cursor at the first row of a record with columns called ``fields``."""

    signature = "-> cursor: object"
    fields: tuple[str, ...] = ()


@kernel(CreateTreeCursor)
def create_tree_cursor(op: CreateTreeCursor, ctx: RunContext) -> Arrays:
    return (TreeCursor(op.fields),)


def _cursor(op: Operator, value: Any) -> TreeCursor:
    return shared_object(op, value, TreeCursor, "CreateTreeCursor")


@register
@dataclass(frozen=True)
class ResetCursor(OnHost):
    """Move a cursor back to the first row."""

    signature = "cursor: object ->"


@kernel(ResetCursor)
def reset_cursor(op: ResetCursor, ctx: RunContext, cursor: Any) -> Arrays:
    _cursor(op, cursor).reset()
    return ()


@register
@dataclass(frozen=True)
class GetCursorOffset(OnHost):
    """offsets = the number of rows of each domain before the cursor; empty if nothing was read."""

    signature = "cursor: object -> offsets (D): int32"


@kernel(GetCursorOffset)
def get_cursor_offset(op: GetCursorOffset, ctx: RunContext, cursor: Any) -> Arrays:
    return (np.array(_cursor(op, cursor).place, np.int32),)


@register
@dataclass(frozen=True)
class ReadNextBatch(OnHost):
    """Return the next ``batch_size`` rows of a record, with the elements that lengths assign to them, and advance.

    At the end there are fewer rows or, with ``enforce_batch_size``, none; after it none.
    """

    signature = """
        cursor: object
        field+ (...): any
        -> field+ (...): any, rows of the inputs
    """
    batch_size: int = 1
    enforce_batch_size: bool = False

    def check(self) -> None:
        if self.batch_size < 1 or self.n_out != self.n_in - 1:
            raise ArgumentError(
                f"ReadNextBatch: batch_size must be at least 1, and each of {self.n_in - 1} columns needs an output, "
                f"got {self.batch_size} and {self.n_out} outputs"
            )


@kernel(ReadNextBatch)
def read_next_batch(op: ReadNextBatch, ctx: RunContext, cursor: Any, *fields: Any) -> Arrays:
    rows = _cursor(op, cursor).next(fields, op.batch_size, whole=op.enforce_batch_size)
    return tuple(row.copy() for row in rows)


@register
@dataclass(frozen=True)
class ComputeOffset(OnHost):
    """offsets = where each row of a record begins in the columns of each domain, and where the last one ends."""

    signature = """
        cursor: object
        field+ (...): any
        -> offsets (N, D): int64, N - 1 rows
    """


@kernel(ComputeOffset)
def compute_offset(op: ComputeOffset, ctx: RunContext, cursor: Any, *fields: Any) -> Arrays:
    return (_cursor(op, cursor).tree(len(fields)).places(fields),)


@register
@dataclass(frozen=True)
class SortAndShuffle(OnHost):
    """indices = an order of the rows of a record.

    The rows are sorted by the column ``sort_by_field_idx`` (-1: not sorted) and shuffled within windows of
    ``shuffle_size`` batches, each of ``batch_size`` rows; then the batches are shuffled.
    """

    signature = "cursor: object, field+ (...): any -> indices (N): int64"
    draws = True
    sort_by_field_idx: int = 1
    batch_size: int = 1
    shuffle_size: int = 1


@kernel(SortAndShuffle)
def sort_and_shuffle(op: SortAndShuffle, ctx: RunContext, cursor: Any, *fields: Any) -> Arrays:
    if op.batch_size < 1 or op.shuffle_size < 1 or not -1 <= op.sort_by_field_idx < len(fields):
        raise ArgumentError(
            f"SortAndShuffle: batch_size and shuffle_size must be at least 1, and sort_by_field_idx -1 or one of "
            f"{len(fields)} columns, got {op.batch_size}, {op.shuffle_size}, {op.sort_by_field_idx}"
        )
    rows = _cursor(op, cursor).tree(len(fields)).size(fields)
    order = np.arange(rows)
    if op.sort_by_field_idx >= 0:
        order = np.argsort(fields[op.sort_by_field_idx], kind="stable")
    numbers = ctx.host(ctx.uniform((2 * rows,)))
    window = op.batch_size * op.shuffle_size
    order = order[np.lexsort((numbers[:rows], np.arange(rows) // window))]
    batches = [order[begin : begin + op.batch_size] for begin in range(0, rows, op.batch_size)]
    batches = [batches[i] for i in np.argsort(numbers[rows : rows + len(batches)], kind="stable")]
    return (np.concatenate(batches or [order]).astype(np.int64),)


@register
@dataclass(frozen=True)
class ReadRandomBatch(OnHost):
    """Return the ``batch_size`` rows of a record that are next in an order, and advance the cursor.

    ``indices`` is that order, ``offsets`` the output of ComputeOffset. With ``loop_over``, the order starts again after
    its end.
    """

    signature = """
        cursor: object
        indices (N): int64
        offsets (R, D): int64
        field+ (...): any
        -> field+ (...): any, rows of the inputs
    """
    batch_size: int = 1
    enforce_batch_size: bool = False
    loop_over: bool = False

    def check(self) -> None:
        if self.batch_size < 1 or self.n_out != self.n_in - 3:
            raise ArgumentError(
                f"ReadRandomBatch: batch_size must be at least 1, and each of {self.n_in - 3} columns needs an output, "
                f"got {self.batch_size} and {self.n_out} outputs"
            )


@kernel(ReadRandomBatch)
def read_random_batch(
    op: ReadRandomBatch, ctx: RunContext, cursor: Any, indices: Any, offsets: Any, *fields: Any
) -> Arrays:
    held = _cursor(op, cursor)
    order = indices.reshape(-1)
    with held.lock:
        begin = held.place[0] if held.place else 0
        if op.loop_over and begin >= len(order):
            begin = 0
        chosen = order[begin : begin + op.batch_size]
        if op.enforce_batch_size and len(chosen) < op.batch_size:
            chosen = order[:0]
            if op.loop_over:
                begin, chosen = 0, order[: op.batch_size]
        held.place = [begin + max(len(chosen), 0 if op.loop_over else op.batch_size)]
    parts = []
    for field, domain in zip(fields, held.tree(len(fields)).domains):
        pieces = [field[offsets[i, domain] : offsets[i + 1, domain]] for i in chosen]
        rows = sum(map(len, pieces))
        check_extents(f"ReadRandomBatch: the rows of {len(pieces)} indices", (rows, *field.shape[1:]), field.dtype)
        parts.append(np.concatenate(pieces) if pieces else field[:0].copy())
    return tuple(parts)


@register
@dataclass(frozen=True)
class CheckDatasetConsistency(OnHost):
    """Fail unless the columns, called ``fields``, have the numbers of rows that their lengths require."""

    signature = "field+ (...): any ->"
    fields: tuple[str, ...] = ()


@kernel(CheckDatasetConsistency)
def check_dataset_consistency(op: CheckDatasetConsistency, ctx: RunContext, *fields: Any) -> Arrays:
    tree_of(op, op.fields, fields).check(fields)
    return ()


def tree_of(op: Operator, names: tuple[str, ...], fields: Arrays) -> RecordTree:
    """Return the tree of columns with these names.

    Raises:
        ArgumentError: there are more or fewer names than columns.
    """
    if len(names) != len(fields):
        raise ArgumentError(f"{op.type}: fields has {len(names)} names for {len(fields)} columns")
    return RecordTree(names)


@register
@dataclass(frozen=True)
class TrimDataset(OnHost):
    """Drop rows at the end of a record, in place, so that the number of rows is a multiple of ``multiple_of``."""

    signature = "field+ (...): any -> field+ (...): any"
    inplace = "one-to-one"
    must_inplace = tuple((i, i) for i in range(_MAX_BLOBS))
    fields: tuple[str, ...] = ()
    multiple_of: int = 1

    def check(self) -> None:
        if self.multiple_of < 1:
            raise ArgumentError(f"TrimDataset: multiple_of must be at least 1, got {self.multiple_of}")


@kernel(TrimDataset)
def trim_dataset(op: TrimDataset, ctx: RunContext, *fields: Any) -> Arrays:
    tree = tree_of(op, op.fields, fields)
    rows = tree.size(fields)
    end = tree.after(fields, tree.start(), rows - rows % op.multiple_of)
    return tuple(part.copy() for part in tree.rows(fields, tree.start(), end))


def _appended(op: Operator, first: Any, second: Any) -> Any:
    if first.ndim < 1 or first.shape[1:] != second.shape[1:] or first.dtype != second.dtype:
        if first.size == 0 and second.ndim >= 1:
            return second.copy()
        raise ShapeError(
            f"{op.type}: both tensors must have rows of the same shape and type, got shapes {first.shape} and "
            f"{second.shape} of types {first.dtype} and {second.dtype}"
        )
    return np.concatenate([first, second])


@register
@dataclass(frozen=True)
class Append(OnHost):
    """Append the rows of B to A, in place."""

    signature = """
        A (N, *S): any
        B (M, *S): as A
        -> A (R, *S): as A, R = N + M
    """
    must_inplace = ((0, 0),)


@kernel(Append)
def append(op: Append, ctx: RunContext, a: Any, b: Any) -> Arrays:
    return (_appended(op, a, b),)


@register
@dataclass(frozen=True)
class AtomicAppend(OnHost):
    """Append to each of n columns the rows of another one, in place and under a mutex.

    The inputs are the mutex, the n columns, and the n columns to append.
    """

    signature = """
        mutex: object
        field+ (...): any, rows (N, *S) of each column, then those appended
        -> field+ (...): any, the columns
    """
    must_inplace = tuple((i + 1, i) for i in range(_MAX_BLOBS))

    def check(self) -> None:
        if self.n_in != 2 * self.n_out + 1:
            raise ArgumentError(
                f"AtomicAppend takes a mutex and two columns for each output, got {self.n_in} inputs and "
                f"{self.n_out} outputs"
            )


@kernel(AtomicAppend)
def atomic_append(op: AtomicAppend, ctx: RunContext, mutex: Any, *fields: Any) -> Arrays:
    count = op.n_out
    with mutex:
        for name, new in zip(ctx.op_def.output, fields[count:]):
            # Append to the present value: another thread may have appended since the operator began.
            blob = ctx.workspace.make(name)
            blob.store(_appended(op, ctx.host(ctx.workspace.fetch(name)), new), blob.location)
    return tuple(ctx.workspace.get(name).buffer for name in ctx.op_def.output)
