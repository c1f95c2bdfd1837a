"""QuantDecode and ByteWeightDequant."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.quantized.codebook import ByteWeightDequant, QuantDecode, QuantDecodeGradient
from netbuilder.proto import NetError, ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal


def draw_codes(data, size):
    dtype = data.draw(st.sampled_from([np.uint8, np.uint16, np.int32]))
    shape = data.draw(st.sampled_from([(3,), (2, 2), (0,)]))
    return np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, size, shape).astype(dtype)


class TestQuantDecode(OperatorSuite):
    operator = QuantDecode
    d_outputs = (0, 1)
    refusals = (
        refusal(QuantDecode(), [f32(3), i32(2)], "has an output for each tensor of codes", NetError, n_out=2),
        refusal(QuantDecode(), [f32(3, 1), i32(2)], "codebook must be a vector of floating-point numbers"),
        refusal(QuantDecode(), [f32(3), i64(2)], "codes_0 must be uint8, uint16 or int32, got int64"),
    )

    def draw(self, data):
        return QuantDecode().with_arity(3, 2), [data.draw(floats(4)), draw_codes(data, 4), draw_codes(data, 4)]

    def reference(self, op, codebook, *codes):
        return [np.array([codebook[c] for c in each.flat]).reshape(each.shape) for each in codes]


class TestQuantDecodeGradient(OperatorSuite):
    operator = QuantDecodeGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(QuantDecodeGradient(), [f32(3), i32(2)], "as many gradients as codes, got 2 inputs", NetError),
        refusal(QuantDecodeGradient(), [f32(3), i32(2), f32(3)], r"the size of its codes, \(2,\), got \(3,\)"),
    )

    def draw(self, data):
        codes = [draw_codes(data, 4) for _ in range(2)]
        return self.operator(), [data.draw(floats(4)), *codes, *(data.draw(floats(*c.shape)) for c in codes)]

    def reference(self, op, codebook, a, b, da, db):
        total = np.zeros(4)
        for codes, slope in ((a, da), (b, db)):
            for code, value in zip(codes.flat, slope.flat):
                total[code] += value
        return [total]


class TestByteWeightDequant(OperatorSuite):
    operator = ByteWeightDequant
    no_gradient = "bytes have none"
    refusals = (
        refusal(ByteWeightDequant(shape=(2,)), [f32(2)], "X must be bytes .uint8. or a string, got float32"),
        refusal(
            ByteWeightDequant(shape=(2, 2)),
            [TensorSpec((3,), np.dtype(np.uint8))],
            r"shape \(2, 2\) needs more bytes than X has, 3",
        ),
        refusal(ByteWeightDequant(shape=(-1,)), [TensorSpec((3,), np.dtype(np.uint8))], "negative extents"),
    )

    def draw(self, data):
        x = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, 7, dtype=np.uint8)
        return ByteWeightDequant(shape=(2, 3), min=-1, max=data.draw(st.sampled_from([0.5, 4.0]))), [x]

    def reference(self, op, x):
        return [np.array([-1 + int(v) / 255 * (op.max + 1) for v in x[:6]]).reshape(2, 3)]


def test_bytes_in_a_string():
    text = np.array([b"\x00\xff"], object)
    assert run_plain(ByteWeightDequant(shape=(2,)), [text])[0].tolist() == [-3, 3]
    with pytest.raises(ShapeError, match="needs more bytes than X has, 2"):
        run_plain(ByteWeightDequant(shape=(3,)), [text])


def test_codes_out_of_range():
    with pytest.raises(IndexError, match=r"QuantDecode: indices must lie in \[0, 2\), got 2"):
        run_plain(QuantDecode(), [np.zeros(2, np.float32), np.int32([2])])
