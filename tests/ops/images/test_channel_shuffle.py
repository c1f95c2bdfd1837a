"""ChannelShuffle and its gradient."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.images.channel_shuffle import ChannelShuffle, ChannelShuffleGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


class _Shuffling(OperatorSuite):
    def draw(self, data):
        group, order = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(["NCHW", "NHWC"]))
        channels, extents = group * data.draw(st.integers(1, 3)), data.draw(st.lists(st.integers(1, 3), max_size=2))
        shape = (2, channels, *extents) if order == "NCHW" else (2, *extents, channels)
        return self.operator(group=group, order=order), [data.draw(floats(*shape))]

    def sources(self, op, channels):
        """Return which channel of X each one of Y is."""
        size = channels // op.group
        return [k % op.group * size + k // op.group for k in range(channels)]


class TestChannelShuffle(_Shuffling):
    operator = ChannelShuffle
    refusals = (
        refusal(ChannelShuffle(group=2), [f32(1, 5, 2, 2)], "the 5 channels of X must be divisible by group=2"),
        refusal(ChannelShuffle(), [f32(3)], r"X must have shape \(N, C, \*S\)"),
        refusal(ChannelShuffle(group=0), [f32(1, 2)], "group must be 1 or more", ArgumentError),
    )

    def reference(self, op, x):
        axis = 1 if op.order == "NCHW" else x.ndim - 1
        return [np.stack([x.take(k, axis) for k in self.sources(op, x.shape[axis])], axis)]


class TestChannelShuffleGradient(_Shuffling):
    operator = ChannelShuffleGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(ChannelShuffleGradient(group=3), [f32(1, 5)], "must be divisible by group=3"),)

    def reference(self, op, dy):
        axis = 1 if op.order == "NCHW" else dy.ndim - 1
        rows, dx = np.moveaxis(dy, axis, 0), np.zeros(np.moveaxis(dy, axis, 0).shape)
        for k, source in enumerate(self.sources(op, len(rows))):
            dx[source] = rows[k]
        return [np.moveaxis(dx, 0, axis)]
