"""PadImage and its gradient."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.images.pad_image import PadImage, PadImageGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_padding(data, cls):
    """Return an operator and the shape of the images inside the border."""
    pads = [data.draw(st.integers(-1, 2)) for _ in range(4)]
    each = dict(zip(("pad_t", "pad_l", "pad_b", "pad_r"), pads))
    sides = data.draw(st.sampled_from([each, {"pad": pads[0]}, {"pads": tuple(pads), "pad": 1}]))
    mode, order = (
        data.draw(st.sampled_from(["constant", "reflect", "edge"])),
        data.draw(st.sampled_from(["NCHW", "NHWC"])),
    )
    extents = data.draw(st.integers(3, 4)), data.draw(st.integers(3, 5))
    shape = (2, 2, *extents) if order == "NCHW" else (2, *extents, 2)
    return cls(mode=mode, order=order, value=data.draw(st.sampled_from([0.0, 1.5])), **sides), shape


def widths(op):
    pads = [(op.pad_t, op.pad_b), (op.pad_l, op.pad_r)]
    if not any(map(any, pads)):
        pads = [(op.pad, op.pad)] * 2
    if op.pads:
        pads = [op.pads[::2], op.pads[1::2]]
    return [(0, 0), (0, 0), *pads] if op.order == "NCHW" else [(0, 0), *pads, (0, 0)]


def padded(op, x, value):
    """Pad row by row along each axis; a negative width removes rows."""
    for axis, (before, after) in enumerate(widths(op)):
        n, rows = x.shape[axis], []
        for i in range(-before, n + after):
            mirrored = -i if i < 0 else 2 * (n - 1) - i
            source = i if 0 <= i < n else mirrored if op.mode == "reflect" else min(max(i, 0), n - 1)
            row = x.take(source, axis)
            rows.append(row if 0 <= i < n or op.mode != "constant" else np.full_like(row, value))
        x = np.stack(rows, axis)
    return x


class TestPadImage(OperatorSuite):
    operator = PadImage
    refusals = (
        refusal(PadImage(pad=1), [f32(2, 3, 3)], "X must have 4 axes"),
        refusal(PadImage(pad=1), [i32(1, 1, 3, 3)], "one floating type"),
        refusal(PadImage(pad=3, mode="reflect"), [f32(1, 1, 3, 4)], r"must have an extent of at least 4 there, got 3"),
        refusal(PadImage(mode="wrap"), [f32(1, 1, 3, 3)], "constant, reflect or edge, got 'wrap'", ArgumentError),
        refusal(PadImage(pad_t=-1, pad_b=-2), [f32(1, 1, 3, 3)], "must not crop all of the images"),
        refusal(PadImage(pads=(1, 1)), [f32(1, 1, 3, 3)], "above, left, below and right", ArgumentError),
        refusal(PadImage(order="HW"), [f32(1, 1, 3, 3)], "NCHW or NHWC", ArgumentError),
    )

    def draw(self, data):
        op, shape = draw_padding(data, PadImage)
        return op, [data.draw(floats(*shape))]

    def reference(self, op, x):
        return [padded(op, x, op.value)]


class TestPadImageGradient(OperatorSuite):
    operator = PadImageGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(PadImageGradient(pad=1), [f32(2, 3)], "dY must have 4 axes"),
        refusal(PadImageGradient(pad=2), [f32(1, 1, 3, 9)], "must have an extent of at least 0 there, got -1"),
    )

    def draw(self, data):
        op, shape = draw_padding(data, PadImageGradient)
        return op, [data.draw(floats(*(n + sum(w) for n, w in zip(shape, widths(op)))))]

    def reference(self, op, dy):
        shape = [n - sum(w) for n, w in zip(dy.shape, widths(op))]
        sources = np.arange(np.prod(shape)).reshape(shape)
        dx = np.zeros(shape).ravel()
        for source, slope in zip(padded(op, sources, -1).ravel(), dy.ravel()):
            if source >= 0:
                dx[source] += slope
        return [dx.reshape(shape)]
