"""Recurrent cells in NumPy, float64, written from their formulas."""

from __future__ import annotations

import numpy as np

__all__ = ["CELLS", "attention_step", "run", "sigmoid"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _fc(p, name, x):
    return x @ p[f"{name}_w"].T + p[f"{name}_b"]


def _unit(gates, cell, forget_bias=0.0):
    i, f, o, g = np.split(gates, 4, axis=-1)
    cell = sigmoid(f + forget_bias) * cell + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(cell), cell]


def _normalized(p, gates, epsilon=1e-4):
    mean = gates.mean(-1, keepdims=True)
    deviation = np.sqrt(((gates - mean) ** 2).mean(-1, keepdims=True) + epsilon)
    return (gates - mean) / deviation * p["gates_t_norm_scale"] + p["gates_t_norm_bias"]


def lstm(p, x, states, forget_bias=0.0, extra=()):
    gates = _fc(p, "i2h", x) + _fc(p, "gates_t", np.concatenate([states[0], *extra], -1))
    return _unit(gates, states[1], forget_bias)


def layer_norm_lstm(p, x, states):
    return _unit(_normalized(p, _fc(p, "i2h", x) + _fc(p, "gates_t", states[0])), states[1])


def _multiplied(p, x, hidden):
    x, h = _fc(p, "i2h", x), _fc(p, "prev_t", hidden)
    return (p["alpha"] * x + p["beta1"]) * h + p["beta2"] * x + p["b"]


def milstm(p, x, states):
    return _unit(_multiplied(p, x, states[0]), states[1])


def layer_norm_milstm(p, x, states):
    return _unit(_normalized(p, _multiplied(p, x, states[0])), states[1])


def basic(activation):
    def step(p, x, states):
        return [activation(_fc(p, "i2h", x) + _fc(p, "gates_t", states[0]))]

    return step


def gru(p, x, states, linear_before_reset=False):
    (h,) = states
    reset, update, output = np.split(_fc(p, "i2h", x), 3, axis=-1)
    r = sigmoid(reset + _fc(p, "reset_gate_t", h))
    u = sigmoid(update + _fc(p, "update_gate_t", h))
    inner = r * _fc(p, "output_gate_t", h) if linear_before_reset else _fc(p, "output_gate_t", r * h)
    return [u * h + (1 - u) * np.tanh(output + inner)]


CELLS = {
    "lstm": (lstm, 2),
    "layer_norm_lstm": (layer_norm_lstm, 2),
    "milstm": (milstm, 2),
    "layer_norm_milstm": (layer_norm_milstm, 2),
    "relu": (basic(lambda x: np.maximum(x, 0)), 1),
    "tanh": (basic(np.tanh), 1),
    "gru": (gru, 1),
    "gru_linear": (lambda p, x, states: gru(p, x, states, True), 1),
}
"""Cell -> its step, and how many states it has."""


def run(step, x, states, lengths=None, drop=False):
    """Return for each state all its values; after the end of a sequence, states are constant, or 0."""
    values = [[] for _ in states]
    for t, now in enumerate(x):
        after = step(now, states)
        if lengths is not None:
            going = (lengths > t)[:, None]
            after = [np.where(going, new, 0 if drop else old) for new, old in zip(after, states)]
        states = after
        for kept, state in zip(values, states):
            kept.append(state)
    return [np.stack(kept) for kept in values]


def attention_step(p, kind, encoder, lengths, hidden, context, coverage):
    """Return (context, weights (samples, steps)) of encoder outputs (steps, samples, width)."""
    if kind == "dot":
        query = _fc(p, "weighted_decoder_hidden_state", hidden) if "weighted_decoder_hidden_state_w" in p else hidden
        logits = np.einsum("tne,ne->nt", encoder, query)
    else:
        total = _fc(p, "weighted_encoder_outputs", encoder) + _fc(p, "weighted_decoder_hidden_state", hidden)
        if kind == "recurrent":
            total = total + _fc(p, "weighted_prev_attention_context", context)
        if kind == "soft_coverage":
            total = total + _fc(p, "coverage_weights", encoder) * coverage.T[:, :, None]
        logits = (np.tanh(total) @ p["attention_logits_w"].T)[..., 0].T
    if lengths is not None:
        logits = np.where(np.arange(logits.shape[1]) < lengths[:, None], logits, -np.inf)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return np.einsum("tne,nt->ne", encoder, weights), weights
