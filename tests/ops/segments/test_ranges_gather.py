"""GatherRanges, GatherRangesToDense, SplitByLengths."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.segments.ranges_gather import GatherRanges, GatherRangesToDense
from netbuilder.ops.segments.split_by_lengths import SplitByLengths
from netbuilder.proto import ArgumentError, OperatorError, ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal

SIZE = 6


def draw_ranges(data, features):
    samples = data.draw(st.integers(0, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    starts = rng.integers(0, SIZE - 2, (samples, features))
    return np.stack([starts, rng.integers(0, 3, starts.shape)], axis=2).astype(
        data.draw(st.sampled_from([np.int32, np.int64]))
    )


class TestGatherRanges(OperatorSuite):
    operator = GatherRanges
    no_gradient = "it has none"
    refuses_nothing = "shapes are seen when it runs; see test_bad_ranges"

    def draw(self, data):
        return GatherRanges(), [data.draw(floats(SIZE)), draw_ranges(data, 2)]

    def reference(self, op, x, ranges):
        parts = [x[a : a + n] for sample in ranges.tolist() for a, n in sample]
        return [np.concatenate([x[:0], *parts]), ranges[:, :, 1].sum(axis=1)]


class TestGatherRangesToDense(OperatorSuite):
    operator = GatherRangesToDense
    no_gradient = "it has none"
    refusals = (
        refusal(GatherRangesToDense(), [f32(3), i32(2, 1, 2)], "a positive number for each of the 1", ArgumentError),
        refusal(GatherRangesToDense(lengths=(2,)), [f32(3, 1), i32(2, 1, 2)], "X must be a vector"),
        refusal(GatherRangesToDense(lengths=(2,)), [f32(3), i32(2, 2)], r"shape \(samples, features, 2\)"),
        refusal(GatherRangesToDense(lengths=(2,)), [f32(3), i32(2, 2, 2)], "must have 1 features"),
        refusal(GatherRangesToDense(lengths=(2,)), [f32(3), i32(2, 1, 2), i64(4)], "key must be int64 of the shape"),
    )

    def draw(self, data):
        given = [data.draw(floats(SIZE)), draw_ranges(data, 2)]
        if data.draw(st.booleans()):
            given.append(np.random.default_rng(data.draw(st.integers(0, 9))).permutation(SIZE))
        return GatherRangesToDense(lengths=(2, 1)).with_arity(len(given), 2), given

    def reference(self, op, x, ranges, key=None):
        made = [np.zeros((len(ranges), length)) for length in op.lengths]
        for s, sample in enumerate(ranges.tolist()):
            for f, (a, n) in enumerate(sample):
                if n == op.lengths[f]:
                    places = np.arange(a, a + n)
                    made[f][s] = x[places if key is None else places[np.argsort(key[places])]]
        return made


class TestSplitByLengths(OperatorSuite):
    operator = SplitByLengths
    refusals = (refusal(SplitByLengths(order="HW"), [f32(3), i32(1)], "NCHW or NHWC", ArgumentError),)
    d_outputs = (0, 1)

    def draw(self, data):
        lengths = np.array(data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)), np.int32)
        scale = data.draw(st.integers(1, 2)) if lengths.any() else 1
        op = SplitByLengths(axis=data.draw(st.sampled_from([0, -2])), use_scaling_lengths=scale > 1)
        return op.with_arity(2, 2), [data.draw(floats(scale * int(lengths.sum()), 2)), lengths]

    def reference(self, op, x, lengths):
        scale = len(x) // max(int(lengths.sum()), 1)
        return np.split(x, [scale * int(lengths[:2].sum())])


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (GatherRanges(), [np.zeros(3), np.int32([[[1, 3]]])], "must lie in the 3 elements of X, got 3 from 1 on"),
        (GatherRanges(), [np.zeros(3), np.float32([[[1, 3]]])], "of int32 or int64"),
        (GatherRanges(), [np.zeros(3), np.int64([[[1, 2**63 - 1]]])], "must lie in the 3 elements of X, got 9223372"),
        (SplitByLengths(axis=0).with_arity(2, 2), [np.zeros(3), np.int32([1, 1, 1])], "a multiple of the 2 outputs"),
        (SplitByLengths(axis=0), [np.zeros(3), np.int32([2])], "must be the extent of axis 0, 3"),
        (SplitByLengths(), [np.zeros(3), np.int32([3])], r"axis must lie in \[-1, 1\)"),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_bad_ranges(op, inputs, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(op, inputs)


def test_ranges_of_more_rows_than_memory_holds_are_refused():
    many = np.broadcast_to(np.int64([[[0, 1 << 40]]]), (1 << 10, 1, 2))
    with pytest.raises(ShapeError, match="GatherRanges: the work on all rows of the segments"):
        run_plain(GatherRanges(), [np.broadcast_to(np.int8(0), (1 << 40,)), many])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_mismatched_ratio": 0.4}, "1 of the 2 ranges of feature 0 have another length"),
        ({"max_empty_ratio": 0.0, "max_mismatched_ratio": 1.0}, "1 of the 2 ranges of feature 0 are empty"),
    ],
)
def test_too_many_ranges_that_do_not_fit(arguments, message):
    op = GatherRangesToDense(lengths=(2,), min_observation=2, **arguments)
    with pytest.raises(OperatorError, match=message):
        run_plain(op, [np.zeros(3, np.float32), np.int32([[[0, 1]], [[0, 0]]])])
