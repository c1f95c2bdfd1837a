"""Flatten, FlattenToVec, ResizeLike."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.arrange.flatten import Flatten, FlattenToVec, ResizeLike
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_any(data):
    return data.draw(floats(*data.draw(st.lists(st.integers(1, 3), max_size=4))))


class TestFlatten(OperatorSuite):
    operator = Flatten
    refusals = (
        refusal(Flatten(axis=3), [f32(2, 3)], r"axis must lie in \[-2, 2\]"),
        refusal(Flatten(axis=-1), [f32(2, 3)], "axis must not be negative", ArgumentError),
    )

    def draw(self, data):
        x = draw_any(data)
        return Flatten(axis=data.draw(st.integers(0, x.ndim))), [x]

    def reference(self, op, x):
        rows = int(np.prod(x.shape[: op.axis]))
        return [np.array(x.ravel().tolist()).reshape(rows, x.size // rows)]


class TestFlattenToVec(OperatorSuite):
    operator = FlattenToVec
    refuses_nothing = "anything has a flat form"

    def draw(self, data):
        return FlattenToVec(), [draw_any(data)]

    def reference(self, op, x):
        return [np.array(x.ravel().tolist())]


class TestResizeLike(OperatorSuite):
    operator = ResizeLike
    no_gradient = "Caffe2 has none"
    refusals = (refusal(ResizeLike(), [f32(2, 3), i32(7)], "must have the same number of elements"),)

    def draw(self, data):
        x = draw_any(data)
        shape = data.draw(st.sampled_from([(x.size,), (1, x.size), (x.size, 1), x.shape[::-1]]))
        return ResizeLike(), [x, np.zeros(shape, np.int32)]

    def reference(self, op, x, like):
        return [np.array(x.ravel().tolist()).reshape(like.shape)]
