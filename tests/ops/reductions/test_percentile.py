"""Percentile and BisectPercentile, and the search that they share."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.segmented_search import first_not_below
from netbuilder.ops.reductions.percentile import BisectPercentile, Percentile
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, i32, i64, refusal


def draw_samples(data, features):
    """Return a rising list of samples of each feature, and values, some of them samples."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    samples = [np.sort(rng.permutation(12)[: rng.integers(1, 6)]) / 4.0 for _ in range(features)]
    return rng, samples, rng.integers(-2, 26, (data.draw(st.integers(0, 5)), features)) / 8.0


class TestPercentile(OperatorSuite):
    operator = Percentile
    no_gradient = "none passes"
    refusals = (
        refusal(Percentile(), [f32(3), f32(4, 2), i32(2)], r"original_values must have shape \(N, D\)"),
        refusal(Percentile(), [f32(3, 2), f32(4, 3), i32(2)], r"value_to_pct must have shape \(M, 2\)"),
        refusal(Percentile(), [f32(3, 2), f32(4, 2), i32(3)], r"lengths must have shape \(2,\) = \(D,\)"),
        refusal(Percentile(), [f32(3, 2), f32(4, 2), i64(2)], "lengths must have elements of type int32"),
    )

    def draw(self, data):
        rng, samples, values = draw_samples(data, data.draw(st.integers(1, 3)))
        shares = [np.sort(rng.uniform(0, 1, len(s))) for s in samples]
        pairs = np.stack([np.concatenate(samples), np.concatenate(shares)], axis=1)
        return Percentile(), [np.float32(values), np.float32(pairs), np.int32([len(s) for s in samples])]

    def reference(self, op, values, pairs, lengths):
        columns, begin = [], 0
        for column, count in zip(values.T, lengths):
            samples, shares = pairs[begin : begin + count].T
            columns.append(np.interp(column, samples, shares, left=0, right=1))
            begin += count
        return [np.stack(columns, axis=1)]


class TestBisectPercentile(OperatorSuite):
    operator = BisectPercentile
    no_gradient = "none passes"
    refusals = (
        refusal(BisectPercentile(percentile_raw=(1,)), [f32(2, 1)], "as long as percentile_raw, 1", ArgumentError),
        refusal(BisectPercentile(lengths=(2,)), [f32(2, 1)], r"add up to 0 samples, got \(2,\)", ArgumentError),
        refusal(
            BisectPercentile((2, 1), (0, 1), (0, 1), (0, 1), (2,)),
            [f32(2, 1)],
            "strictly ascending within each",
            ArgumentError,
        ),
        refusal(
            BisectPercentile((1,), (1,), (1,), (1,), (1,)),
            [f32(2, 2)],
            r"raw_values must have shape \(2, 1\) = \(N, len\(lengths\)\)",
        ),
    )

    def draw(self, data):
        rng, samples, values = draw_samples(data, data.draw(st.integers(1, 3)))
        bounds = [np.sort(rng.uniform(0, 1, (len(s), 3)), axis=1) for s in samples]
        lower, mapping, upper = (tuple(map(float, column)) for column in np.concatenate(bounds).T)
        raw = tuple(map(float, np.concatenate(samples)))
        return BisectPercentile(raw, mapping, lower, upper, tuple(map(len, samples))), [np.float32(values)]

    def reference(self, op, values):
        found, begin = np.zeros(values.shape), 0
        for f, count in enumerate(op.lengths):
            part = slice(begin, begin + count)
            raw, mapping, lower, upper = (
                np.array(a[part])
                for a in (op.percentile_raw, op.percentile_mapping, op.percentile_lower, op.percentile_upper)
            )
            for i, value in enumerate(values[:, f]):
                t = int((raw <= value).sum()) - 1
                if t < 0 or value > raw[-1]:
                    found[i, f] = float(t >= 0)
                elif raw[t] == value:
                    found[i, f] = mapping[t]
                else:
                    part_of_step = (value - raw[t]) / (raw[t + 1] - raw[t])
                    found[i, f] = upper[t] + part_of_step * (lower[t + 1] - upper[t])
            begin += count
        return [found]


@pytest.mark.parametrize(("lengths", "text"), [([1, 2], "add up to the 2 samples"), ([0, 2], "1 or more")])
def test_lengths_that_do_not_fit(lengths, text):
    with pytest.raises(ShapeError, match=text):
        run_plain(Percentile(), [np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), np.int32(lengths)])


def test_samples_that_fall():
    with pytest.raises(ShapeError, match="must be in ascending order"):
        run_plain(Percentile(), [np.ones((2, 1), np.float32), np.float32([[2, 0.1], [1, 0.3]]), np.int32([2])])


def test_search_in_parts():
    rng = np.random.default_rng(0)
    table = np.concatenate([np.sort(rng.integers(0, 9, n)) for n in (7, 1, 4)])
    begin, end, values = np.array([0, 7, 8]), np.array([7, 8, 12]), rng.integers(-1, 11, (20, 3))
    wanted = [[b + np.searchsorted(table[b:e], v) for v, b, e in zip(row, begin, end)] for row in values]
    np.testing.assert_array_equal(first_not_below(np, table, values, begin, end, 7), wanted)
