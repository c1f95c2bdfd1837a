"""PackRNNSequence and UnpackRNNSequence."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.segments.pack_rnn_sequence import PackRNNSequence, UnpackRNNSequence
from netbuilder.proto import ShapeError
from suite import OperatorSuite, floats


def draw_lengths(data):
    return np.array(
        data.draw(st.lists(st.integers(0, 4), max_size=4)), data.draw(st.sampled_from([np.int32, np.int64]))
    )


class TestPackRNNSequence(OperatorSuite):
    operator = PackRNNSequence
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        lengths = draw_lengths(data)
        values = data.draw(floats(int(lengths.sum()), *data.draw(st.sampled_from([(), (2,), (2, 1)]))))
        more = data.draw(st.sampled_from([None, 0, 2]))
        like = [] if more is None else [np.zeros((max(lengths, default=0) + more, len(lengths)), np.float32)]
        return PackRNNSequence(), [values, lengths, *like]

    def reference(self, op, values, lengths, like=None):
        steps = max(lengths, default=0) if like is None else len(like)
        y, at = np.zeros((steps, len(lengths), *values.shape[1:])), 0
        for n, length in enumerate(lengths.tolist()):
            y[:length, n] = values[at : at + length]
            at += length
        return [y]


class TestUnpackRNNSequence(OperatorSuite):
    operator = UnpackRNNSequence
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        lengths = draw_lengths(data)
        steps = int(max(lengths, default=0)) + data.draw(st.integers(0, 2))
        return UnpackRNNSequence(), [data.draw(floats(steps, len(lengths), 2)), lengths]

    def reference(self, op, x, lengths):
        return [np.concatenate([np.zeros((0, *x.shape[2:])), *(x[:length, n] for n, length in enumerate(lengths))])]


def test_what_caffe2_computes():
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    (packed,) = run_plain(PackRNNSequence(), [values, np.int32([3, 1, 2])])
    assert packed.tolist() == [[[0, 1], [6, 7], [8, 9]], [[2, 3], [0, 0], [10, 11]], [[4, 5], [0, 0], [0, 0]]]
    (back,) = run_plain(UnpackRNNSequence(), [packed, np.int32([3, 1, 2])])
    assert back.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (PackRNNSequence(), [np.zeros((3, 1)), np.int32([2, 2])], "must be the number of rows, 3, got 4"),
        (PackRNNSequence(), [np.zeros(()), np.int32([])], "values must have rows, got a scalar"),
        (PackRNNSequence(), [np.zeros((2, 1)), np.int32([2]), np.zeros((1, 1))], "than the 1 steps of like, got 2"),
        (UnpackRNNSequence(), [np.zeros((2, 3)), np.int32([2, 1])], r"for 2 lengths, got \(2, 3\)"),
        (UnpackRNNSequence(), [np.zeros((2, 2)), np.int32([2, 3])], r"must lie in \[0, 2\], the steps of X, got 3"),
        (UnpackRNNSequence(), [np.zeros((2, 2)), np.int32([-1, 1])], "got -1"),
        (UnpackRNNSequence(), [np.zeros((2, 2)), np.float32([1, 1])], "lengths must be a vector of int32 or int64"),
    ],
    ids=range(7),
)
def test_what_does_not_fit(op, inputs, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(op, inputs)
