"""Rows with one index added up."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.updates.sum_repeated_rows import SumRepeatedRows
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestSumRepeatedRows(OperatorSuite):
    operator = SumRepeatedRows
    no_gradient = "it has none"
    refusals = (
        refusal(SumRepeatedRows(), [f32(3), f32(3, 2)], "indices must be int32 or int64"),
        refusal(SumRepeatedRows(), [i32(3), i32(3, 2)], "values must hold floating-point numbers"),
        refusal(SumRepeatedRows(num_rows=-1), [i32(3), f32(3)], "num_rows must not be negative", ArgumentError),
        refusal(SumRepeatedRows(), [i32(3), f32(2, 3)], r"one row per index, indices have shape \(3,\), got \(2, 3\)"),
    )

    def draw(self, data):
        shape = data.draw(st.sampled_from([(), (0,), (1,), (6,), (2, 4), (2, 2, 2)]))
        seed = data.draw(st.integers(0, 99))
        indices = np.random.default_rng(seed).integers(0, 4, shape, data.draw(st.sampled_from([np.int32, np.int64])))
        op = SumRepeatedRows(num_rows=data.draw(st.sampled_from([0, 4, 9])))
        return op, [indices, data.draw(floats(*shape, *data.draw(st.sampled_from([(), (3,), (2, 2)]))))]

    def reference(self, op, indices, values):
        rows = sorted(set(indices.reshape(-1).tolist()))
        each = values.reshape(-1, *values.shape[indices.ndim :])
        sums = [each[indices.reshape(-1) == row].sum(axis=0) for row in rows]
        found = [np.array(rows, indices.dtype), np.array(sums).reshape(len(rows), *each.shape[1:])]
        if not op.num_rows:
            return found
        ordered = np.sort(indices.reshape(-1))
        places = np.searchsorted(ordered, found[0])
        padded = [np.full(indices.size, np.iinfo(indices.dtype).min, indices.dtype), np.zeros(each.shape, each.dtype)]
        for target, values in zip(padded, found):
            target[places] = values
        return padded
