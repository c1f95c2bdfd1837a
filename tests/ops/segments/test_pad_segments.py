"""AddPadding, RemovePadding, GatherPadding."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.segments.pad_segments import AddPadding, GatherPadding, RemovePadding
from netbuilder.proto import ArgumentError, GradientError, ShapeError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, i32, refusal

ROWS = [(), (3,)]


def draw_segments(data, least=0):
    """Draw lengths (None: one segment), their sum, and the shape of a row."""
    row = data.draw(st.sampled_from(ROWS))
    if data.draw(st.booleans()):
        return None, data.draw(st.integers(least, least + 3)), row
    lengths = np.array(data.draw(st.lists(st.integers(least, least + 3), max_size=3)), np.int32)
    return lengths, int(lengths.sum()), row


def cut(x, lengths):
    lengths = [len(x)] if lengths is None else lengths.tolist()
    ends = np.cumsum(lengths).tolist()
    return [x[b - n : b] for b, n in zip(ends, lengths)]


def joined(x, parts):
    return np.concatenate([x[:0], *parts])


class TestAddPadding(OperatorSuite):
    operator = AddPadding
    refusals = (
        refusal(AddPadding(padding_width=-1), [f32(3)], "must not be negative", ArgumentError),
        refusal(AddPadding(), [f32()], "got a scalar"),
        refusal(AddPadding(), [f32(3), f32(2)], "lengths must be a vector"),
        refusal(AddPadding(), [f32(3, 2), i32(2), f32(3)], r"start_padding must be like a row of X, \(2,\)"),
    )

    def draw(self, data):
        lengths, count, row = draw_segments(data)
        op = AddPadding(padding_width=data.draw(st.integers(0, 2)), end_padding_width=data.draw(st.integers(-1, 2)))
        paddings = data.draw(st.integers(0, 2)) if lengths is not None else 0
        given = [data.draw(floats(count, *row)), *([] if lengths is None else [lengths])]
        return op.with_arity(len(given) + paddings, 2), [*given, *(data.draw(floats(*row)) for _ in range(paddings))]

    def reference(self, op, x, lengths=None, start=0.0, end=None):
        end = start if end is None else end
        before = op.padding_width
        behind = before if op.end_padding_width < 0 else op.end_padding_width
        row = x.shape[1:]
        parts = [
            np.concatenate([np.broadcast_to(start, (before, *row)), s, np.broadcast_to(end, (behind, *row))])
            for s in cut(x, lengths)
        ]
        return [joined(x, parts), np.array([len(part) for part in parts], int)]

    def test_gradient_of_paddings(self):
        made, where = operator_gradient(make_op("AddPadding", ["x", "n", "s", "e"], ["y", "m"]), {0: "dy"})
        assert [(op.type, list(op.input), list(op.output)) for op in made] == [
            ("RemovePadding", ["dy", "m"], ["x_grad"]),
            ("GatherPadding", ["dy", "m"], ["s_grad", "e_grad"]),
        ]
        assert where == {0: "x_grad", 2: "s_grad", 3: "e_grad"}


class TestRemovePadding(OperatorSuite):
    operator = RemovePadding
    refusals = (refusal(RemovePadding(padding_width=2), [f32(3)], "1 segments of 3 rows are shorter"),)

    def draw(self, data):
        lengths, count, row = draw_segments(data, least=3)
        op = RemovePadding(padding_width=data.draw(st.integers(0, 2)), end_padding_width=data.draw(st.integers(0, 1)))
        given = [data.draw(floats(count, *row)), *([] if lengths is None else [lengths])]
        return op.with_arity(len(given), 2), given

    def reference(self, op, x, lengths=None):
        parts = [s[op.padding_width : len(s) - op.end_padding_width] for s in cut(x, lengths)]
        return [joined(x, parts), np.array([len(part) for part in parts], int)]


class TestGatherPadding(TestRemovePadding):
    operator = GatherPadding
    no_gradient = "a gradient operator"
    refusals = (refusal(GatherPadding(padding_width=2), [f32(3), i32(1)], "shorter than their padding"),)

    def draw(self, data):
        op, given = super().draw(data)
        op = GatherPadding(padding_width=op.padding_width, end_padding_width=op.end_padding_width)
        return op.with_arity(len(given), data.draw(st.integers(1, 2))), given

    def reference(self, op, x, lengths=None):
        zero = np.zeros(x.shape[1:])
        front = sum((s[: op.padding_width].sum(axis=0) for s in cut(x, lengths)), zero)
        back = sum((s[len(s) - op.end_padding_width :].sum(axis=0) for s in cut(x, lengths)), zero)
        return [front, back] if op.n_out == 2 else [front + back]


def test_a_segment_shorter_than_its_padding():
    with pytest.raises(ShapeError, match="must have the 2 rows of its padding, got 1"):
        run_plain(RemovePadding().with_arity(2, 1), [np.zeros((5, 2), np.float32), np.int32([1, 4])])


def test_the_gradient_needs_the_new_lengths():
    with pytest.raises(GradientError, match="needs its second output"):
        operator_gradient(make_op("AddPadding", ["x", "n"], ["y"]), {0: "dy"})
