"""Matrix products."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import check_forward
from netbuilder.ops.dense.matmul import BatchMatMul, MatMul
from suite import OperatorSuite, f32, floats, refusal


def parts(draw, size):
    """Draw extents whose product is ``size``: one or two of them."""
    return [size] if draw(st.booleans()) else [1, size]


class TestMatMul(OperatorSuite):
    operator = MatMul
    wrt = (0, 1)
    refusals = (
        refusal(MatMul(), [f32(3, 5), f32(4, 5)], "the inner extents must be equal"),
        refusal(MatMul(axis_a=3), [f32(3, 5), f32(5, 4)], r"axis_a must lie in \[-2, 2\]"),
        refusal(MatMul(axis_b=-3), [f32(3, 5), f32(5, 4)], r"axis_b must lie in \[-2, 2\]"),
        refusal(MatMul(), [f32(3, 5), f32(5, 4), f32(11)], "3 x 4 elements"),
    )

    def draw(self, data):
        op, inputs = self.draw_gradient(data)
        if data.draw(st.booleans()):
            a, b = inputs
            shape = self.reference(op, a, b)[0].shape
            inputs.append(np.zeros((shape[1], shape[0]), np.float32))
        return op, inputs

    def draw_gradient(self, data):
        draw = data.draw
        m, n, k = (draw(st.integers(1, 4)) for _ in range(3))
        trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
        rows_a, columns_a = (parts(draw, size) for size in ((k, m) if trans_a else (m, k)))
        rows_b, columns_b = (parts(draw, size) for size in ((n, k) if trans_b else (k, n)))
        op = MatMul(axis_a=len(rows_a), axis_b=-len(columns_b), trans_a=trans_a, trans_b=trans_b)
        return op, [draw(floats(*rows_a, *columns_a)), draw(floats(*rows_b, *columns_b))]

    def reference(self, op, a, b, like=None):
        left = a.reshape(int(np.prod(a.shape[: op.axis_a])), -1)
        right = b.reshape(-1, int(np.prod(b.shape[op.axis_b :])))
        indices = ("km" if op.trans_a else "mk") + "," + ("nk" if op.trans_b else "kn") + "->mn"
        y = np.einsum(indices, left, right)
        return [y if like is None else y.reshape(like.shape)]


class TestBatchMatMul(OperatorSuite):
    operator = BatchMatMul
    wrt = (0, 1)
    refusals = (
        refusal(BatchMatMul(), [f32(), f32(2, 3)], r"must not be scalars, got \(\) and \(2, 3\)"),
        refusal(BatchMatMul(), [f32(3), f32(2, 4, 3)], "inner extents .* must be equal, got 3 and 4"),
        refusal(BatchMatMul(), [f32(2, 3, 5), f32(2, 4, 5)], "inner extents .* must be equal, got 5 and 4"),
        refusal(BatchMatMul(), [f32(2, 3, 5), f32(1, 5, 4)], "or set broadcast=1"),
        refusal(BatchMatMul(broadcast=True), [f32(2, 3, 5), f32(3, 5, 4)], "cannot be broadcast together"),
    )

    def draw(self, data, broadcast=True):
        draw = data.draw
        m, n, k = (draw(st.integers(1, 3)) for _ in range(3))
        trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
        stack_a = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
        stack_b = list(stack_a)
        if broadcast and draw(st.booleans()):
            stack_b = [n if draw(st.booleans()) else 1 for n in stack_b[draw(st.integers(0, len(stack_b))) :]]
            if draw(st.booleans()):
                stack_a = [n if draw(st.booleans()) else 1 for n in stack_a]
        op = BatchMatMul(trans_a=trans_a, trans_b=trans_b, broadcast=broadcast)
        a = draw(floats(*stack_a, *((k, m) if trans_a else (m, k))))
        return op, [a, draw(floats(*stack_b, *((n, k) if trans_b else (k, n))))]

    def draw_gradient(self, data):
        return self.draw(data, broadcast=data.draw(st.booleans()))

    def reference(self, op, a, b):
        indices = ("...km" if op.trans_a else "...mk") + "," + ("...nk" if op.trans_b else "...kn") + "->...mn"
        return [np.einsum(indices, a, b)]


def test_cost():
    assert MatMul(trans_b=True).flops(f32(3, 2, 5), f32(4, 10)) == 2 * 3 * 10 * 4
    assert BatchMatMul(trans_a=True).flops(f32(2, 5, 3), f32(2, 5, 4)) == 2 * 2 * 3 * 5 * 4


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [
        ((4,), (4,), (1,)),
        ((4,), (4, 3), (3,)),
        ((3, 4), (4,), (3,)),
        ((4,), (2, 4, 3), (2, 3)),
        ((2, 3, 4), (4,), (2, 3)),
    ],
)
def test_vectors_are_rows_and_columns(a, b, shape):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(extents).astype(np.float32) for extents in (a, b)]
    check_forward(BatchMatMul(), inputs, [np.matmul(*(x.astype(np.float64) for x in inputs)).reshape(shape)])


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [
        ((2, 3, 4, 5), (1, 3, 5, 2), (2, 3, 4, 2)),
        ((2, 1, 1, 4, 5), (3, 1, 5, 2), (2, 3, 1, 4, 2)),
        ((6, 4, 5), (5, 2), (6, 4, 2)),
        ((4, 5), (6, 5, 2), (6, 4, 2)),
    ],
)
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_stacks_that_are_broadcast_are_not_copied(a, b, shape, trans_a, trans_b):
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(extents).astype(np.float32) for extents in (a, b))
    stored = [np.ascontiguousarray(x.swapaxes(-1, -2)) if t else x for x, t in ((left, trans_a), (right, trans_b))]
    exact = np.matmul(left.astype(np.float64), right.astype(np.float64))
    assert exact.shape == shape
    check_forward(BatchMatMul(trans_a=trans_a, trans_b=trans_b, broadcast=True), stored, [exact])
