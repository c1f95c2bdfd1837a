"""LSTMUnit and GRUUnit."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.operator import decode, encode
from netbuilder.ops.recurrent.units import GRUUnit, GRUUnitGradient, LSTMUnit, LSTMUnitGradient
from netbuilder.proto import NetError
from suite import OperatorSuite, f32, floats, i32, refusal


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def draw_when(data, op, samples):
    """The lengths of the sequences, where the operator reads them, and the timestep."""
    step = np.array([data.draw(st.integers(0, 3))], np.int32)
    if not op.sequence_lengths:
        return [step]
    return [np.array(data.draw(st.lists(st.integers(0, 5), min_size=samples, max_size=samples)), np.int32), step]


def held(op, when, new, old):
    if not op.sequence_lengths:
        return new
    going = (when[0] > when[1][0])[:, None]
    return np.where(going, new, 0 if op.drop_states else old)


class TestLSTMUnit(OperatorSuite):
    operator = LSTMUnit
    wrt = (0, 1, 2)
    d_outputs = (0, 1)
    refusals = (
        refusal(
            LSTMUnit(), [f32(1, 3, 2), f32(1, 3, 2), f32(1, 3, 6), i32(3), i32(1)], r"gates must have shape \(1, 3, 8\)"
        ),
        refusal(LSTMUnit(), [f32(1, 3, 2), f32(1, 2, 2), f32(1, 3, 8), i32(3), i32(1)], "all states must have shape"),
        refusal(
            LSTMUnit(),
            [f32(1, 3, 2), f32(1, 3, 2), f32(1, 3, 8), i32(2), i32(1)],
            r"seq_lengths must have shape \(3,\)",
        ),
        refusal(
            LSTMUnit(), [f32(1, 3, 2), f32(1, 3, 2), f32(1, 3, 8), i32(3), i32(2)], "timestep must hold one number"
        ),
        refusal(LSTMUnit(), [f32(2), f32(2), f32(8), i32(2), i32(1)], "samples and a width"),
    )

    def draw(self, data):
        op = LSTMUnit(
            drop_states=data.draw(st.booleans()),
            sequence_lengths=data.draw(st.booleans()),
            forget_bias=data.draw(st.sampled_from([0.0, 1.5])),
        ).with_arity(4, 2)
        states = [data.draw(floats(1, 3, 2)) for _ in range(2)]
        return op, [*states, data.draw(floats(1, 3, 8)), *draw_when(data, op, 3)]

    def reference(self, op, hidden, cell, gates, *when):
        i, f, o, g = np.split(gates, 4, axis=-1)
        new = sigmoid(f + op.forget_bias) * cell + sigmoid(i) * np.tanh(g)
        return [held(op, when, sigmoid(o) * np.tanh(new), hidden), held(op, when, new, cell)]


class TestGRUUnit(OperatorSuite):
    operator = GRUUnit
    wrt = (0, 1)
    refusals = (
        refusal(GRUUnit(), [f32(1, 3, 2), f32(1, 3, 8), i32(3), i32(1)], r"gates must have shape \(1, 3, 6\)"),
        refusal(GRUUnit(), [i32(1, 3, 2), i32(1, 3, 6), i32(3), i32(1)], "floating-point numbers"),
    )

    def draw(self, data):
        op = GRUUnit(drop_states=data.draw(st.booleans()), sequence_lengths=data.draw(st.booleans()))
        return op, [data.draw(floats(1, 3, 2)), data.draw(floats(1, 3, 6)), *draw_when(data, op, 3)]

    def reference(self, op, hidden, gates, *when):
        _, u, o = np.split(gates, 3, axis=-1)
        return [held(op, when, sigmoid(u) * hidden + (1 - sigmoid(u)) * np.tanh(o), hidden)]


class _Gradient(OperatorSuite):
    no_gradient = "a gradient operator"


class TestLSTMUnitGradient(_Gradient):
    operator = LSTMUnitGradient
    refusals = (
        refusal(
            LSTMUnitGradient(),
            [f32(1, 3, 2), f32(1, 3, 2), f32(1, 3, 8), i32(3), i32(1), *[f32(1, 3, 2)] * 3, f32(1, 3, 1)],
            r"all states must have shape \(1, 3, 2\)",
        ),
    )

    def draw(self, data):
        op, given = TestLSTMUnit().draw(data)
        outputs = TestLSTMUnit().reference(op, *given)
        slopes = [data.draw(floats(1, 3, 2)) for _ in range(2)]
        made = LSTMUnitGradient(op.drop_states, op.sequence_lengths, op.forget_bias)
        return made, [*given, *(y.astype(np.float32) for y in outputs), *slopes]

    def reference(self, op, *given):
        """By central differences, in float64."""
        forward = TestLSTMUnit().reference
        return _differences(lambda *x: forward(op, *x, *given[3:-4]), given[:3], given[-2:])


class TestGRUUnitGradient(_Gradient):
    operator = GRUUnitGradient
    refusals = (
        refusal(
            GRUUnitGradient(),
            [f32(1, 3, 2), f32(1, 3, 6), i32(3), i32(1), f32(1, 3, 2), f32(1, 3, 1)],
            r"all states must have shape \(1, 3, 2\)",
        ),
    )

    def draw(self, data):
        op, given = TestGRUUnit().draw(data)
        (y,) = TestGRUUnit().reference(op, *given)
        return GRUUnitGradient(op.drop_states, op.sequence_lengths), [
            *given,
            y.astype(np.float32),
            data.draw(floats(1, 3, 2)),
        ]

    def reference(self, op, *given):
        forward = TestGRUUnit().reference
        return _differences(lambda *x: forward(op, *x, *given[2:-2]), given[:2], given[-1:])


def _differences(forward, xs, slopes, step=1e-5):
    found = []
    for k, x in enumerate(xs):
        slope = np.zeros(x.shape)
        for place in np.ndindex(x.shape):
            sides = []
            for sign in (1, -1):
                moved = [np.array(v) for v in xs]
                moved[k][place] += sign * step
                sides.append(sum((w * y).sum() for w, y in zip(slopes, forward(*moved))))
            slope[place] = (sides[0] - sides[1]) / (2 * step)
        found.append(slope)
    return found


def test_the_number_of_inputs():
    with pytest.raises(NetError, match="LSTMUnit takes 5 inputs with sequence_lengths, got 4"):
        decode(LSTMUnit, encode(LSTMUnit(), list("abcd"), ["hidden", "cell"]))
    with pytest.raises(NetError, match="GRUUnit takes 3 inputs without sequence_lengths, got 4"):
        decode(GRUUnit, encode(GRUUnit(sequence_lengths=False), list("abcd"), ["h"]))


def test_gates_far_from_zero():
    x = np.full((1, 1, 1), 1e4, np.float32)
    gates = np.float32([-1e4, 1e4, 1e4, 1e4]).reshape(1, 1, 4)
    op = LSTMUnit(sequence_lengths=False).with_arity(4, 2)
    hidden, cell = run_plain(op, [x, x, gates, np.int32([0])])
    assert (hidden.item(), cell.item()) == (1, 1e4)
