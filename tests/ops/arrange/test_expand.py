"""Expand and its gradient."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.arrange.expand import Expand, ExpandGradient
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i64, refusal


def draw_shapes(data):
    """Return a shape, and another one that it joins with."""
    whole = data.draw(st.lists(st.integers(1, 3), max_size=4))
    shape = [data.draw(st.sampled_from([n, 1])) for n in whole]
    asked = [data.draw(st.sampled_from([n, 1])) for n in whole]
    return shape[data.draw(st.integers(0, len(shape))) :], asked


class TestExpand(OperatorSuite):
    operator = Expand
    refusals = (
        refusal(Expand(), [f32(2, 3), i64(2)], "only when the net runs", ShapeError),
        refusal(Expand(), [f32(2, 3), f32(2)], "must be a vector of integers"),
        refusal(Expand(), [f32(2, 3), TensorSpec((1,), np.dtype(np.int64), known=(2,))], "must be equal or 1"),
    )

    def draw(self, data):
        shape, asked = draw_shapes(data)
        return Expand(), [data.draw(floats(*shape)), np.int64(asked)]

    def reference(self, op, x, asked):
        return [x + np.zeros(asked)]


def test_the_shape_as_an_argument():
    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    (y,) = run_plain(Expand(shape=(2, 1, 2)), [x])
    assert np.array_equal(y, np.broadcast_to(x, (2, 3, 2)))
    assert Expand(shape=(2, 1, 2)).infer(f32(3, 1))[0].shape == (2, 3, 2)


class TestExpandGradient(OperatorSuite):
    operator = ExpandGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(ExpandGradient(), [f32(2, 3), f32(2)], "cannot be broadcast to dY"),)

    def draw(self, data):
        shape, asked = draw_shapes(data)
        x = data.draw(floats(*shape))
        return ExpandGradient(), [data.draw(floats(*(x + np.zeros(asked)).shape)), x]

    def reference(self, op, dy, x):
        dx = np.zeros(x.shape)
        for place in np.ndindex(dy.shape):
            inner = place[dy.ndim - x.ndim :]
            dx[tuple(i if n > 1 else 0 for i, n in zip(inner, x.shape))] += dy[place]
        return [dx]


def test_shapes_that_do_not_join():
    with pytest.raises(ShapeError, match=r"X \(3,\) and shape \(2,\), aligned at the last axis"):
        run_plain(Expand(), [np.ones(3, np.float32), np.int64([2])])


def test_an_extent_of_minus_one_is_kept():
    x = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
    (y,) = run_plain(Expand(), [x, np.int64([2, -1, 2])])
    assert np.array_equal(y, np.tile(x, (2, 1, 2)))
    with pytest.raises(ShapeError, match="Expand: Y must have at most 32 axes, got 51"):
        run_plain(Expand(), [x, np.ones(51, np.int64)])
    with pytest.raises(ShapeError, match=r"extents must not be negative, except -1, got \(-2, 1\)"):
        run_plain(Expand(), [x, np.int64([-2, 1])])


def test_a_known_shape_is_inferred():
    known = TensorSpec((2,), np.dtype(np.int64), known=(4, 1))
    assert Expand().static_for(f32(3), known)
    assert Expand().infer(f32(3), known)[0].shape == (4, 3)
