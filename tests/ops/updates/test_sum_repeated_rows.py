"""Rows with one index added up."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.updates.sum_repeated_rows import SumRepeatedRows
from suite import OperatorSuite, f32, floats, i32, refusal


class TestSumRepeatedRows(OperatorSuite):
    operator = SumRepeatedRows
    no_gradient = "it has none"
    refusals = (
        refusal(SumRepeatedRows(), [f32(3), f32(3, 2)], "indices must be int32 or int64"),
        refusal(SumRepeatedRows(), [i32(3), i32(3, 2)], "values must hold floating-point numbers"),
        refusal(SumRepeatedRows(), [i32(3), f32(2, 3)], r"one row per index, indices have shape \(3,\), got \(2, 3\)"),
    )

    def draw(self, data):
        shape = data.draw(st.sampled_from([(), (0,), (1,), (6,), (2, 4), (2, 2, 2)]))
        seed = data.draw(st.integers(0, 99))
        indices = np.random.default_rng(seed).integers(0, 4, shape, data.draw(st.sampled_from([np.int32, np.int64])))
        return SumRepeatedRows(), [indices, data.draw(floats(*shape, *data.draw(st.sampled_from([(), (3,), (2, 2)]))))]

    def reference(self, op, indices, values):
        rows = sorted(set(indices.reshape(-1).tolist()))
        each = values.reshape(-1, *values.shape[indices.ndim :])
        sums = [each[indices.reshape(-1) == row].sum(axis=0) for row in rows]
        return [np.array(rows, indices.dtype), np.array(sums).reshape(len(rows), *each.shape[1:])]
