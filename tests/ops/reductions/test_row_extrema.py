"""ColwiseMax and RowwiseMax, and their gradients."""

from __future__ import annotations

import numpy as np

from netbuilder.ops.reductions.row_extrema import ColwiseMax, ColwiseMaxGradient, RowwiseMax, RowwiseMaxGradient
from suite import OperatorSuite, f32, floats, i32, refusal


class _Max(OperatorSuite):
    def draw(self, data):
        return self.operator(), [data.draw(floats((1, 3), (1, 3), (1, 3), apart=0.1))]

    def reference(self, op, x):
        return [np.array([[max(line) for line in (m if op.reduced == 2 else m.T)] for m in x])]


class TestColwiseMax(_Max):
    operator = ColwiseMax
    refusals = (
        refusal(ColwiseMax(), [f32(3, 4)], r"X must have shape \(B, M, N\)"),
        refusal(ColwiseMax(), [f32(3, 0, 4)], "no elements to choose from"),
        refusal(ColwiseMax(), [i32(3, 1, 4)], "one floating type"),
    )


class TestRowwiseMax(_Max):
    operator = RowwiseMax
    refusals = (refusal(RowwiseMax(), [f32(3, 4, 0)], "no elements to choose from"),)


class _MaxGradient(OperatorSuite):
    no_gradient = "a gradient operator"

    def draw(self, data):
        x = data.draw(floats((1, 3), (1, 3), (1, 3), apart=0.1))
        y = x.max(axis=self.operator.reduced)
        return self.operator(), [x, y, data.draw(floats(*y.shape))]

    def reference(self, op, x, y, dy):
        dx = np.zeros(x.shape)
        for b, i in np.ndindex(dy.shape):
            line = (b, i) if op.reduced == 2 else (b, slice(None), i)
            dx[line][np.argmax(x[line])] = dy[b, i]
        return [dx]


class TestColwiseMaxGradient(_MaxGradient):
    operator = ColwiseMaxGradient
    refusals = (refusal(ColwiseMaxGradient(), [f32(2, 3, 4), f32(2, 3), f32(2, 4)], r"Y must have shape \(2, 4\)"),)


class TestRowwiseMaxGradient(_MaxGradient):
    operator = RowwiseMaxGradient
    refusals = (
        refusal(RowwiseMaxGradient(), [f32(2, 3, 4), f32(2, 3), f32(2, 4)], r"dY must have the shape of Y, \(2, 3\)"),
    )
