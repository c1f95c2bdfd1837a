"""TopK and its gradient."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.reductions import top_k
from netbuilder.ops.reductions.top_k import TopK, TopKGradient
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i64, refusal


def draw_line(data, cls):
    x = data.draw(floats((1, 3), (1, 4), (1, 3), apart=0.1))
    return cls(k=data.draw(st.integers(1, 5)), axis=data.draw(st.integers(-3, 2))), x


def greatest(op, x):
    """Return values, indices and places in X of the greatest, in the order of the definition."""
    k = op.k
    shape = [k if i == op.axis % 3 else n for i, n in enumerate(x.shape)]
    values, indices, flat = np.zeros(shape), np.full(shape, -1), np.full(shape, -1)
    lines = [range(1) if i == op.axis % 3 else range(n) for i, n in enumerate(x.shape)]
    for at in np.ndindex(*map(len, lines)):
        line = [slice(None) if i == op.axis % 3 else j for i, j in enumerate(at)]
        ranked = sorted(enumerate(x[tuple(line)]), key=lambda pair: (-pair[1], pair[0]))[:k]
        for rank, (place, value) in enumerate(ranked):
            here, there = list(at), list(at)
            here[op.axis % 3], there[op.axis % 3] = rank, place
            values[tuple(here)], indices[tuple(here)] = value, place
            flat[tuple(here)] = np.ravel_multi_index(there, x.shape)
    return values, indices, flat.ravel()


class TestTopK(OperatorSuite):
    operator = TopK
    refusals = (
        refusal(TopK(), [f32(3)], "k must be at least 1, got -1", ArgumentError),
        refusal(TopK(k=1, axis=1), [f32(3)], "axis must lie in"),
        refusal(TopK(k=1), [TensorSpec((3,), np.dtype(bool))], "X must have elements of type float or int, got bool"),
        refusal(TopK(k=1), [f32()], "X must have an axis, got a scalar"),
    )

    def draw(self, data):
        op, x = draw_line(data, TopK)
        return op.with_arity(1, data.draw(st.integers(2, 3))), [x]

    def reference(self, op, x):
        return [*greatest(op, x)][: op.n_out]


class TestTopKGradient(OperatorSuite):
    operator = TopKGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(TopKGradient(), [f32(2, 3), i64(2, 2), f32(2, 4)], "must have the same shape"),
        refusal(TopKGradient(), [f32(3, 2), i64(3, 2), f32(2, 4)], "the shape of X"),
        refusal(TopKGradient(), [f32(2, 2), f32(2, 2), f32(2, 4)], "Indices must be integers"),
        refusal(TopKGradient(), [f32(), i64(), f32()], "got a scalar"),
    )

    def draw(self, data):
        op, x = draw_line(data, TopKGradient)
        _, indices, _ = greatest(op, x)
        return op, [data.draw(floats(*indices.shape)), indices, x]

    def reference(self, op, dv, indices, x):
        dx, flat = np.zeros(x.size), greatest(op, x)[2]
        for place, slope in zip(flat, dv.ravel()):
            if place >= 0:
                dx[place] += slope
        return [dx.reshape(x.shape)]


@pytest.mark.parametrize("k", [1, 7, 60])
def test_a_long_axis_gives_what_sorting_gives(k, monkeypatch):
    x = np.random.default_rng(k).integers(0, 50, (5, 500)).astype(np.float32)
    quick = run_plain(TopK(k=k).with_arity(1, 3), [x])
    monkeypatch.setattr(top_k, "LONG", 10_000)
    for got, want in zip(quick, run_plain(TopK(k=k).with_arity(1, 3), [x])):
        np.testing.assert_array_equal(got, want)


def test_what_is_no_number_comes_last():
    x = np.full((1, 300), np.nan, np.float32)
    x[0, [7, 200]] = 1, 2
    values, indices = run_plain(TopK(k=3).with_arity(1, 2), [x])
    assert indices[0, :2].tolist() == [200, 7]
    assert np.isnan(values[0, 2])


def test_k_as_an_input_may_be_zero_but_not_negative():
    values, indices = run_plain(TopK().with_arity(2, 2), [np.zeros(3, np.float32), np.int64([0])])
    assert values.shape == indices.shape == (0,)
    with pytest.raises(ShapeError, match="k must not be negative, got -1"):
        run_plain(TopK().with_arity(2, 2), [np.zeros(3, np.float32), np.int64([-1])])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_integers_in_descending_order(dtype):
    limits = np.iinfo(dtype)
    x = np.array([1, limits.min, 5, limits.max, 5], dtype)
    values, indices = run_plain(TopK(k=4).with_arity(1, 2), [x])
    assert values.dtype == dtype and values.tolist() == [limits.max, 5, 5, 1] and indices.tolist() == [3, 2, 4, 0]


def test_with_k_as_an_input_a_scalar_is_refused_when_it_runs():
    with pytest.raises(ShapeError, match=r"got a scalar; reshape it to \(1,\)"):
        run_plain(TopK().with_arity(2, 2), [np.float32(3), np.int64([1])])


def test_a_few_of_many_are_not_sorted():
    """Half a million elements: sorting takes over ten times as long as one pass."""
    x = np.random.default_rng(0).normal(size=(1, 500_000)).astype(np.float32)
    began = time.thread_time()
    run_plain(TopK(k=5).with_arity(1, 2), [x])
    quick, began = time.thread_time() - began, time.thread_time()
    np.argsort(-x, kind="stable")
    assert quick < (time.thread_time() - began)
