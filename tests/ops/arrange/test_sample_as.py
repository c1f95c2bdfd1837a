"""SpatialNarrowAs, SampleAs, and their gradients."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.arrange.sample_as import SampleAs, SampleAsGradient, SpatialNarrowAs, SpatialNarrowAsGradient
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal


def draw_pair(data):
    a = data.draw(floats((1, 2), (1, 2), (2, 4), (2, 4)))
    return a, np.zeros((3, 1, *(data.draw(st.integers(1, n)) for n in a.shape[2:])), np.float32)


class TestSpatialNarrowAs(OperatorSuite):
    operator = SpatialNarrowAs
    refusals = (
        refusal(SpatialNarrowAs(), [f32(1, 1, 2, 3), f32(1, 1, 3, 3)], "no smaller than B"),
        refusal(SpatialNarrowAs(), [f32(1, 2, 3), f32(1, 1, 3, 3)], r"A must have shape \(N, C, H, W\)"),
    )

    def draw(self, data):
        return SpatialNarrowAs(), [*draw_pair(data)]

    def reference(self, op, a, b):
        return [a[:, :, : b.shape[2], : b.shape[3]]]


class TestSpatialNarrowAsGradient(OperatorSuite):
    operator = SpatialNarrowAsGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(SpatialNarrowAsGradient(), [f32(1, 1, 3, 3), f32(1, 1, 2, 2), f32(1, 1, 3, 3)], "dC must have shape"),
    )

    def draw(self, data):
        a, b = draw_pair(data)
        return SpatialNarrowAsGradient(), [a, b, data.draw(floats(*a.shape[:2], *b.shape[2:]))]

    def reference(self, op, a, b, dc):
        return [np.pad(dc, [(0, n - m) for n, m in zip(a.shape, dc.shape)])]


def draw_samples(data):
    x = data.draw(floats((0, 5), (1, 3)))
    return x, np.random.default_rng(data.draw(st.integers(0, 99))).integers(-1, 3, (len(x), 1), np.int32)


class TestSampleAs(OperatorSuite):
    operator = SampleAs
    refusals = (
        refusal(SampleAs(), [f32(3, 2), i32(2)], r"labels must have 3 elements, got shape \(2,\)"),
        refusal(SampleAs(), [f32(3, 2), i64(3)], "labels must have elements of type int32, got int64"),
        refusal(SampleAs(), [f32(3, 2), i32(3)], "only when the net runs", NotImplementedError),
    )

    def draw(self, data):
        return SampleAs(), [*draw_samples(data)]

    def reference(self, op, x, labels):
        return [x[[i for i, label in enumerate(labels.ravel()) if label > 0]]]


class TestSampleAsGradient(OperatorSuite):
    operator = SampleAsGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(SampleAsGradient(), [f32(3, 2), i32(3), f32(1, 3)], r"dY must have shape \(M, 2\) = \(M, \*S\)"),
    )

    def draw(self, data):
        x, labels = draw_samples(data)
        return SampleAsGradient(), [x, labels, data.draw(floats(int((labels > 0).sum()), x.shape[1]))]

    def reference(self, op, x, labels, dy):
        dx, rows = np.zeros(x.shape), iter(dy)
        for i, label in enumerate(labels.ravel()):
            if label > 0:
                dx[i] = next(rows)
        return [dx]


def test_gradients_of_other_samples():
    with pytest.raises(ShapeError, match="dY must have one sample per positive label, 1, got 2"):
        run_plain(SampleAsGradient(), [np.ones((2, 1), np.float32), np.int32([0, 1]), np.ones((2, 1), np.float32)])
