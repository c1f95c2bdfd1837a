"""LookupRows and RowsToOwners: rows of divided tables against indexing the whole, and which messages they take."""

import numpy as np
import pytest
from hypothesis import strategies as st

from collective_runs import OBJECT, alone, run_on_ranks
from netbuilder.ops.collectives.table_shards import LookupRows, RowsToOwners
from netbuilder.ops.core.indexing import rows_of_shard
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, refusal
from thread_ranks import ThreadCommunicator

INDICES = TensorSpec((3,), np.dtype(np.int32))
ROWS, KINDS = [10, 7, 3, 5], [np.float32, np.float64, np.float16, np.float32]
SHAPES = [(4,), (), (2, 3), (0,)]


class TestLookupRows(OperatorSuite):
    operator = LookupRows
    no_gradient = "it is added after the backward pass, which knows the lookups"
    refusals = (
        refusal(LookupRows(rows=(4,)), [f32(4, 2), f32(4, 2), INDICES], "input 0 must be a common world", n_out=2),
        refusal(LookupRows(rows=(4,)), [OBJECT, f32(4, 2), f32(3)], "input 2 must be indices, int32 or", n_out=2),
        refusal(LookupRows(rows=(4,)), [OBJECT, f32(), INDICES], "must be the rows of a table, got shape", n_out=2),
        refusal(LookupRows(), [OBJECT, f32(4, 2), INDICES], r"two blobs for each table.* rows \[\]", ArgumentError),
        refusal(LookupRows(rows=(0,)), [OBJECT, f32(4, 2), INDICES], r"got 3 inputs.* rows \[0\]", ArgumentError),
    )

    def draw(self, data):
        rows, count = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 4))
        indices = data.draw(st.lists(st.integers(0, rows - 1), min_size=count, max_size=count))
        table = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        return LookupRows(rows=(rows,)).with_arity(3, 2), [alone(), table, np.array(indices, np.int32)]

    def reference(self, op, world, table, indices):
        return table[indices], np.arange(indices.size, dtype=np.int32)


class TestRowsToOwners(OperatorSuite):
    operator = RowsToOwners
    no_gradient = "it follows the backward pass"
    refusals = (
        refusal(RowsToOwners(rows=(4,)), [f32(3), INDICES, f32(3, 2)], "input 0 must be a common world", n_out=2),
        refusal(RowsToOwners(rows=(4,)), [OBJECT, f32(3), f32(3, 2)], "input 1 must be indices, int32 or", n_out=2),
        refusal(RowsToOwners(rows=(4,)), [OBJECT, INDICES, f32(2, 2)], "input 2 must have a row for each", n_out=2),
    )

    def draw(self, data):
        op, (world, _, indices) = TestLookupRows.draw(self, data)
        values = np.arange(3 * indices.size, dtype=np.float32).reshape(-1, 3)
        return RowsToOwners(rows=op.rows).with_arity(3, 2), [world, indices, values]

    def reference(self, op, world, indices, values):
        return indices, values


def whole_tables():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, *shape)).astype(kind) for n, shape, kind in zip(ROWS, SHAPES, KINDS)]


def shard_of(table, rank, size):
    rows = rows_of_shard(len(table), size)
    own = table[rank * rows : (rank + 1) * rows]
    return np.concatenate([own, np.full((rows - len(own), *table.shape[1:]), 99, table.dtype)])


def indices_of(rank):
    rng = np.random.default_rng(rank)
    shapes = [(2, 3), 5, rank, 0 if rank == 1 else 4]
    return [rng.integers(-n, n, shape, rng.choice([np.int32, np.int64])) for n, shape in zip(ROWS, shapes)]  # fmt: skip


def named(**lists):
    return {f"{name}{i}": blob for i in range(len(ROWS)) for name, blobs in lists.items() for blob in [blobs[i]]}


