"""PiecewiseLinearTransform."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features.piecewise_linear import PiecewiseLinearTransform
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal

LINE = {"bounds": (0.0, 1.0), "slopes": (1.0,), "intercepts": (0.0,)}


class TestPiecewiseLinearTransform(OperatorSuite):
    operator = PiecewiseLinearTransform
    no_gradient = "it has none"
    refusals = (
        refusal(PiecewiseLinearTransform(), [f32(3, 1)], "all as arguments or all as inputs", ArgumentError),
        refusal(PiecewiseLinearTransform(**LINE), [f32(3, 1), f32(2), f32(1), f32(1)], "all as inputs", ArgumentError),
        refusal(PiecewiseLinearTransform(bounds=(0, 1)), [f32(3, 1)], "with 2, 0, 0 numbers", ArgumentError),
        refusal(PiecewiseLinearTransform(**LINE), [f32(3)], r"must be \(samples, columns\)"),
        refusal(PiecewiseLinearTransform(**LINE), [f32(3, 2)], "for 2 functions, got 2, 1 and 1 numbers"),
        refusal(PiecewiseLinearTransform(**LINE, binary=True), [f32(3, 3)], "one or two columns"),
        refusal(PiecewiseLinearTransform(), [f32(3, 1), i32(2), f32(1), f32(1)], "one floating type"),
    )

    def draw(self, data):
        draw = data.draw
        binary, pieces, columns = draw(st.booleans()), draw(st.integers(1, 3)), draw(st.integers(1, 2))
        groups = 1 if binary else columns
        shape = (draw(st.integers(0, 5)), columns)
        x = draw(floats(*(shape[:1] if binary and draw(st.booleans()) else shape)))
        bounds = np.sort(draw(floats(groups, pieces + 1, apart=0.3, low=-1)), axis=1)
        lists = [a.ravel() for a in (bounds, draw(floats(groups, pieces)), draw(floats(groups, pieces)))]
        if draw(st.booleans()):
            return PiecewiseLinearTransform(binary=binary).with_arity(4, 1), [x, *lists]
        return PiecewiseLinearTransform(*(tuple(map(float, a)) for a in lists), binary), [x]

    def reference(self, op, x, *lists):
        columns = x if x.ndim == 2 else x[:, None]
        groups = 1 if op.binary else columns.shape[1]
        lists = lists or (op.bounds, op.slopes, op.intercepts)
        bounds, slopes, intercepts = (np.float64(np.float32(a)).reshape(groups, -1) for a in lists)
        y = np.zeros((len(x), groups))
        for i, g in np.ndindex(y.shape):
            value = min(max(columns[i, g - groups], bounds[g, 0]), bounds[g, -1])
            piece = next(p for p in range(slopes.shape[1]) if value <= bounds[g, p + 1])
            y[i, g] = value * slopes[g, piece] + intercepts[g, piece]
        if groups < columns.shape[1]:
            y = np.concatenate([1 - y, y], axis=1)
        return [y.reshape(x.shape)]


def test_bounds_must_rise():
    falling = PiecewiseLinearTransform(bounds=(1, 0), slopes=(1,), intercepts=(1,))
    with pytest.raises(ShapeError, match="the bounds of each function must ascend"):
        run_plain(falling, [np.ones((2, 1), np.float32)])
