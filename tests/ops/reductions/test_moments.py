"""Moments and BatchMoments, and their gradients."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.reductions.moments import BatchMoments, BatchMomentsGradient, Moments, MomentsGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_axes(data, cls):
    axes = data.draw(st.sampled_from([(), (0,), (1,), (-1,), (0, 2), (2, 0, 1)]))
    return cls(axes=axes, keepdims=data.draw(st.booleans())), data.draw(floats((1, 3), (1, 3), (1, 3)))


def over(op):
    return tuple({axis % 3 for axis in op.axes}) or (0, 1, 2)


class TestMoments(OperatorSuite):
    operator = Moments
    d_outputs = (0, 1)
    refusals = (
        refusal(Moments(axes=(2,)), [f32(2, 3)], "axes must lie in", n_out=2),
        refusal(Moments(), [i32(2)], "one floating type", n_out=2),
    )

    def draw(self, data):
        op, x = draw_axes(data, Moments)
        return op, [x]

    def reference(self, op, x):
        return [x.mean(over(op), keepdims=op.keepdims), x.var(over(op), keepdims=op.keepdims)]


class TestMomentsGradient(OperatorSuite):
    operator = MomentsGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(MomentsGradient(), [f32(1, 1), f32(2), f32(2, 3), f32(1, 1)], "dvariance .* is not the reduced shape"),
    )

    def draw(self, data):
        op, x = draw_axes(data, MomentsGradient)
        mean = np.asarray(x.mean(over(op), keepdims=op.keepdims))
        return op, [data.draw(floats(*mean.shape)), data.draw(floats(*mean.shape)), x, mean]

    def reference(self, op, dmean, dvar, x, mean):
        kept = x.mean(over(op), keepdims=True).shape
        count = x.size // np.prod(kept)
        apart = x - mean.reshape(kept)
        return [(dmean.reshape(kept) + 2 * apart * dvar.reshape(kept)) / count]


def draw_images(data, cls):
    order = data.draw(st.sampled_from(["NCHW", "NHWC"]))
    x = data.draw(floats(*data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))))
    return cls(order=order), x, x.shape[1 if order == "NCHW" else -1]


def last(op, x):
    """Return X with a column per channel, and how to put such a matrix back."""
    moved = np.moveaxis(x, 1, -1) if op.order == "NCHW" else x
    rows = moved.reshape(-1, moved.shape[-1])

    def back(matrix):
        images = matrix.reshape(moved.shape)
        return np.moveaxis(images, -1, 1) if op.order == "NCHW" else images

    return rows, back


class TestBatchMoments(OperatorSuite):
    operator = BatchMoments
    d_outputs = (0, 1)
    refusals = (
        refusal(BatchMoments(), [f32(3)], r"X must have shape \(N, C, \*S\)", n_out=2),
        refusal(BatchMoments(order="CN"), [f32(3, 4)], "NCHW or NHWC", ArgumentError, n_out=2),
    )

    def draw(self, data):
        op, x, _ = draw_images(data, BatchMoments)
        return op, [x]

    def reference(self, op, x):
        rows, _ = last(op, x)
        return [rows.mean(axis=0), rows.var(axis=0) + rows.mean(axis=0) ** 2]


class TestBatchMomentsGradient(OperatorSuite):
    operator = BatchMomentsGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(BatchMomentsGradient(), [f32(3), f32(4), f32(2, 4)], r"dvar must have the shape of dmu, \(3,\)"),
    )

    def draw(self, data):
        op, x, channels = draw_images(data, BatchMomentsGradient)
        return op, [data.draw(floats(channels)), data.draw(floats(channels)), x]

    def reference(self, op, dmu, dvar, x):
        rows, back = last(op, x)
        return [back((dmu + 2 * rows * dvar) / len(rows))]
