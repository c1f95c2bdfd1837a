"""FlexibleTopK and its gradient."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.reductions.flexible_top_k import FlexibleTopK, FlexibleTopKGradient
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal


def draw_rows(data):
    x = data.draw(floats((1, 3), (1, 2), (1, 4), apart=0.1))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    return x, rng.integers(1, x.shape[2] + 1, (*x.shape[:2], 1))


def greatest(x, k):
    """Return for each row the positions of its largest elements."""
    rows = x.reshape(-1, x.shape[-1])
    return [sorted(range(len(row)), key=lambda i: -row[i])[:n] for row, n in zip(rows, k.ravel())]


class TestFlexibleTopK(OperatorSuite):
    operator = FlexibleTopK
    refusals = (
        refusal(FlexibleTopK(), [f32(2, 3), i64(3)], "one number per row"),
        refusal(FlexibleTopK(), [f32(2, 3), i32(2)], "K must have elements of type int64, got int32"),
        refusal(FlexibleTopK(), [i32(2, 3), i64(2)], "one floating type"),
        refusal(FlexibleTopK(), [f32(2, 3), i64(2)], "only when the net runs", NotImplementedError),
    )

    def draw(self, data):
        return FlexibleTopK(), [*draw_rows(data)]

    def reference(self, op, x, k):
        places = greatest(x, k)
        values = [row[i] for row, chosen in zip(x.reshape(-1, x.shape[-1]), places) for i in chosen]
        return [np.array(values), np.concatenate(places)]


class TestFlexibleTopKGradient(OperatorSuite):
    operator = FlexibleTopKGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            FlexibleTopKGradient(),
            [f32(2, 3), i64(2), f32(4), i64(3)],
            r"Indices must have the shape of dValues, \(4,\)",
        ),
        refusal(FlexibleTopKGradient(), [f32(2, 3), i64(2), i64(4), i64(4)], "one floating type"),
    )

    def draw(self, data):
        x, k = draw_rows(data)
        indices = np.concatenate(greatest(x, k)).astype(np.int64)
        return FlexibleTopKGradient(), [x, k, data.draw(floats(len(indices))), indices]

    def reference(self, op, x, k, dv, indices):
        dx, n = np.zeros((k.size, x.shape[-1])), 0
        for row, count in enumerate(k.ravel()):
            for _ in range(count):
                dx[row, indices[n]], n = dv[n], n + 1
        return [dx.reshape(x.shape)]


@pytest.mark.parametrize("k", [0, 4])
def test_numbers_out_of_range(k):
    with pytest.raises(ShapeError, match=r"K must lie in \[1, 3\], got"):
        run_plain(FlexibleTopK(), [np.ones((2, 3), np.float32), np.int64([2, k])])


def test_gradients_that_do_not_fit():
    x, k = np.ones((2, 3), np.float32), np.int64([1, 1])
    with pytest.raises(ShapeError, match="dV must have 2 elements, the sum of K, got 3"):
        run_plain(FlexibleTopKGradient(), [x, k, np.ones(3, np.float32), np.zeros(3, np.int64)])
    with pytest.raises(IndexError, match=r"indices must lie in \[0, 3\), got 3"):
        run_plain(FlexibleTopKGradient(), [x, k, np.ones(2, np.float32), np.int64([0, 3])])
