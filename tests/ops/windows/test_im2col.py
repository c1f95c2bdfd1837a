"""Im2Col and Col2Im."""

import itertools

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.windows.im2col import Col2Im, Im2Col
from suite import OperatorSuite, f32, floats, i32, refusal
from window_reference import to_channels_first, to_order


def draw_windows(data, cls):
    """Return an operator and X."""
    draw = data.draw
    order = draw(st.sampled_from(["NCHW", "NHWC"]))
    op = cls(
        kernels=(draw(st.integers(1, 3)), draw(st.integers(1, 2))), strides=(draw(st.integers(1, 2)), 1),
        dilations=(1, draw(st.integers(1, 2))), pads=tuple(draw(st.integers(0, 1)) for _ in range(4)), order=order,
    )  # fmt: skip
    return op, np.ascontiguousarray(to_order(draw(floats((1, 2), (1, 2), (3, 4), (3, 4))), order))


def places(op, shape):
    """Yield (channel of the columns, row, column, channel, row of X, column of X), of places inside X."""
    _, channels, height, width = shape
    (kh, kw), (sh, sw), (dh, dw), (top, left, bottom, right) = op.kernels, op.strides, op.dilations, op.pads
    rows = (height + top + bottom - dh * (kh - 1) - 1) // sh + 1
    columns = (width + left + right - dw * (kw - 1) - 1) // sw + 1
    axes = map(range, (channels, kh, kw, rows, columns))
    for c, i, j, row, column in itertools.product(*axes):
        place = (c * kh + i) * kw + j if op.order == "NCHW" else (i * kw + j) * channels + c
        y, x = row * sh + i * dh - top, column * sw + j * dw - left
        inside = 0 <= y < height and 0 <= x < width
        yield place, row, column, c, y if inside else None, x


def columns_of(op, x):
    images = to_channels_first(x, op.order)
    found = list(places(op, images.shape))
    columns = np.zeros((len(images), *(1 + max(f[k] for f in found) for k in range(3))))
    for place, row, column, c, y, x in found:
        if y is not None:
            columns[:, place, row, column] = images[:, c, y, x]
    return to_order(columns, op.order)


class TestIm2Col(OperatorSuite):
    operator = Im2Col
    refusals = (
        refusal(Im2Col(kernel=2), [f32(2, 3, 4)], "images must have 4 axes"),
        refusal(Im2Col(kernel=5), [f32(1, 1, 4, 4)], "does not fit X"),
        refusal(Im2Col(kernel=2), [i32(1, 1, 4, 4)], "one floating type"),
    )

    def draw(self, data):
        op, x = draw_windows(data, Im2Col)
        return op, [x]

    def reference(self, op, x):
        return [columns_of(op, x)]


class TestCol2Im(OperatorSuite):
    operator = Col2Im
    no_gradient = "it has none in Caffe2; it is the gradient of Im2Col"
    refusals = (
        refusal(Col2Im(kernel=2), [f32(1, 4, 2, 2), f32(1, 1, 4, 4)], r"columns must have shape \(1, 4, 3, 3\)"),
    )

    def draw(self, data):
        op, x = draw_windows(data, Col2Im)
        return op, [data.draw(floats(*columns_of(op, x).shape)), x]

    def reference(self, op, columns, like):
        slopes = to_channels_first(columns, op.order)
        images = np.zeros(to_channels_first(like, op.order).shape)
        for place, row, column, c, y, x in places(op, images.shape):
            if y is not None:
                images[:, c, y, x] += slopes[:, place, row, column]
        return [to_order(images, op.order)]