OUTPUTS = [f"{name}{i}" for i in range(len(ROWS)) for name in "rp"]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_rows_are_those_of_the_whole_tables(size):
    tables = whole_tables()
    blobs = [named(t=[shard_of(t, rank, size) for t in tables], i=indices_of(rank)) for rank in range(size)]
    for rank, outputs in enumerate(run_on_ranks("LookupRows", blobs, OUTPUTS, rows=ROWS, from_end=[1, 1, 1, 1])):
        for table, indices, rows, numbers in zip(tables, indices_of(rank), outputs[::2], outputs[1::2]):
            want = table[indices.reshape(-1)]
            assert rows.dtype == want.dtype and numbers.dtype == indices.dtype
            np.testing.assert_array_equal(rows, want)
            np.testing.assert_array_equal(rows[numbers], table[indices])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_owners_get_rows_in_the_order_of_one_backward_pass(size, flat):
    rng, tables, ranks = np.random.default_rng(1), whole_tables(), range(size)

    def rows_for(rank):
        pairs = zip(indices_of(rank), tables)
        return [rng.normal(size=(*indices.shape, *table.shape[1:])).astype(table.dtype) for indices, table in pairs]

    values = [rows_for(rank) for rank in ranks]
    given = [
        [value.reshape(indices.size, *table.shape[1:]) for value, indices, table in zip(each, indices_of(rank), tables)]
        for rank, each in enumerate(values)
    ]
    blobs = [named(i=indices_of(rank), v=(given if flat else values)[rank]) for rank in range(size)]
    for rank, outputs in enumerate(run_on_ranks("RowsToOwners", blobs, OUTPUTS, rows=ROWS)):
        for number, table in enumerate(tables):
            rows = rows_of_shard(len(table), size)
            ranks = range(size)[::-1]
            indices = np.concatenate([indices_of(r)[number].reshape(-1) for r in ranks]) % len(table)
            own = indices // rows == rank
            np.testing.assert_array_equal(outputs[2 * number], indices[own] - rank * rows)
            np.testing.assert_array_equal(
                outputs[2 * number + 1], np.concatenate([given[r][number] for r in ranks])[own]
            )


def test_all_tables_take_a_few_messages(monkeypatch):
    calls, plain = [], ThreadCommunicator._alltoall
    monkeypatch.setattr(ThreadCommunicator, "_alltoall", lambda *a: (calls.append(1), plain(*a))[1])
    tables = whole_tables()
    blobs = [named(t=[shard_of(t, rank, 2) for t in tables], i=indices_of(rank)) for rank in range(2)]
    run_on_ranks("LookupRows", blobs, OUTPUTS, rows=ROWS, from_end=[1, 1, 1, 1])
    assert len(calls) == 3 * 2 * 2, "two ranks, two runs"
    calls.clear()
    values = [np.zeros((indices.size, *table.shape[1:]), table.dtype) for indices, table in zip(indices_of(0), tables)]
    run_on_ranks("RowsToOwners", [named(i=indices_of(0), v=values)] * 2, OUTPUTS, rows=ROWS)
    assert len(calls) == 2 * 2 * 2


@pytest.mark.parametrize("bad, match", [(10, r"indices must lie in \[0, 10\), got 10"), (-1, r"got -1")])
def test_an_index_that_is_none_is_an_error_that_says_so(bad, match):
    tables = [np.zeros((5, 2), np.float32)] * 2
    blobs = [{"t": tables[0], "i": np.int32([bad])}, {"t": tables[1], "i": np.int32([bad])}]
    for error in run_on_ranks("LookupRows", blobs, ["r", "p"], rows=[10]):
        with pytest.raises(Exception, match=match):
            raise error


def test_a_table_that_is_fed_whole_is_an_error_that_says_so():
    blobs = [{"t": np.zeros((10, 2), np.float32), "i": np.int32([1])} for _ in range(2)]
    for error in run_on_ranks("LookupRows", blobs, ["r", "p"], rows=[10]):
        with pytest.raises(Exception, match=r"each of 2 processes has 5 rows of a table of 10, got shape \(10, 2\)"):
            raise error
