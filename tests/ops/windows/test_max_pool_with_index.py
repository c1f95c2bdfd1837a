"""MaxPoolWithIndex and its gradient."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.windows.max_pool_with_index import MaxPoolWithIndex, MaxPoolWithIndexGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, TensorSpec, f32, floats, i32, i64, refusal


def draw_pool(data, cls):
    if data.draw(st.booleans()):
        args = {"global_pooling": True}
    else:
        args = {"kernel": 2, "stride": data.draw(st.integers(1, 2)), "pad": data.draw(st.integers(0, 1))}
    return cls(**args), data.draw(floats((1, 2), (1, 2), (2, 4), (2, 4), apart=0.1))


def pooled(op, x):
    """Return the maxima, and their positions in the planes."""
    n, c, h, w = x.shape
    kernel, stride, pad = (max(h, w), 1, 0) if op.global_pooling else (op.kernel, op.stride, op.pad)
    counts = (1, 1) if op.global_pooling else [(extent + 2 * pad - 2) // stride + 1 for extent in (h, w)]
    y, where = np.zeros((n, c, *counts)), np.zeros((n, c, *counts), int)
    for at in np.ndindex(y.shape):
        rows, columns = (
            [k for k in range(s * stride - pad, s * stride - pad + kernel) if 0 <= k < extent]
            for s, extent in zip(at[2:], (h, w))
        )
        y[at], where[at] = max((x[at[:2]][i, j], i * w + j) for i in rows for j in columns)
    return y, where


class TestMaxPoolWithIndex(OperatorSuite):
    operator = MaxPoolWithIndex
    refusals = (
        refusal(MaxPoolWithIndex(kernel=2), [i32(1, 1, 4, 4)], "one floating type"),
        refusal(MaxPoolWithIndex(kernel=5), [f32(1, 1, 4, 4)], "does not fit"),
        refusal(MaxPoolWithIndex(kernel=2, order="NHWC"), [f32(1, 1, 4, 4)], "order must be NCHW", ArgumentError),
    )

    def draw(self, data):
        op, x = draw_pool(data, MaxPoolWithIndex)
        return op, [x]

    def reference(self, op, x):
        return [*pooled(op, x)]


class TestMaxPoolWithIndexGradient(OperatorSuite):
    operator = MaxPoolWithIndexGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            MaxPoolWithIndexGradient(kernel=2),
            [f32(1, 1, 4, 4), f32(1, 1, 2, 3), i32(1, 1, 2, 3)],
            r"dY must have the shape of Y, \(1, 1, 3, 3\)",
        ),
        refusal(
            MaxPoolWithIndexGradient(kernel=2),
            [f32(1, 1, 4, 4), f32(1, 1, 3, 3), i64(1, 1, 3, 3)],
            "Index must have elements of type int32, got int64",
        ),
    )

    def draw(self, data):
        op, x = draw_pool(data, MaxPoolWithIndexGradient)
        where = pooled(op, x)[1].astype(np.int32)
        return op, [x, data.draw(floats(*where.shape)), where]

    def reference(self, op, x, dy, where):
        dx = np.zeros(x.shape)
        for at in np.ndindex(dy.shape):
            dx[at[:2]].flat[where[at]] += dy[at]
        return [dx]


def test_of_equals_the_first():
    """Also where all are infinitely small, and in half precision."""
    for value in (1.0, -np.inf):
        x = np.full((1, 1, 3, 3), value, np.float16)
        y, where = run_plain(MaxPoolWithIndex(kernel=2, pad=1, stride=2), [x])
        assert y.dtype == np.float16
        assert (y == value).all()
        assert where.tolist() == [[[[0, 1], [3, 4]]]]


def test_places_outside_of_the_plane():
    x, dy = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 1, 1), np.float32)
    with pytest.raises(IndexError, match=r"indices must lie in \[0, 4\), got 4"):
        run_plain(MaxPoolWithIndexGradient(kernel=2), [x, dy, np.full((1, 1, 1, 1), 4, np.int32)])


def test_specs_name_the_type_of_places():
    x = f32(1, 2, 4, 4)
    assert MaxPoolWithIndex(kernel=2).infer(x)[1] == TensorSpec((1, 2, 3, 3), np.dtype(np.int32))
