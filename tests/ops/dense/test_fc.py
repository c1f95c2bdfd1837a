"""Fully connected layers and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.dense.fc import FC, FCGradient, FCTransposed, FCTransposedGradient
from suite import OperatorSuite, f32, floats, refusal

TRANSPOSED = (FCTransposed, FCTransposedGradient)  # W has the inputs as rows


def draw_fc(data, cls):
    """Draw an operator, X and W; both may have more axes than two."""
    draw = data.draw
    outer = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 2)))]
    inner = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 2)))]
    outputs, inputs = draw(st.integers(1, 3)), int(np.prod(inner))
    axis_w = draw(st.integers(1, 2))
    columns = [inputs, outputs] if cls in TRANSPOSED else [outputs, inputs]
    shape = [columns[0], 1, columns[1]] if axis_w == 2 else columns
    axis = len(outer) if draw(st.booleans()) else -len(inner)
    return cls(axis=axis, axis_w=axis_w), [draw(floats(*outer, *inner)), draw(floats(*shape))], outer, outputs


def matrices(op, x, w):
    """Return X and W, (inputs, outputs), as matrices."""
    axis = op.axis % x.ndim
    k = int(np.prod(x.shape[axis:]))
    return x.reshape(-1, k), w.reshape(k, -1) if type(op) in TRANSPOSED else w.reshape(-1, k).T, x.shape[:axis]


REFUSED = [
    ({}, [f32(2, 3), f32(4, 5), f32(4)], r"X \(2, 3\) flattened at axis 1 has rows of 3, but W \(4, 5\)"),
    ({"axis": 3}, [f32(2, 3), f32(4, 3), f32(4)], r"axis must lie in \[-2, 2\]"),
    ({"axis_w": 3}, [f32(2, 3), f32(4, 3), f32(4)], r"axis_w must lie in \[-2, 2\]"),
]


class TestFC(OperatorSuite):
    operator = FC
    wrt = (0, 1, 2)
    refusals = (
        *(refusal(FC(**args), specs, match) for args, specs, match in REFUSED),
        refusal(FC(), [f32(2, 3), f32(4, 3), f32(3)], r"b must have shape \(4,\)"),
    )

    def draw(self, data):
        op, arrays, _, outputs = draw_fc(data, self.operator)
        return op, [*arrays, data.draw(floats(outputs))]

    def reference(self, op, x, w, b):
        rows, columns, lead = matrices(op, x, w)
        return [(np.einsum("mk,kn->mn", rows, columns) + b).reshape(*lead, -1)]


class TestFCTransposed(TestFC):
    operator = FCTransposed
    refusals = (
        refusal(FCTransposed(), [f32(2, 3), f32(4, 3), f32(4)], r"b must have shape \(3,\) = \(prod\(D\),\)"),
        refusal(FCTransposed(), [f32(2, 3), f32(3, 4), f32(3)], r"b must have shape \(4,\)"),
    )


class TestFCGradient(OperatorSuite):
    operator = FCGradient
    no_gradient = "a gradient operator"
    refusals = (
        *(refusal(FCGradient(**args), [*specs[:2], f32(2, 4)], match) for args, specs, match in REFUSED),
        refusal(FCGradient(), [f32(2, 3), f32(4, 3), f32(2, 3)], r"dY must have shape \(2, 4\) = \(\*A, prod\(C\)\)"),
    )

    def draw(self, data):
        op, arrays, outer, outputs = draw_fc(data, self.operator)
        return op.with_arity(3, data.draw(st.integers(2, 3))), [*arrays, data.draw(floats(*outer, outputs))]

    def reference(self, op, x, w, dy):
        rows, columns, _ = matrices(op, x, w)
        slopes = dy.reshape(len(rows), -1)
        dw = np.einsum("mk,mn->kn" if type(op) in TRANSPOSED else "mk,mn->nk", rows, slopes).reshape(w.shape)
        return [dw, slopes.sum(axis=0), np.einsum("mn,kn->mk", slopes, columns).reshape(x.shape)][: op.n_out]


class TestFCTransposedGradient(TestFCGradient):
    operator = FCTransposedGradient
    refusals = (
        refusal(
            FCTransposedGradient(),
            [f32(2, 3), f32(3, 4), f32(2, 3)],
            r"dY must have shape \(2, 4\) = \(\*A, prod\(D\)\)",
        ),
    )


@pytest.mark.parametrize(
    "forward, backward, w", [(FC, FCGradient, f32(5, 12)), (FCTransposed, FCTransposedGradient, f32(12, 5))]
)
def test_cost(forward, backward, w):
    x, y = f32(4, 2, 6), f32(4, 5)
    assert forward().flops(x, w, f32(5)) == 2 * 4 * 12 * 5 + 4 * 5
    assert backward().with_arity(3, 3).flops(x, w, y) == 4 * 4 * 12 * 5 + 4 * 5
    assert backward().with_arity(3, 2).flops(x, w, y) == 2 * 4 * 12 * 5 + 4 * 5
