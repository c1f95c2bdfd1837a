"""EnsureClipped, dense and sparse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.updates.ensure_clipped import EnsureClipped
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestEnsureClipped(OperatorSuite):
    operator = EnsureClipped
    wrt = ()
    no_gradient = "it has none: it updates parameters"
    refusals = (
        refusal(EnsureClipped(min=1.0, max=0.0), [f32(3)], "min must not exceed max", ArgumentError),
        refusal(EnsureClipped(), [i32(3)], "the inputs must have one floating type, got param int32"),
        refusal(EnsureClipped(), [f32(3), f32(2), f32(2)], "indices must have elements of type int, got float32"),
        refusal(EnsureClipped(), [f32(), i32(2), f32(2)], r"param must have shape \(R, \*S\)"),
    )

    def draw(self, data):
        param = data.draw(floats((1, 4), (1, 3)))
        op = EnsureClipped(min=data.draw(st.sampled_from([-1.0, 0.0])), max=1.0)
        if data.draw(st.booleans()):
            return op, [param]
        rows = np.array(data.draw(st.lists(st.integers(0, len(param) - 1), max_size=5)), np.int64)
        return op, [param, rows, param[rows]]

    def reference(self, op, param, *sparse):
        held = param.copy()
        for row in set(sparse[0].tolist()) if sparse else range(len(param)):
            held[row] = np.clip(param[row], op.min, op.max)
        return [held]


@pytest.mark.parametrize("row", [-1, 3])
def test_rows_that_are_not_there_are_refused(row):
    param = np.zeros((3, 2), np.float32)
    with pytest.raises(IndexError, match=r"EnsureClipped: indices must lie in \[0, 3\)"):
        run_plain(EnsureClipped(), [param, np.int32([row]), param[:1]])
