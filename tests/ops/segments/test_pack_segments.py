"""PackSegments and UnpackSegments."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.segments.pack_segments import PackSegments, UnpackSegments
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_lengths(data):
    return np.array(
        data.draw(st.lists(st.integers(0, 4), max_size=4)), data.draw(st.sampled_from([np.int32, np.int64]))
    )


class TestPackSegments(OperatorSuite):
    operator = PackSegments
    wrt = (1,)
    refusals = (
        refusal(PackSegments(), [i32(2), f32(3)], "only when the net runs", ShapeError),
        refusal(PackSegments(max_length=2), [f32(2), f32(3)], "lengths must be a vector of int32 or int64"),
        refusal(PackSegments(max_length=2), [i32(2), f32()], "got a scalar"),
        refusal(PackSegments(max_length=2), [i32(2), f32(3)], "return_presence_mask", ArgumentError, 2),
    )

    def draw(self, data):
        op = PackSegments(
            max_length=data.draw(st.sampled_from([-1, 2, 5])),
            pad_minf=data.draw(st.booleans()),
            return_presence_mask=True,
        )
        return self.filled(data, op.with_arity(2, data.draw(st.sampled_from([1, 2]))))

    def draw_gradient(self, data):
        return self.filled(data, PackSegments(max_length=data.draw(st.sampled_from([-1, 5]))))

    def filled(self, data, op):
        lengths = draw_lengths(data)
        return op, [lengths, data.draw(floats(int(lengths.sum()), *data.draw(st.sampled_from([(), (2,)]))))]

    def reference(self, op, lengths, x):
        width = op.max_length if op.max_length > 0 else max(lengths, default=0)
        y = np.full((len(lengths), width, *x.shape[1:]), -np.inf if op.pad_minf else 0.0)
        present, at = np.zeros((len(lengths), width), bool), 0
        for s, n in enumerate(lengths.tolist()):
            kept = min(n, width)
            y[s, :kept], present[s, :kept] = x[at : at + kept], True
            at += n
        return [y, present][: op.n_out]


class TestUnpackSegments(OperatorSuite):
    operator = UnpackSegments
    wrt = (1,)
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        lengths = draw_lengths(data)
        width = max(lengths, default=0)
        row = data.draw(st.sampled_from([(), (2,)]))
        return UnpackSegments(), [lengths, data.draw(floats(len(lengths), int(width), *row))]

    def reference(self, op, lengths, x):
        return [np.concatenate([np.zeros((0, *x.shape[2:])), *(x[s, :n] for s, n in enumerate(lengths))])]


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (PackSegments(), [np.int32([2, 2]), np.zeros(3, np.float32)], "must be the number of rows, 3, got 4"),
        (UnpackSegments(), [np.int32([2]), np.zeros((2, 2), np.float32)], r"for 1 lengths, got \(2, 2\)"),
        (UnpackSegments(max_length=3), [np.int32([2]), np.zeros((1, 2), np.float32)], "max_length = 3 steps, got 2"),
        (UnpackSegments(), [np.int32([-1]), np.zeros((1, 2), np.float32)], "must not be negative, got -1"),
    ],
    ids=range(4),
)
def test_what_does_not_fit(op, inputs, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(op, inputs)


def test_lengths_beyond_the_places():
    (y,) = run_plain(UnpackSegments(), [np.int32([2, 1]), np.float32([[1], [2]])])
    assert y.tolist() == [1, 2]
