"""ConcatBatchMatMulBatchGatherOp."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.dense.pairwise_products import ConcatBatchMatMulBatchGatherOp
from suite import OperatorSuite, f32, floats, i32, refusal


class TestConcatBatchMatMulBatchGatherOp(OperatorSuite):
    operator = ConcatBatchMatMulBatchGatherOp
    no_gradient = "as in Caffe2"
    rtol, atol = 1e-5, 1e-5
    refusals = (
        refusal(operator(), [f32(3), f32(2, 4)], "indices must have elements of type int32 or int64, got float32"),
        refusal(operator(), [i32(3), f32(2, 4), f32(2, 3)], r"input 2, X, must have the shape of X, \(2, 4\)"),
    )

    def draw(self, data):
        count = data.draw(st.integers(1, 3))
        indices = np.array(data.draw(st.lists(st.integers(0, count**2 - 1), max_size=5)), np.int32)
        return self.operator(), [indices, *(data.draw(floats(2, 4)) for _ in range(count))]

    def reference(self, op, indices, *xs):
        y = np.zeros((2, indices.size))
        for k, index in enumerate(indices.tolist()):
            y[:, k] = (xs[index // len(xs)] * xs[index % len(xs)]).sum(axis=1)
        return [y]


def test_indices_out_of_range():
    with pytest.raises(IndexError, match=r"must lie in \[0, 4\), got 4"):
        run_plain(ConcatBatchMatMulBatchGatherOp(), [np.int32([4]), *[np.zeros((2, 4), np.float32)] * 2])
