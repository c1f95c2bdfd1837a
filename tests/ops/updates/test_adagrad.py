"""Adagrad and SparseAdagrad."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import DEVICES, run_plain
from netbuilder.ops.updates.adagrad import Adagrad, SparseAdagrad
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal


class TestAdagrad(OperatorSuite):
    operator = Adagrad
    no_gradient = "an update"
    refusals = (
        refusal(Adagrad(), [f32(2), f32(3), f32(2), f32(1)], "moment must have the shape of param"),
        refusal(Adagrad(), [f32(2), f32(2), f32(2), f32(2)], r"lr must have one element, got shape \(2,\)"),
        refusal(Adagrad(decay=1.5), [f32(2)] * 3 + [f32(1)], r"decay must lie in \[0, 1\], got 1.5", ArgumentError),
        refusal(Adagrad(epsilon=-1.0), [f32(2)] * 3 + [f32(1)], "epsilon must lie in", ArgumentError),
    )

    def draw(self, data):
        p = data.draw(floats((1, 4), (1, 4)))
        h = data.draw(floats(*p.shape, low=0.01, high=2.0))
        op = data.draw(st.sampled_from([Adagrad(), Adagrad(epsilon=0.1, decay=0.5), Adagrad(weight_decay=0.5)]))
        return op.with_arity(4, data.draw(st.integers(2, 4))), [p, h, data.draw(floats(*p.shape)), np.float32([-0.1])]

    def reference(self, op, p, h, g, lr):
        g = g + op.weight_decay * p
        h = op.decay * h + g**2
        effective = lr / (h**0.5 + op.epsilon)
        return [p + effective * g, h, effective, effective * g][: op.n_out]


def _draw_rows(data, index_type):
    p = data.draw(floats((1, 5), (1, 3)))
    indices = np.array(data.draw(st.lists(st.integers(0, len(p) - 1), max_size=7)), index_type)
    return p, indices, data.draw(floats(len(indices), p.shape[1]))


class TestSparseAdagrad(OperatorSuite):
    operator = SparseAdagrad
    no_gradient = "an update"
    refusals = (
        refusal(SparseAdagrad(), [f32(5, 2), f32(5, 2), i32(3), f32(2, 2), f32(1)], r"grad must have shape \(3, 2\)"),
        refusal(
            SparseAdagrad(),
            [f32(5, 2), f32(5, 2), f32(3), f32(3, 2), f32(1)],
            "indices must have elements of type int32 or int64, got float32",
        ),
        refusal(
            SparseAdagrad(weight_decay=-1.0),
            [f32(5, 2), f32(5, 2), i32(3), f32(3, 2), f32(1)],
            r"weight_decay must lie in \[0, inf\], got -1.0",
            ArgumentError,
        ),
        refusal(SparseAdagrad(), [f32(), f32(), i64(3), f32(3), f32(1)], r"param must have shape \(R, \*S\)"),
        refusal(
            SparseAdagrad(), [f32(5, 2), f32(4, 2), i64(3), f32(3, 2), f32(1)], "moment must have the shape of param"
        ),
    )

    def draw(self, data):
        p, indices, g = _draw_rows(data, data.draw(st.sampled_from([np.int32, np.int64])))
        h = data.draw(floats(*p.shape, low=0.01, high=2.0))
        op = SparseAdagrad(epsilon=1e-3, weight_decay=data.draw(st.sampled_from([0.0, 0.1])))
        return op, [p, h, indices, g, np.float32([-0.1])]

    def reference(self, op, p, h, indices, g, lr):
        p, h = p.copy(), h.copy()
        for row, d in zip(indices, g):
            d = d + op.weight_decay * p[row]
            h[row] += d**2
            p[row] += lr * d / (np.sqrt(h[row]) + op.epsilon)
        return [p, h]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_the_table_is_refused(index, device):
    p = np.ones((3, 2), np.float32)
    with pytest.raises(ShapeError, match=rf"SparseAdagrad: indices must lie in \[0, 3\), got {index}"):
        run_plain(SparseAdagrad(), [p, p, np.int32([0, index]), p[:2], np.float32([0.1])], device)


def test_a_one_dimensional_table():
    p, h = np.float32([1, 2, 3]), np.float32([0, 0, 0])
    g = np.float32([2, 4])
    p_new, h_new = run_plain(SparseAdagrad(epsilon=0.0), [p, h, np.int64([2, 0]), g, np.float32([-0.5])])
    np.testing.assert_allclose(p_new, [0.5, 2, 2.5])
    np.testing.assert_allclose(h_new, [16, 0, 4])
