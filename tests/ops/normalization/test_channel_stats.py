"""Sums per channel."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.normalization.channel_stats import ChannelBackpropStats, ChannelStats
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def channels_last(op, x):
    return x if op.order == "NHWC" else np.moveaxis(x, 1, -1)


ORDERS = st.sampled_from(["NCHW", "NHWC"])


class TestChannelStats(OperatorSuite):
    operator = ChannelStats
    no_gradient = "Caffe2 has none: SpatialBN's gradient covers it"
    atol = 1e-5
    refusals = (
        refusal(ChannelStats(), [f32(3)], r"X must have shape \(N, C, \*S\)"),
        refusal(
            ChannelStats(),
            [f32(3, 4), f32(2)],
            r"weight \(the weight of this part of the batch\) must have one element",
        ),
        refusal(ChannelStats(order="HW"), [f32(3, 4)], "NCHW or NHWC", ArgumentError),
    )

    def draw(self, data):
        x, op = data.draw(floats((1, 3), (1, 3), (1, 4), (1, 4))), ChannelStats(order=data.draw(ORDERS))
        weight = data.draw(st.sampled_from([None, 0.0, 0.5]))
        given = [x] if weight is None else [x, np.float32([weight])]
        return op.with_arity(len(given), data.draw(st.integers(2, 3))), given

    def reference(self, op, x, weight=None):
        rows = channels_last(op, x).reshape(-1, channels_last(op, x).shape[-1])
        found = [rows.sum(axis=0), np.einsum("nc,nc->c", rows, rows), np.float64([len(rows)])]
        present = weight is None or weight[0] != 0
        return [part * present for part in found[: op.n_out]]


class TestChannelBackpropStats(OperatorSuite):
    operator = ChannelBackpropStats
    no_gradient = "part of a gradient"
    atol = 1e-5
    refusals = (
        refusal(ChannelBackpropStats(), [f32(2, 3, 4), f32(4), f32(3), f32(2, 3, 4)], r"mean must have shape \(3,\)"),
        refusal(ChannelBackpropStats(), [f32(2, 3, 4), f32(3), f32(3), f32(2, 3, 5)], "dY must have the shape of X"),
    )

    def draw(self, data):
        op, x = ChannelBackpropStats(order=data.draw(ORDERS)), data.draw(floats((1, 3), (1, 3), (1, 4)))
        channels = channels_last(op, x).shape[-1]
        return op, [x, data.draw(floats(channels)), data.draw(floats(channels)), data.draw(floats(*x.shape))]

    def reference(self, op, x, mean, inv_std, dy):
        values, slopes = (channels_last(op, a).reshape(-1, len(mean)) for a in (x, dy))
        return [np.einsum("nc,nc->c", slopes, (values - mean) * inv_std), slopes.sum(axis=0)]


def test_sums_of_float16_are_float32():
    x = np.full((2, 3, 200, 200), 3, np.float16)  # the sums are larger than any float16
    sums, squares = run_plain(ChannelStats().with_arity(1, 2), [x])
    assert sums.dtype == squares.dtype == np.float32
    np.testing.assert_array_equal([sums, squares], np.full((2, 3), 80000) * [[3], [9]])


def test_a_placeholder_may_have_infinities():
    found = run_plain(ChannelStats().with_arity(2, 3), [np.float32([[np.inf, np.nan, 1]]), np.float32([0])])
    for part in found:
        np.testing.assert_array_equal(part, np.zeros_like(part))
