"""Tables with scale and bias in each row; Caffe2's bytes are golden cases."""

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.quantized import fused_rowwise
from netbuilder.proto import OperatorError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from quantized_rows import draw_rows, f16, packed, u8
from suite import OperatorSuite, f32, floats, i32, refusal


def coded(row, bits, kind):
    """Codes, scale and bias of one row, by the definition, in single steps of float32."""
    least, most = np.float32(row.min()), np.float32(row.max())
    if kind == "<f2":
        least = np.float32(np.float16(least))
    extent, top = most - least, 2**bits - 1
    if kind == "<f4":
        scale, factor = extent / np.float32(255), np.float32(255) / (extent + np.float32(1e-8))
    else:
        scale = np.float32(np.float16(extent / np.float32(top))) if extent else np.float32(1)
        scale = scale if scale else np.float32(1)
        factor = np.float32(1) / scale
    return [int(min(max(np.rint((np.float32(v) - least) * factor), 0), top)) for v in row], scale, least


class _Quantize(OperatorSuite):
    no_gradient = "as in Caffe2"
    code_bits, row_bits, kind, half = 8, 8, "<f4", False

    def draw(self, data):
        columns = 4 * data.draw(st.integers(1, 4))
        x = data.draw(floats(*[(0, 3)] * data.draw(st.integers(0, 2)), columns))
        return self.operator(), [x.astype(np.float16) if self.half else x]

    def reference(self, op, x):
        rows = []
        for row in x.reshape(-1, x.shape[-1]):
            codes, *numbers = coded(row, self.code_bits, "<f4" if self.code_bits == 8 and self.kind == "<f4" else "<f2")
            rows.append(packed(codes, self.row_bits, numbers, self.kind))
        width = x.shape[-1] * self.row_bits // 8 + 2 * np.dtype(self.kind).itemsize
        return [np.array(rows, np.uint8).reshape(*x.shape[:-1], width)]


class _Half(_Quantize):
    half = True
    # a least element of 0 may be +0 or -0: which of them, the order of the search decides
    rtol, atol = 0, 0

    def draw(self, data):
        op, (x,) = super().draw(data)
        return op, [np.where(x == 0, np.float16(0.5), x)]


def wrong(cls, number=f32):
    other = f16 if number is f32 else f32
    return (
        refusal(cls(), [other(2, 8)], f"input must be {number(1).dtype}, got {other(1).dtype}"),
        refusal(cls(), [number()], "rows of at least one element"),
        refusal(cls(), [number(3, 0)], "rows of at least one element"),
    )


class TestFloatToFused8BitRowwiseQuantized(_Quantize):
    operator = fused_rowwise.FloatToFused8BitRowwiseQuantized
    refusals = wrong(operator)


class TestHalfFloatToFused8BitRowwiseQuantized(_Half):
    operator = fused_rowwise.HalfFloatToFused8BitRowwiseQuantized
    refusals = wrong(operator, f16)


class TestFloatToFused8BitRowwiseQuantizedHalfScaleBias(_Quantize):
    operator = fused_rowwise.FloatToFused8BitRowwiseQuantizedHalfScaleBias
    refusals = wrong(operator)
    kind = "<f2"


class TestHalfFloatToFused8BitRowwiseQuantizedHalfScaleBias(_Half):
    operator = fused_rowwise.HalfFloatToFused8BitRowwiseQuantizedHalfScaleBias
    refusals = wrong(operator, f16)
    kind = "<f2"


class TestFloatToFused4BitRowwiseQuantized(_Quantize):
    operator = fused_rowwise.FloatToFused4BitRowwiseQuantized
    refusals = (*wrong(operator), refusal(operator(), [f32(2, 3)], "must be a multiple of 2, got 3; pad the rows"))
    code_bits, row_bits, kind = 4, 4, "<f2"


class TestHalfToFused4BitRowwiseQuantized(_Half):
    operator = fused_rowwise.HalfToFused4BitRowwiseQuantized
    refusals = wrong(operator, f16)
    code_bits, row_bits, kind = 4, 4, "<f2"


