"""SparseDropoutWithReplacement, SparseItemwiseDropoutWithReplacement."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import DEVICES, run_plain
from netbuilder.ops.features.sparse_dropout import SparseDropoutWithReplacement, SparseItemwiseDropoutWithReplacement
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, i32, i64, refusal


class _Sparse(OperatorSuite):
    no_gradient = "integers have none"

    @property
    def refusals(self):
        return (
            refusal(self.operator(ratio=1.5), [i64(2), i32(1)], r"must lie in \[0, 1\], got 1.5", ArgumentError),
            refusal(self.operator(), [f32(2), i32(1)], "X must have elements of type int64, got float32"),
            refusal(self.operator(), [i64(2), i64(1)], "Lengths must have elements of type int32, got int64"),
        )

    def draw(self, data):
        """Ratios 0 and 1; others are tested below."""
        lengths = np.array(data.draw(st.lists(st.integers(0, 3), max_size=4)), np.int32)
        x = np.arange(lengths.sum(), dtype=np.int64)
        return self.operator(ratio=data.draw(st.sampled_from([0.0, 1.0])), replacement_value=-7), [x, lengths]

    def test_lengths_that_do_not_fit(self):
        with pytest.raises(ShapeError, match="sum of the lengths must be the number of rows, 2, got 3"):
            run_plain(self.operator().with_arity(2, 2), [np.int64([1, 2]), np.int32([3])])


class TestSparseDropoutWithReplacement(_Sparse):
    operator = SparseDropoutWithReplacement

    def reference(self, op, x, lengths):
        if op.ratio == 0:
            return [x, lengths]
        return [np.full(lengths.shape, -7), np.ones(lengths.shape)]

    @pytest.mark.parametrize("device", DEVICES)
    def test_whole_samples_go(self, device):
        lengths = np.int32([3, 0, 1, 4] * 1000)
        x = np.arange(lengths.sum())
        op = SparseDropoutWithReplacement(ratio=0.3, replacement_value=-1).with_arity(2, 2)
        y, left = run_plain(op, [x, lengths], device)
        assert (y.dtype, left.dtype, left.sum()) == (np.int64, np.int32, y.size)
        dropped = np.zeros(len(lengths), bool)
        for i, (row, ids) in enumerate(zip(np.split(x, np.cumsum(lengths)), np.split(y, np.cumsum(left)))):
            if i < len(lengths):
                dropped[i] = ids.tolist() == [-1]
                assert dropped[i] or ids.tolist() == row.tolist()
        assert (np.abs(dropped.reshape(-1, 4).mean(axis=0) - 0.3) < 0.06).all()


class TestSparseItemwiseDropoutWithReplacement(_Sparse):
    operator = SparseItemwiseDropoutWithReplacement

    def reference(self, op, x, lengths):
        return [x if op.ratio == 0 else np.full(x.shape, -7), lengths]

    @pytest.mark.parametrize("device", DEVICES)
    def test_single_ids_go(self, device):
        op = SparseItemwiseDropoutWithReplacement(ratio=0.3).with_arity(2, 2)
        x, lengths = np.arange(1, 8001), np.int32([4] * 2000)
        y, left = run_plain(op, [x, lengths], device)
        assert ((y == x) | (y == 0)).all() and left.tolist() == lengths.tolist()
        assert (np.abs((y == 0).reshape(-1, 4).mean(axis=0) - 0.3) < 0.04).all()
        assert (run_plain(op, [x, lengths], device)[0] == y).all(), "one seed, one result"
