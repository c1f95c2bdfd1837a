"""Partition, LengthsPartition, GatherByKey."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features.partition import GatherByKey, LengthsPartition, Partition
from netbuilder.proto import NetError, ShapeError
from suite import OperatorSuite, f32, floats, i64, refusal


def draw_keys(data, count):
    kind = data.draw(st.sampled_from([np.int32, np.int64]))
    return np.array(data.draw(st.lists(st.integers(-3, 9), min_size=count, max_size=count)), kind)


class TestPartition(OperatorSuite):
    operator = Partition
    no_gradient = "none passes"
    refusals = (refusal(Partition(), [i64(3), f32(3)], "must be a multiple of", NetError, n_out=3),)

    def draw(self, data):
        shape = data.draw(st.sampled_from([(4,), (0,), (2, 3)]))
        keys = draw_keys(data, int(np.prod(shape))).reshape(shape)
        others = [data.draw(floats(*shape, 2)) for _ in range(data.draw(st.integers(0, 2)))]
        parts = data.draw(st.integers(1, 3))
        op = Partition(pack_first_input=data.draw(st.booleans()))
        return op.with_arity(1 + len(others), parts * (1 + len(others))), [keys, *others]

    def reference(self, op, keys, *others):
        parts = op.n_out // op.n_in
        flat = keys.reshape(-1).tolist()
        made = []
        for p in range(parts):
            which = [i for i, key in enumerate(flat) if key % parts == p]
            made.append(np.array([flat[i] // parts if op.pack_first_input else flat[i] for i in which], int))
            made += [other.reshape(len(flat), 2)[which] for other in others]
        return made


class TestLengthsPartition(TestPartition):
    operator = LengthsPartition
    refusals = (refusal(LengthsPartition(), [i64(2), i64(3)], "must be a multiple of", NetError, n_out=3),)

    def draw(self, data):
        lengths = np.array(data.draw(st.lists(st.integers(0, 3), max_size=3)), np.int32)
        keys = draw_keys(data, int(lengths.sum()))
        others = [data.draw(floats(len(keys), 2)) for _ in range(data.draw(st.integers(0, 1)))]
        parts = data.draw(st.integers(1, 3))
        op = LengthsPartition(pack_first_input=data.draw(st.booleans()))
        return op.with_arity(2 + len(others), parts * (2 + len(others))), [lengths, keys, *others]

    def reference(self, op, lengths, keys, *others):
        parts = op.n_out // op.n_in
        made = super().reference(
            Partition(pack_first_input=op.pack_first_input).with_arity(op.n_in - 1, parts * (op.n_in - 1)),
            keys,
            *others,
        )
        ends = np.cumsum(lengths).tolist()
        for p in reversed(range(parts)):
            counts = [int((keys[b - n : b] % parts == p).sum()) for b, n in zip(ends, lengths.tolist())]
            made.insert(p * (op.n_in - 1), np.array(counts, int))
        return made


class TestGatherByKey(OperatorSuite):
    operator = GatherByKey
    refusals = (
        refusal(GatherByKey(), [f32(3), f32(3)], "keys must be int32 or int64"),
        refusal(GatherByKey(), [i64(3), f32(2, 2), f32(1, 3)], "rows like the first"),
        refusal(GatherByKey(), [i64(3), f32(2, 2), f32(2, 2)], "each of the 3 keys, got 4"),
    )

    @property
    def wrt(self):
        return (1, 2)

    def draw(self, data):
        keys = draw_keys(data, data.draw(st.integers(0, 5)))
        sizes = [int((keys % 2 == p).sum()) for p in range(2)]
        return GatherByKey().with_arity(3, 1), [keys, *(data.draw(floats(n, 2)) for n in sizes)]

    def reference(self, op, keys, *values):
        rows = [iter(value) for value in values]
        return [np.array([next(rows[key % len(values)]) for key in keys.tolist()]).reshape(len(keys), 2)]


def test_rows_that_do_not_fit_the_keys():
    rows = np.zeros((2, 2), np.float32)
    with pytest.raises(ShapeError, match=r"the keys need \[3, 1\] rows of the parts, got \[2, 2\]"):
        run_plain(GatherByKey(), [np.int64([0, 2, 4, 1]), rows, rows])
    with pytest.raises(ShapeError, match="input 1 must begin with the shape of the keys"):
        run_plain(Partition().with_arity(2, 2), [np.int64([0, 2, 4]), rows])
