"""InferenceLSTM: against a float64 loop over gates, and numbers that Caffe2 computed."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.recurrent.inference_lstm import InferenceLSTM
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal

ONE = [f32(2, 3, 4), f32(1, 3, 5), f32(1, 3, 5), f32(20, 4), f32(20, 5), f32(20), f32(20)]


def changed(number, spec):
    return [*ONE[:number], spec, *ONE[number + 1 :]]


class TestInferenceLSTM(OperatorSuite):
    operator = InferenceLSTM
    no_gradient = "for inference alone"
    refusals = (
        refusal(InferenceLSTM(num_layers=0), ONE, "num_layers must be at least 1", ArgumentError),
        refusal(InferenceLSTM(num_layers=2), ONE, "needs 8 parameters, got 4", ArgumentError),
        refusal(InferenceLSTM(), changed(0, f32(2, 3)), "X must have 3 axes"),
        refusal(InferenceLSTM(), changed(2, f32(1, 3, 4)), "the first states must have the shape"),
        refusal(InferenceLSTM(), changed(3, f32(20, 5)), "the parameters of part 0"),
        refusal(InferenceLSTM(), changed(3, i32(20, 4)), "must have the type of X"),
    )

    def draw(self, data):
        layers, ways, biases = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), data.draw(st.booleans())
        op = InferenceLSTM(layers, biases, data.draw(st.booleans()), ways == 2)
        steps, samples, width, hidden = (data.draw(st.integers(1, 3)) for _ in range(4))
        inputs = [data.draw(floats(*((samples, steps) if op.batch_first else (steps, samples)), width))]
        inputs += [data.draw(floats(layers * ways, samples, hidden)) for _ in range(2)]
        for i in range(layers * ways):
            below = width if i < ways else hidden * ways
            shapes = [(4 * hidden, below), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
            inputs += [data.draw(floats(*shape)) for shape in shapes[: 4 if biases else 2]]
        return op.with_arity(len(inputs), 3), inputs

    def reference(self, op, x, first_hidden, first_cell, *params):
        rows = np.swapaxes(x, 0, 1) if op.batch_first else x
        each, ways = 4 if op.has_biases else 2, 2 if op.bidirectional else 1
        hidden_last, cell_last = np.zeros_like(first_hidden), np.zeros_like(first_cell)
        for layer in range(op.num_layers):
            made = []
            for way in range(ways):
                i = layer * ways + way
                w, u, *biases = params[i * each : (i + 1) * each]
                h, c = first_hidden[i], first_cell[i]
                found = {}
                for t in range(len(rows))[:: -1 if way else 1]:
                    gates = np.split(rows[t] @ w.T + h @ u.T + sum(biases), 4, axis=1)
                    i_, f, o = (1 / (1 + np.exp(-gates[k])) for k in (0, 1, 3))
                    c = f * c + i_ * np.tanh(gates[2])
                    found[t] = h = o * np.tanh(c)
                hidden_last[i], cell_last[i] = h, c
                made.append(np.stack([found[t] for t in range(len(rows))]))
            rows = np.concatenate(made, axis=2)
        return [np.swapaxes(rows, 0, 1) if op.batch_first else rows, hidden_last, cell_last]


def test_what_caffe2_computes():
    rng = np.random.RandomState(0)
    shapes = [(3, 2, 4), (20, 4), (20, 5), (20,), (20,)]
    x, *params = (rng.randn(*shape).astype(np.float32) for shape in shapes)
    first = np.zeros((1, 2, 5), np.float32)
    output, hidden, cell = run_plain(InferenceLSTM().with_arity(7, 3), [x, first, first, *params])
    want = [-0.7139655351638794, -0.0007897915202192962, 0.05368006229400635, -0.1509319692850113, 0.34319281578063965]
    np.testing.assert_allclose(output[-1, 0], want, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(output[-1], hidden[0])
    want = [-0.25860142707824707, 0.09416838735342026, 0.2805270552635193, -0.0601697601377964, 0.46098023653030396]
    np.testing.assert_allclose(cell[0, 1], want, rtol=1e-4, atol=1e-6)