class TestFloatToFused2BitRowwiseQuantized(_Quantize):
    operator = fused_rowwise.FloatToFused2BitRowwiseQuantized
    refusals = (*wrong(operator), refusal(operator(), [f32(2, 6)], "must be a multiple of 4, got 6"))
    code_bits, row_bits, kind = 2, 2, "<f2"


class TestHalfToFused2BitRowwiseQuantized(_Half):
    operator = fused_rowwise.HalfToFused2BitRowwiseQuantized
    refusals = wrong(operator, f16)
    code_bits, row_bits, kind = 2, 2, "<f2"


class TestFloatToFused4BitFakeRowwiseQuantized(_Quantize):
    operator = fused_rowwise.FloatToFused4BitFakeRowwiseQuantized
    refusals = wrong(operator)
    code_bits = 4


class TestHalfToFused4BitFakeRowwiseQuantized(_Half):
    operator = fused_rowwise.HalfToFused4BitFakeRowwiseQuantized
    refusals = wrong(operator, f16)
    code_bits = 4


class TestFloatToFused2BitFakeRowwiseQuantized(_Quantize):
    operator = fused_rowwise.FloatToFused2BitFakeRowwiseQuantized
    refusals = wrong(operator)
    code_bits = 2


class TestHalfToFused2BitFakeRowwiseQuantized(_Half):
    operator = fused_rowwise.HalfToFused2BitFakeRowwiseQuantized
    refusals = wrong(operator, f16)
    code_bits = 2


class _Dequantize(OperatorSuite):
    no_gradient = "as in Caffe2"
    bits, kind = 8, "<f4"
    rtol, atol = 1e-6, 1e-7

    def draw(self, data):
        table, self.values = draw_rows(data, self.bits, self.kind)
        return self.operator(), [table]

    def reference(self, op, table):
        return [self.values]


def not_rows(cls, extra, kind):
    text = f"must have rows of more than {extra} bytes .uint8., the last {extra} of them scale and bias in {kind}"
    return (refusal(cls(), [u8(3, extra)], text), refusal(cls(), [f32(3, 12)], "got shape .3, 12. of float32"))


class TestFused8BitRowwiseQuantizedToFloat(_Dequantize):
    operator = fused_rowwise.Fused8BitRowwiseQuantizedToFloat
    refusals = not_rows(operator, 8, "float32")


class TestFused8BitRowwiseQuantizedToHalfFloat(_Dequantize):
    operator = fused_rowwise.Fused8BitRowwiseQuantizedToHalfFloat
    refusals = not_rows(operator, 8, "float32")
    rtol, atol = 1e-3, 1e-6


class TestFused8BitRowwiseQuantizedHalfScaleBiasToFloat(_Dequantize):
    operator = fused_rowwise.Fused8BitRowwiseQuantizedHalfScaleBiasToFloat
    refusals = not_rows(operator, 4, "float16")
    kind = "<f2"


class TestFused8BitRowwiseQuantizedHalfScaleBiasToHalfFloat(_Dequantize):
    operator = fused_rowwise.Fused8BitRowwiseQuantizedHalfScaleBiasToHalfFloat
    refusals = not_rows(operator, 4, "float16")
    kind = "<f2"


class TestFused4BitRowwiseQuantizedToFloat(_Dequantize):
    operator = fused_rowwise.Fused4BitRowwiseQuantizedToFloat
    refusals = not_rows(operator, 4, "float16")
    bits, kind = 4, "<f2"


class TestFused4BitRowwiseQuantizedToHalf(_Dequantize):
    operator = fused_rowwise.Fused4BitRowwiseQuantizedToHalf
    refusals = not_rows(operator, 4, "float16")
    bits, kind = 4, "<f2"
    rtol, atol = 1e-3, 1e-6


class TestFused2BitRowwiseQuantizedToFloat(_Dequantize):
    operator = fused_rowwise.Fused2BitRowwiseQuantizedToFloat
    refusals = not_rows(operator, 4, "float16")
    bits, kind = 2, "<f2"


class TestFused2BitRowwiseQuantizedToHalf(_Dequantize):
    operator = fused_rowwise.Fused2BitRowwiseQuantizedToHalf
    refusals = not_rows(operator, 4, "float16")
    bits, kind = 2, "<f2"
    rtol, atol = 1e-3, 1e-6


