"""Slice and its gradient."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.arrange.slice import Slice, SliceGradient
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal

BOXES = [
    ((1, 0), (3, -1)),
    ((0, 1), (-1, -2)),
    ((2,), (4,)),
    ((-2,), (-1,)),
    ((-3, 0), (-2, 2)),
    ((1,), (99,)),
    ((5,), (5,)),
    ((0, 0, 1), (2, 3, 2)),
]


def cut(shape, starts, ends):
    """The selected indices of each axis; an end of -1 means one past the last."""
    kept = []
    for axis, extent in enumerate(shape):
        start, end = (starts[axis], ends[axis]) if axis < len(starts) else (0, extent)
        start = start + extent + 1 if start < 0 else start
        end = end + extent + 1 if end < 0 else end
        kept.append([i for i in range(extent) if start <= i < end])
    return np.ix_(*kept)


def draw_box(data, cls):
    """Return the operator and the inputs after X; the bounds are arguments or inputs."""
    starts, ends = data.draw(st.sampled_from(BOXES))
    dtype = data.draw(st.sampled_from([None, np.int32, np.int64]))
    if dtype is None:
        return cls(starts=starts, ends=ends), []
    return cls(), [np.array(starts, dtype), np.array(ends, dtype)]


def bounds(op, given):
    return [tuple(b.astype(int).tolist()) for b in given] if given else [op.starts, op.ends]


class TestSlice(OperatorSuite):
    operator = Slice
    refusals = (
        refusal(Slice(), [f32(3)], "lists of the same length, 1 or more", ArgumentError),
        refusal(Slice(starts=(1, 2), ends=(2,)), [f32(3, 3)], "lists of the same length", ArgumentError),
        refusal(Slice(), [f32(3), i32(1)], "must both be inputs", ArgumentError),
        refusal(Slice(starts=(0, 0), ends=(1, 1)), [f32(3)], "for all or the first axes of X", ShapeError),
        refusal(Slice(starts=(2,), ends=(1,)), [f32(3)], "must not be before the start", ShapeError),
        refusal(Slice(starts=(-9,), ends=(1,)), [f32(3)], "from -9 to 1", ShapeError),
        refusal(Slice(), [f32(3), i32(1), i32(1)], "only when the net runs", ShapeError),
    )

    def draw(self, data):
        op, given = draw_box(data, Slice)
        return op, [data.draw(floats(5, 3, 2)), *given]

    def reference(self, op, x, *given):
        return [x[cut(x.shape, *bounds(op, given))]]


class TestSliceWithSteps(OperatorSuite):
    operator = Slice
    refusals = (
        refusal(Slice(starts=(0,), ends=(2,), steps=(0,)), [f32(3)], "one number other than 0", ArgumentError),
        refusal(Slice(starts=(0,), ends=(2,), steps=(1, 1)), [f32(3)], "for each of the starts", ArgumentError),
    )

    def draw(self, data):
        axes = range(data.draw(st.integers(1, 2)))
        starts, ends = (tuple(data.draw(st.integers(-7, 7)) for _ in axes) for _ in range(2))
        steps = tuple(data.draw(st.sampled_from([-3, -1, 1, 2])) for _ in axes)
        x = data.draw(floats(5, 3, 2))
        if data.draw(st.booleans()):
            return Slice(steps=steps), [x, np.int64(starts), np.int64(ends)]
        return Slice(starts=starts, ends=ends, steps=steps), [x]

    def reference(self, op, x, *given):
        starts, ends = bounds(op, given)
        return [x[tuple(slice(*each) for each in zip(starts, ends, op.steps))]]


class TestSliceGradient(OperatorSuite):
    operator = SliceGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(SliceGradient(), [f32(3), f32(3)], "lists of the same length, 1 or more", ArgumentError),
        refusal(SliceGradient(starts=(1,), ends=(2,)), [f32(3), f32(2)], r"dY must have shape \(1,\)", ShapeError),
    )

    def draw(self, data):
        op, given = draw_box(data, SliceGradient)
        x = data.draw(floats(5, 3, 2))
        dy = data.draw(floats(*x[cut(x.shape, *bounds(op, given))].shape))
        return op, [x, *given, dy]

    def reference(self, op, x, *rest):
        *given, dy = rest
        dx = np.zeros(x.shape)
        dx[cut(x.shape, *bounds(op, given))] = dy
        return [dx]


def test_bounds_that_run_backwards_at_run_time():
    with pytest.raises(ShapeError, match="must not be before the start"):
        run_plain(Slice(), [np.zeros(4, np.float32), np.int32([3]), np.int32([1])])
