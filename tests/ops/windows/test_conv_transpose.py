"""Transposed convolution and its gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.core.operator import spec_of
from netbuilder.ops.windows.conv_transpose import ConvTranspose, ConvTransposeGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal
from window_reference import correlate, correlate_gradients, to_channels_first, to_order, transpose_correlate


def draw_transpose(data, cls=ConvTranspose, most=2):
    draw = data.draw
    axes, order = draw(st.sampled_from([2, 2, 1])), draw(st.sampled_from(["NCHW", "NHWC"]))
    strides = [draw(st.integers(1, 3)) for _ in range(axes)]
    adjs = [draw(st.integers(0, s - 1)) for s in strides]
    kernel, extents = ([draw(st.integers(1, 3)) for _ in range(axes)] for _ in range(2))
    room = [(n - 1) * s + k + a - 1 for n, s, k, a in zip(extents, strides, kernel, adjs)]
    begin = [draw(st.integers(0, min(1, r))) for r in room]
    end = [draw(st.integers(0, min(1, r - b))) for r, b in zip(room, begin)]
    if axes == 2 and draw(st.booleans()):
        given = {"stride_h": strides[0], "stride_w": strides[1], "adj_h": adjs[0], "adj_w": adjs[1]}
    else:
        given = {"strides": tuple(strides), "adjs": tuple(adjs)}
    given |= {"pads": tuple(begin + end), "order": order, "group": draw(st.integers(1, 2))}
    n, c, m = draw(st.integers(1, most)), given["group"] * draw(st.integers(1, most)), draw(st.integers(1, most))
    x = to_order(draw(floats(n, c, *extents)), order)
    w = to_order(draw(floats(c, m, *kernel)), order)
    return cls(**given), np.ascontiguousarray(x), np.ascontiguousarray(w)


class TestConvTranspose(OperatorSuite):
    operator = ConvTranspose
    wrt = (0, 1, 2)
    atol = 1e-5
    refusals = (
        refusal(ConvTranspose(), [f32(2, 3, 8), f32(3, 4, 3, 3)], "the same number of axes as X"),
        refusal(ConvTranspose(kernel=2), [f32(2, 3, 8, 8), f32(3, 4, 3, 3)], r"a kernel of \(2, 2\)"),
        refusal(ConvTranspose(), [f32(2, 3, 8, 8), f32(4, 4, 3, 3)], "W must have one filter per channel of X, 3"),
        refusal(
            ConvTranspose(group=2), [f32(2, 3, 8, 8), f32(3, 4, 3, 3)], "W must have one filter per channel of X, 3"
        ),
        refusal(ConvTranspose(), [f32(2, 3, 8, 8), f32(3, 4, 3, 3), f32(3)], r"b must have shape \(4,\)"),
        refusal(ConvTranspose(adj=1), [f32(2, 3, 8, 8), f32(3, 4, 3, 3)], "adj must lie in"),
        refusal(ConvTranspose(dilation=2), [f32(2, 3, 8, 8), f32(3, 4, 3, 3)], "dilation is not supported"),
        refusal(ConvTranspose(pad=2), [f32(2, 3, 1, 1), f32(3, 4, 3, 3)], "leave no elements of Y"),
        refusal(ConvTranspose(legacy_pad=2), [f32(2, 3, 8, 8), f32(3, 4, 3, 3)], "give pads", ArgumentError),
    )

    def draw(self, data):
        op, x, w = draw_transpose(data)
        m = op.channels_out(spec_of(w))
        return op, [x, w, data.draw(floats(m))] if data.draw(st.booleans()) else [x, w]

    def draw_gradient(self, data):
        op, x, w = draw_transpose(data, most=1)
        m = op.channels_out(spec_of(w))
        return op, [x, w, data.draw(floats(m))] if data.draw(st.booleans()) else [x, w]

    def reference(self, op, x, w, b=None):
        axes = x.ndim - 2
        images, filters = to_channels_first(x, op.order), to_channels_first(w, op.order)
        strides, adjs, (begin, end) = op.per_axis("stride", axes), op.per_axis("adj", axes), op.explicit_pads(axes)
        extents = [
            (n - 1) * s + k + a - i - j
            for n, s, k, a, i, j in zip(images.shape[2:], strides, filters.shape[2:], adjs, begin, end)
        ]
        y = transpose_correlate(images, filters, extents, strides, begin, end, op.group)
        if b is not None:
            y += b.reshape(-1, *(1,) * axes)
        return [to_order(y, op.order)]


class TestConvTransposeGradient(OperatorSuite):
    operator = ConvTransposeGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-4, 1e-4
    refusals = (
        refusal(
            ConvTransposeGradient(),
            [f32(2, 3, 8, 8), f32(3, 4, 3, 3), f32(2, 4, 8, 8)],
            r"shape of Y, \(2, 4, 10, 10\)",
        ),
        refusal(
            ConvTransposeGradient(no_bias=True),
            [f32(2, 3, 8, 8), f32(3, 4, 3, 3), f32(2, 4, 10, 10)],
            "outputs are dW and dX, got 3",
            n_out=3,
        ),
    )

    def draw(self, data):
        op, x, w = draw_transpose(data, ConvTransposeGradient)
        (y,) = TestConvTranspose().reference(op, x, w)
        no_bias = data.draw(st.booleans())
        n_out = data.draw(st.integers(1, 2 if no_bias else 3))
        return replace(op, no_bias=no_bias).with_arity(3, n_out), [x, w, data.draw(floats(*y.shape))]

    def reference(self, op, x, w, dy):
        axes = x.ndim - 2
        images, filters, slopes = (to_channels_first(a, op.order) for a in (x, w, dy))
        # Seen from Y, X is the output of a convolution; its last adj rows and columns may meet no window.
        begin, end = op.explicit_pads(axes)
        ones = (1,) * axes
        end = [e - a for e, a in zip(end, op.per_axis("adj", axes))]
        kept = tuple(slice(None, n + min(0, e)) for n, e in zip(slopes.shape[2:], end))
        seen, end = slopes[(slice(None), slice(None), *kept)], [max(0, e) for e in end]
        strides = op.per_axis("stride", axes)
        dx = correlate(seen, filters, strides, ones, begin, end, op.group)
        dw, _ = correlate_gradients(seen, filters, images, strides, ones, begin, end, op.group)
        db = slopes.sum(axis=(0, *range(2, x.ndim)))
        dw, dx = to_order(dw, op.order), to_order(dx, op.order)
        return ([dw, dx] if op.no_bias else [dw, db, dx])[: op.n_out]


def test_cost():
    x, w, b, y = f32(2, 4, 5, 5), f32(4, 3, 2, 2), f32(6), f32(2, 6, 10, 10)
    once = 2 * 2 * 4 * 25 * 3 * 4
    op = ConvTranspose(stride=2, group=2)
    assert op.infer(x, w, b)[0].shape == y.shape
    assert op.flops(x, w) == once
    assert op.flops(x, w, b) == once + y.size
    assert ConvTransposeGradient(stride=2, group=2).with_arity(3, 3).flops(x, w, y) == 2 * once + y.size
