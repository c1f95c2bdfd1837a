"""ONNXRNN, ONNXGRU and ONNXLSTM: against loops over single numbers in float64; refusals."""

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.core.operator import decode, encode
from netbuilder.ops.recurrent.onnx_recurrent import ONNXGRU, ONNXLSTM, ONNXRNN
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, i32, refusal

STEPS, COUNT, WIDTH, UNITS = 3, 2, 4, 5
WITHOUT = "models that are read are not trained through it; RecurrentNetwork has gradients"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn(op, x, h, c, w, r, b, p):
    return np.tanh(w @ x + r @ h + b[:UNITS] + b[UNITS:]), c


def gru(op, x, h, c, w, r, b, p):
    (wz, wr, wo), (rz, rr, ro) = np.split(w, 3), np.split(r, 3)
    bz, br, bo, cz, cr, co = np.split(b, 6)
    z, reset = sigmoid(wz @ x + rz @ h + bz + cz), sigmoid(wr @ x + rr @ h + br + cr)
    inner = reset * (ro @ h + co) if op.linear_before_reset else ro @ (reset * h) + co
    return (1 - z) * np.tanh(wo @ x + bo + inner) + z * h, c


def lstm(op, x, h, c, w, r, b, p):
    (wi, wo, wf, wg), (ri, ro, rf, rg) = np.split(w, 4), np.split(r, 4)
    bi, bo, bf, bg, ci, co, cf, cg = np.split(b, 8)
    pi, po, pf = np.split(p, 3)
    i, f = sigmoid(wi @ x + ri @ h + bi + ci + pi * c), sigmoid(wf @ x + rf @ h + bf + cf + pf * c)
    new = f * c + i * np.tanh(wg @ x + rg @ h + bg + cg)
    return sigmoid(wo @ x + ro @ h + bo + co + po * new) * np.tanh(new), new


class Recurrent(OperatorSuite):
    gates: int
    step: staticmethod
    no_gradient = WITHOUT

    def draw(self, data):
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
        layout = data.draw(st.integers(0, 1))
        given = [name for name in self.operator.optional if data.draw(st.booleans())]
        d = 2 if direction == "bidirectional" else 1
        state = (COUNT, d, UNITS) if layout else (d, COUNT, UNITS)
        shapes = {"B": (d, 2 * self.gates * UNITS), "initial_h": state, "initial_c": state, "P": (d, 3 * UNITS)}
        inputs = [
            rng.standard_normal(shape, dtype=np.float32)
            for shape in (
                (COUNT, STEPS, WIDTH) if layout else (STEPS, COUNT, WIDTH),
                (d, self.gates * UNITS, WIDTH),
                (d, self.gates * UNITS, UNITS),
            )
        ]
        for name in given:
            if name == "sequence_lens":
                inputs.append(rng.integers(1, STEPS + 1, COUNT).astype(np.int32))
            else:
                inputs.append(rng.standard_normal(shapes[name], dtype=np.float32))
        more = {"linear_before_reset": data.draw(st.booleans())} if self.operator is ONNXGRU else {}
        op = self.operator(hidden_size=UNITS, direction=direction, layout=layout, given=tuple(given), **more)
        return op, inputs

    def reference(self, op, x, w, r, *more):
        named = dict(zip(op.given, more))
        d = w.shape[0]
        states = {name: np.zeros((d, COUNT, UNITS)) for name in ("initial_h", "initial_c")}
        for name in set(states) & set(named):
            states[name] = named[name].swapaxes(0, 1) if op.layout else named[name]
        x = x.swapaxes(0, 1) if op.layout else x
        bias, peepholes = (
            named.get("B", np.zeros((d, 2 * self.gates * UNITS))),
            named.get("P", np.zeros((d, 3 * UNITS))),
        )
        y, last = np.zeros((STEPS, d, COUNT, UNITS)), [np.zeros((d, COUNT, UNITS)) for _ in range(2)]
        for k in range(d):
            for n in range(COUNT):
                length = int(named["sequence_lens"][n]) if "sequence_lens" in named else STEPS
                h, c = states["initial_h"][k, n], states["initial_c"][k, n]
                turned = op.direction == "reverse" or k == 1
                for t in reversed(range(length)) if turned else range(length):
                    h, c = type(self).step(op, x[t, n], h, c, w[k], r[k], bias[k], peepholes[k])
                    y[t, k, n] = h
                last[0][k, n], last[1][k, n] = h, c
        if op.layout:
            y, last = y.transpose(2, 0, 1, 3), [state.swapaxes(0, 1) for state in last]
        return [y, *last][: op.n_out]


SPECS = [f32(3, 2, 4), f32(1, 5, 4), f32(1, 5, 5)]


class TestONNXRNN(Recurrent):
    operator, gates, step = ONNXRNN, 1, staticmethod(rnn)
    refusals = (
        refusal(ONNXRNN(hidden_size=5), [f32(3, 2), *SPECS[1:]], "X must have three axes"),
        refusal(ONNXRNN(hidden_size=4), SPECS, r"W must have shape \(1, 4, 4\), got \(1, 5, 4\)"),
        refusal(
            ONNXRNN(hidden_size=5, given=("sequence_lens",)), [*SPECS, i32(3)], r"sequence_lens must have shape \(2,\)"
        ),
    )


class TestONNXGRU(Recurrent):
    operator, gates, step = ONNXGRU, 3, staticmethod(gru)
    refusals = (refusal(ONNXGRU(hidden_size=5), SPECS, r"W must have shape \(1, 15, 4\)"),)


class TestONNXLSTM(Recurrent):
    operator, gates, step = ONNXLSTM, 4, staticmethod(lstm)
    refusals = (refusal(ONNXLSTM(hidden_size=5), SPECS, r"W must have shape \(1, 20, 4\)"),)


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({}, "hidden_size must be at least 1, got 0"),
        (
            {"hidden_size": 5, "direction": "back"},
            "direction must be one of forward, reverse, bidirectional, got 'back'",
        ),
        ({"hidden_size": 5, "layout": 2}, "layout must be 0 or 1, got 2"),
        ({"hidden_size": 5, "given": ("B",)}, "given must name its 0 further inputs"),
        ({"hidden_size": 5, "activations": ("Affine",)}, "activations must be 1 of Sigmoid, Tanh and Relu"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        decode(ONNXRNN, encode(ONNXRNN(**arguments), ["x", "w", "r"], ["y", "h"]))


def test_relu_and_a_bound_of_what_goes_into_activations():
    x, w, r = np.full((1, 1, 1), 3, np.float32), np.full((1, 1, 1), 2, np.float32), np.zeros((1, 1, 1), np.float32)
    from checks import run_plain

    assert run_plain(ONNXRNN(hidden_size=1, activations=("Relu",)), [x, w, r])[1].item() == 6
    assert run_plain(ONNXRNN(hidden_size=1, activations=("Relu",), clip=4.0), [x, w, r])[1].item() == 4
