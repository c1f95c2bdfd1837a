"""Sums per channel."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

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
        refusal(ChannelStats(), [f32(3)], "at least a batch and a channel axis"),
        refusal(ChannelStats(order="HW"), [f32(3, 4)], "NCHW or NHWC", ArgumentError),
    )

    def draw(self, data):
        return ChannelStats(order=data.draw(ORDERS)), [data.draw(floats((1, 3), (1, 3), (1, 4), (1, 4)))]

    def reference(self, op, x):
        rows = channels_last(op, x).reshape(-1, channels_last(op, x).shape[-1])
        return [rows.sum(axis=0), np.einsum("nc,nc->c", rows, rows)]


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
