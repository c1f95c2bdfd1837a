"""Rows in few bits by random rounding, and back."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.quantized.random_rowwise import FloatToFusedRandRowwiseQuantized, FusedRandRowwiseQuantizedToFloat
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, refusal

WIDTHS = (1, 2, 4, 8)


class TestFloatToFusedRandRowwiseQuantized(OperatorSuite):
    operator = FloatToFusedRandRowwiseQuantized
    no_gradient = "as in Caffe2"
    refusals = (
        refusal(operator(), [f32(3)], "must be a matrix of float32 with columns"),
        refusal(operator(), [f32(3, 0)], "must be a matrix of float32 with columns"),
        refusal(operator(bitwidth=3), [f32(3, 2)], r"bitwidth must be one of \(1, 2, 4, 8\), got 3", ArgumentError),
    )

    def draw(self, data):
        x = data.draw(floats((0, 3), (1, 20)))
        return FloatToFusedRandRowwiseQuantized(bitwidth=data.draw(st.sampled_from(WIDTHS)), random=False), [x]

    def reference(self, op, x):
        bits = op.bitwidth
        bytes_, rows = -(-x.shape[1] * bits // 8), []
        for row in x.astype(np.float32):
            step = (row.max() - row.min()) / np.float32(2**bits - 1)
            codes = [int(np.rint(np.float64(v - row.min()) / (float(step) + 1e-8))) for v in row]
            whole = [
                sum(codes[k] << (bits * (k // bytes_)) for k in range(b, len(codes), bytes_)) for b in range(bytes_)
            ]
            head = [bits, bytes_ * 8 // bits - len(codes)]
            rows.append([*head, *np.float32([row.min(), row.max()]).tobytes(), *whole])
        return [np.array(rows, np.uint8).reshape(len(rows), 10 + bytes_)]


class TestFusedRandRowwiseQuantizedToFloat(OperatorSuite):
    operator = FusedRandRowwiseQuantizedToFloat
    no_gradient = "as in Caffe2"
    refuses_nothing = "what is wrong shows when it runs; see below"

    def draw(self, data):
        x, bits = data.draw(floats((1, 3), (1, 20))), data.draw(st.sampled_from(WIDTHS))
        (table,) = run_plain(FloatToFusedRandRowwiseQuantized(bitwidth=bits, random=False), [x])
        low, high = x.min(axis=1, keepdims=True).astype(float), x.max(axis=1, keepdims=True).astype(float)
        step = (high - low) / (2**bits - 1)
        self.values = np.rint((x - low) / (step + 1e-8)) * (step + 1e-8) + low
        return self.operator(), [table]

    def reference(self, op, table):
        return [self.values]


@pytest.mark.parametrize("bits", WIDTHS)
def test_random_rounding_keeps_the_mean_and_errs_by_less_than_a_step(bits):
    x = np.tile(np.float32([[0, 0.3, 0.77, 1]]), (4000, 1))
    (table,) = run_plain(FloatToFusedRandRowwiseQuantized(bitwidth=bits), [x])
    (y,) = run_plain(FusedRandRowwiseQuantizedToFloat(), [table])
    assert (abs(y - x) < 1 / (2**bits - 1) + 1e-5).all()
    assert abs(y.mean(axis=0) - x[0]).max() < 4 * 0.5 / (2**bits - 1) / 4000**0.5 + 1e-6
    assert len(np.unique(y[:, 1])) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 10), np.uint8), "rows of more than 10 bytes"),
        (np.zeros((0, 12), np.uint8), "rows of more than 10 bytes"),
        (np.zeros((2, 12), np.float32), "rows of more than 10 bytes"),
        (np.full((2, 12), 3, np.uint8), "must begin with its bits, one of .1, 2, 4, 8., .* got 3 and 3"),
        (np.full((2, 12), 4, np.uint8), "its unused positions, fewer than a byte holds, got 4 and 4"),
    ],
)
def test_what_are_no_rows(rows, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(FusedRandRowwiseQuantizedToFloat(), [rows])


def test_a_spec_is_shown_in_the_refusal():
    with pytest.raises(ShapeError, match=r"got \(2, 3\) float64; reshape it"):
        FloatToFusedRandRowwiseQuantized().infer(TensorSpec((2, 3), np.dtype(float)))
