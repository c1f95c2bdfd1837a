"""SparseNormalize, Float16SparseNormalize and SparseLpRegularizer."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import DEVICES, run_plain
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.updates.sparse_regularize import Float16SparseNormalize, SparseLpRegularizer, SparseNormalize
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal

F16 = TensorSpec((4, 2), np.dtype(np.float16))


class _Rows(OperatorSuite):
    no_gradient = "an update"

    def options(self, data):
        raise NotImplementedError(f"{type(self).__name__}: options returns the arguments")

    def draw(self, data):
        row = data.draw(st.sampled_from([(3,), (2, 2)]))
        kind = data.draw(st.sampled_from([np.int32, np.int64]))
        indices = np.array(data.draw(st.lists(st.integers(0, 3), max_size=6)), kind)
        grad = [data.draw(floats(len(indices), *row))] if data.draw(st.booleans()) else []
        op = self.operator(**self.options(data)).with_arity(2 + len(grad), 1)
        return op, [self.table(data.draw(floats(4, *row, avoid=0.0))), indices, *grad]

    def table(self, p):
        return p

    def reference(self, op, p, indices, grad=None):
        p = p.copy()
        for i in indices:
            p[i] = self.row(op, p[i])
        return [p]


class TestSparseNormalize(_Rows):
    operator = SparseNormalize
    refusals = (
        refusal(SparseNormalize(), [F16, i32(1)], "param must have elements of type float32 or float64"),
        refusal(SparseNormalize(), [f32(), i32(1)], r"param must have shape \(R, \*S\)"),
        refusal(SparseNormalize(), [f32(4, 2), f32(1)], "indices must have elements of type int32 or int64"),
        refusal(SparseNormalize(norm=-1.0), [f32(4, 2), i32(1)], "norm must lie in", ArgumentError),
    )

    def options(self, data):
        return {"use_max_norm": data.draw(st.booleans()), "norm": data.draw(st.sampled_from([0.5, 1.25]))}

    def row(self, op, row):
        length = np.sqrt((row**2).sum())
        return row if op.use_max_norm and length <= op.norm else row * (op.norm / length)


class TestFloat16SparseNormalize(TestSparseNormalize):
    operator = Float16SparseNormalize
    rtol, atol = 2e-3, 1e-3
    refusals = (
        refusal(
            Float16SparseNormalize(),
            [f32(4, 2), i32(1)],
            "param must have elements of type float16, got float32; use SparseNormalize",
        ),
    )

    def table(self, p):
        return p.astype(np.float16)


class TestSparseLpRegularizer(_Rows):
    operator = SparseLpRegularizer
    refusals = (
        refusal(SparseLpRegularizer(p=3.0), [f32(4, 2), i32(1)], "p must be 1 or 2, got 3.0", ArgumentError),
        refusal(SparseLpRegularizer(reg_lambda=0.0), [f32(4, 2), i32(1)], "reg_lambda must be positive", ArgumentError),
        refusal(SparseLpRegularizer(), [i32(4, 2), i32(1)], "the inputs must have one floating type, got param int32"),
    )

    def options(self, data):
        return {"p": data.draw(st.sampled_from([1.0, 2.0])), "reg_lambda": 0.125}

    def row(self, op, row):
        if op.p == 2:
            return row * (1 - op.reg_lambda)
        return np.where(np.abs(row) > op.reg_lambda, row - np.sign(row) * op.reg_lambda, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_zeros_stay_and_others_are_left_alone(device):
    p = np.float32([[0, 0], [3, 4], [6, 8]])
    (got,) = run_plain(SparseNormalize(use_max_norm=False), [p, np.int32([0, 1])], device)
    np.testing.assert_allclose(got, [[0, 0], [0.6, 0.8], [6, 8]], rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_an_index_outside_the_table_is_refused(device):
    with pytest.raises(ShapeError, match=r"SparseLpRegularizer: indices must lie in \[0, 2\), got 2"):
        run_plain(SparseLpRegularizer(), [np.ones((2, 2), np.float32), np.int64([2])], device)