class TestGatherFused8BitRowwise(OperatorSuite):
    operator = fused_rowwise.GatherFused8BitRowwise
    no_gradient = "as in Caffe2"
    refusals = (
        refusal(operator(), [u8(3), i32(2)], "DATA must be a matrix"),
        refusal(operator(), [u8(3, 12), i32(2, 2)], "INDICES must be a vector"),
        refusal(operator(), [u8(3, 8), i32(2)], "rows of more than 8 bytes"),
    )

    def draw(self, data):
        table, self.values = draw_rows(data, 8, "<f4", rows=3)
        return self.operator(), [table, np.array(data.draw(st.lists(st.integers(0, 2), max_size=4)), np.int32)]

    def reference(self, op, table, indices):
        return [self.values[indices]]


class TestFloatToRowwiseQuantized8Bits(OperatorSuite):
    operator = fused_rowwise.FloatToRowwiseQuantized8Bits
    no_gradient = "as in Caffe2"
    refusals = (
        refusal(operator(), [f16(2, 8)], "input must have elements of type float32, got float16"),
        refusal(operator(), [f32()], r"input must have shape \(R, \*S\)"),
        refusal(operator(), [f32(3, 0)], "rows of at least one element"),
    )

    def draw(self, data):
        x = data.draw(floats((1, 3), (1, 4), *[(1, 2)] * data.draw(st.integers(0, 1))))
        x[0] = data.draw(st.sampled_from([x[0], np.float32(2)]))
        return self.operator(), [x]

    def reference(self, op, x):
        codes, pairs = [], []
        for row in x.reshape(x.shape[0], -1).astype(np.float32):
            extent = row.max() - row.min()
            pairs.append((extent / np.float32(255) if extent else 1, row.min()))
            codes.append(
                [int(np.floor((v - row.min()) * np.float32(255) / extent + 0.5)) if extent else 0 for v in row]
            )
        return [None if near_halves(x) else np.reshape(codes, x.shape), np.array(pairs)]


def near_halves(x):
    """Whether an element is so near to the middle of two codes that the order of the arithmetic decides."""
    rows = x.reshape(x.shape[0], -1)
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    steps = (rows - low) * 255 / np.maximum(high - low, 1e-10)
    return bool((abs(steps % 1 - 0.5) < 1e-4).any())


class TestRowwise8BitQuantizedToFloat(OperatorSuite):
    operator = fused_rowwise.Rowwise8BitQuantizedToFloat
    no_gradient = "as in Caffe2"
    refusals = (
        refusal(operator(), [f32(3, 4), f32(3, 2)], "quantized_input must have elements of type uint8"),
        refusal(operator(), [u8(3, 4), f32(2, 2)], r"scale_bias must have shape \(3, 2\) = \(R, 2\)"),
    )

    def draw(self, data):
        codes = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, (3, 2, 2), dtype=np.uint8)
        return self.operator(), [codes, data.draw(floats(3, 2))]

    def reference(self, op, codes, pairs):
        return [codes * pairs[:, :1, None] + pairs[:, 1:, None]]


def test_a_greedy_scale_is_asked_for_by_the_engine():
    workspace, x = Workspace(), np.random.default_rng(0).standard_normal((20, 32)).astype(np.float32)
    workspace.feed("x", x)
    errors = []
    for engine in ("", "GREEDY"):
        workspace.run_operator_once(make_op("FloatToFused4BitRowwiseQuantized", ["x"], ["q"], engine=engine))
        workspace.run_operator_once(make_op("Fused4BitRowwiseQuantizedToFloat", ["q"], ["y"]))
        errors.append(float(np.square(workspace.fetch("y") - x).sum()))
    assert errors[1] < errors[0]


def test_rows_out_of_range():
    workspace = Workspace()
    workspace.feed("table", np.zeros((3, 12), np.uint8))
    workspace.feed("indices", np.int32([0, 3]))
    with pytest.raises(OperatorError, match=r"indices must lie in \[0, 3\), got 3"):
        workspace.run_operator_once(make_op("GatherFused8BitRowwise", ["table", "indices"], ["y"]))
    with pytest.raises(ShapeError, match="INDICES must be a vector"):
        fused_rowwise.GatherFused8BitRowwise().infer(u8(3, 12), f32(2))
