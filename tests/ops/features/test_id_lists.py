"""MergeIdLists, PadEmptySamples, DenseVectorToIdList."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features.id_lists import DenseVectorToIdList, MergeIdLists, PadEmptySamples
from netbuilder.proto import NetError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_lengths(data, count):
    return np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), np.int32)


class TestMergeIdLists(OperatorSuite):
    operator = MergeIdLists
    no_gradient = "it has none"
    refusals = (refusal(MergeIdLists(), [i32(2)], "lengths and values of each list, got 1 inputs", NetError),)

    def draw(self, data):
        samples = data.draw(st.integers(0, 3))
        kind = data.draw(st.sampled_from([np.int32, np.int64]))
        given = []
        for _ in range(data.draw(st.integers(1, 2))):
            lengths = draw_lengths(data, samples)
            count = int(lengths.sum())
            given += [lengths, np.array(data.draw(st.lists(st.integers(-2, 3), min_size=count, max_size=count)), kind)]
        return MergeIdLists().with_arity(len(given), 2), given

    def reference(self, op, *given):
        merged = [set() for _ in given[0]]
        for lengths, values in zip(given[::2], given[1::2]):
            rest = iter(values.tolist())
            for ids, n in zip(merged, lengths.tolist()):
                ids |= {next(rest) for _ in range(n)}
        return [np.array([len(ids) for ids in merged], int), np.array(sum(map(sorted, merged), []), int)]


class TestPadEmptySamples(OperatorSuite):
    operator = PadEmptySamples
    no_gradient = "it has none"
    refusals = (refusal(PadEmptySamples(), [i32(2), f32(2)], "an output for each input, got 2 and 1", NetError),)

    def draw(self, data):
        lengths = draw_lengths(data, data.draw(st.integers(0, 3)))
        features = [data.draw(floats(int(lengths.sum()), 2)) for _ in range(data.draw(st.integers(0, 2)))]
        return PadEmptySamples().with_arity(1 + len(features), 1 + len(features)), [lengths, *features]

    def reference(self, op, lengths, *features):
        ends = np.cumsum(lengths).tolist()
        cut = [(b - n, b) for b, n in zip(ends, lengths.tolist())]
        padded = [np.concatenate([x[:0], *(x[a:b] if b > a else np.zeros((1, 2)) for a, b in cut)]) for x in features]
        return [np.maximum(lengths, 1), *padded]


class TestDenseVectorToIdList(OperatorSuite):
    operator = DenseVectorToIdList
    no_gradient = "it has none"
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        return DenseVectorToIdList(), [rng.integers(0, 2, (data.draw(st.integers(0, 3)), 3)).astype(np.float32)]

    def reference(self, op, x):
        ids = [[k for k, value in enumerate(row) if value] for row in x]
        return [np.array([len(row) for row in ids], int), np.array(sum(ids, []), int)]


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (MergeIdLists().with_arity(2, 2), [np.int32([1]), np.zeros(1)], "values must be a vector of int32 or int64"),
        (
            MergeIdLists().with_arity(4, 2),
            [np.int32([1]), np.int64([1]), np.int32([1]), np.int32([1])],
            r"lengths of shape \(1,\) and ids of int64",
        ),
        (PadEmptySamples().with_arity(2, 2), [np.int32([1]), np.zeros(2)], "must have 1 rows"),
        (DenseVectorToIdList(), [np.zeros(2)], "X must be a matrix of numbers"),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_what_does_not_fit(op, inputs, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(op, inputs)
