"""Pad and its gradient."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.arrange.pad import Pad, PadGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def draw_pads(data):
    """Return the mode, the pads, and the shape of the tensor."""
    shape = data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    mode = data.draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    most = 1 if mode == "reflect" else 5
    pads = data.draw(st.lists(st.integers(-1, most), min_size=2 * len(shape), max_size=2 * len(shape)))
    return mode, tuple(pads), tuple(shape)


def padded(x, mode, pads, value=0.0):
    n = x.ndim
    options = {"constant_values": value} if mode == "constant" else {}
    y = np.pad(x, [(max(pads[i], 0), max(pads[i + n], 0)) for i in range(n)], mode=mode, **options)
    return y[tuple(slice(max(-pads[i], 0), y.shape[i] - max(-pads[i + n], 0)) for i in range(n))]


class TestPad(OperatorSuite):
    operator = Pad
    refusals = (
        refusal(Pad(mode="odd"), [f32(2)], "mode must be constant, reflect, edge or wrap", ArgumentError),
        refusal(Pad(pads=(1,)), [f32(2)], "then those after, got", ArgumentError),
        refusal(Pad(pads=(1, 1)), [f32(2, 3)], "two numbers for each of the 2 axes of X"),
        refusal(Pad(pads=(2, 2), mode="reflect"), [f32(2)], "pads 2 and 2 with mode reflect do not fit axis 0"),
        refusal(Pad(pads=(-2, -1)), [f32(2)], "pads -2 and -1 with mode constant do not fit axis 0"),
    )

    def draw(self, data):
        mode, pads, shape = draw_pads(data)
        return Pad(mode=mode, pads=pads, value=data.draw(st.sampled_from([0.0, 1.5]))), [data.draw(floats(*shape))]

    def reference(self, op, x):
        return [padded(x, op.mode, op.pads, op.value)]


class TestPadGradient(OperatorSuite):
    operator = PadGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(PadGradient(pads=(1, 2)), [f32(2)], "pads 1 and 2 with mode constant do not fit axis 0"),)

    def draw(self, data):
        mode, pads, shape = draw_pads(data)
        dy = padded(np.zeros(shape), mode, pads)
        return PadGradient(mode=mode, pads=pads), [data.draw(floats(*dy.shape))]

    def reference(self, op, dy):
        n = dy.ndim
        shape = tuple(extent - op.pads[i] - op.pads[i + n] for i, extent in enumerate(dy.shape))
        dx = np.zeros(shape)
        for place in np.ndindex(shape):
            one = np.zeros(shape)
            one[place] = 1
            dx[place] = (padded(one, op.mode, op.pads) * dy).sum()
        return [dx]
