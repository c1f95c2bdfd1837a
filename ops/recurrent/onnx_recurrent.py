"""ONNXLSTM, ONNXGRU and ONNXRNN: recurrent layers as ONNX defines them, for imported models; no gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.recurrent.units import sigmoid
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ONNXGRU", "ONNXLSTM", "ONNXRNN"]

Array = Any
_DIRECTIONS = ("forward", "reverse", "bidirectional")


@dataclass(frozen=True)
class _Recurrent(Operator):
    """Base: T steps of N sequences, D directions, G gates of hidden_size units each.

    ``more`` are the inputs that ``given`` names, in its order: ``B``, the biases of the input and of the state;
    ``sequence_lens``, int32; ``initial_h``. Y is the state after each step, zero after the end of a sequence; Y_h is
    the state after the last one. With ``layout=1`` the axis of the sequences comes first in X, Y and all states.

    Args:
        hidden_size: units of a gate.
        direction: forward, reverse, or bidirectional, with D = 2.
        activations: those of all directions, concatenated; empty for the defaults.
        clip: bound of the magnitude of an activation's input; 0 for none.
    """

    signature = """
        X (T, N, I) or (N, T, I): float
        W (D, G * hidden_size, I): as X
        R (D, G * hidden_size, hidden_size): as X
        more* (D, 2 * G * hidden_size) or (N) or (D, N, hidden_size) or (N, D, hidden_size): float|int32, B,
            sequence_lens, initial_h
        -> Y (T, D, N, hidden_size) or (N, T, D, hidden_size): as X
        -> Y_h (D, N, hidden_size) or (N, D, hidden_size): as X
    """
    copy_arguments = False
    hidden_size: int = 0
    direction: str = "forward"
    given: tuple[str, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float = 0.0
    layout: int = 0

    gates: ClassVar[int] = 0
    default_activations: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ("B", "sequence_lens", "initial_h")

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def check(self) -> None:
        if self.hidden_size < 1:
            raise ArgumentError(f"{self.type}: hidden_size must be at least 1, got {self.hidden_size}")
        if self.direction not in _DIRECTIONS:
            raise ArgumentError(
                f"{self.type}: direction must be one of {', '.join(_DIRECTIONS)}, got {self.direction!r}"
            )
        if self.layout not in (0, 1):
            raise ArgumentError(f"{self.type}: layout must be 0 or 1, got {self.layout}")
        if (
            len(self.given) != self.n_in - 3
            or len({*self.given}) != len(self.given)
            or {*self.given} - {*self.optional}
        ):
            raise ArgumentError(
                f"{self.type}: given must name its {self.n_in - 3} further inputs, of {', '.join(self.optional)}, "
                f"got {list(self.given)}"
            )
        expected = len(self.default_activations) * self.directions
        unknown = [name for name in self.activations if name.lower() not in _ACTIVATIONS]
        if unknown or self.activations and len(self.activations) != expected:
            raise ArgumentError(
                f"{self.type}: activations must be {expected} of Sigmoid, Tanh and Relu, got {list(self.activations)}"
            )

    def infer(self, x: TensorSpec, w: TensorSpec, r: TensorSpec, *more: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x, W=w, R=r)
        require(x.ndim == 3, self, f"X must have three axes, got {x.shape}")
        first, second, width = x.shape
        steps, count = (second, first) if self.layout else (first, second)
        d, h = self.directions, self.hidden_size
        expected = {
            "W": (d, self.gates * h, width), "R": (d, self.gates * h, h), "B": (d, 2 * self.gates * h),
            "sequence_lens": (count,), "initial_h": (count, d, h) if self.layout else (d, count, h),
            "initial_c": (count, d, h) if self.layout else (d, count, h), "P": (d, 3 * h),
        }  # fmt: skip
        for name, spec in zip(("W", "R", *self.given), (w, r, *more)):
            require(spec.shape == expected[name], self, f"{name} must have shape {expected[name]}, got {spec.shape}")
        states = x.with_shape(expected["initial_h"])
        y = x.with_shape((count, steps, d, h) if self.layout else (steps, d, count, h))
        return (y, *[states] * (self.n_out - 1))

    def flops(self, *inputs: TensorSpec) -> int:
        first, second, width = inputs[0].shape
        return 2 * first * second * self.directions * self.gates * self.hidden_size * (width + self.hidden_size)

    def functions(self, direction: int) -> list[Callable[[Any, Array], Array]]:
        count = len(self.default_activations)
        names = self.activations[direction * count :][:count] or self.default_activations
        return [_ACTIVATIONS[name.lower()] for name in names]

    def clipped(self, xp: Any, x: Array) -> Array:
        return xp.clip(x, -self.clip, self.clip) if self.clip else x

    def step(
        self, xp: Any, x: Array, states: list[Array], r: Array, bias: Array | None, peepholes: Array | None,
        functions: list[Callable[[Any, Array], Array]],
    ) -> list[Array]:  # fmt: skip
        """Return the states after a step, given ``x``, the input's contribution to the gates."""
        raise NotImplementedError


_ACTIVATIONS: dict[str, Callable[[Any, Array], Array]] = {
    "sigmoid": sigmoid,
    "tanh": lambda xp, x: xp.tanh(x),
    "relu": lambda xp, x: xp.maximum(x, 0),
}


@register
@dataclass(frozen=True)
class ONNXRNN(_Recurrent):
    """H' = f(X W + H R + B), for each step of each direction.

    Source: ONNX's operator RNN.
    """

    gates: ClassVar[int] = 1
    default_activations: ClassVar[tuple[str, ...]] = ("Tanh",)

    def step(self, xp, x, states, r, bias, peepholes, functions):
        total = x + states[0] @ r.T
        if bias is not None:
            total = total + bias
        return [functions[0](xp, self.clipped(xp, total))]


@register
@dataclass(frozen=True)
class ONNXGRU(_Recurrent):
    """H' = (1 - z) * o + z * H with the gates z, r, o, in this order in W, R and B.

    o = f(X W + (r * H) R + B), or with ``linear_before_reset`` f(X W + B + r * (H R + B')).

    Source: ONNX's operator GRU; Cho et al., 2014, arXiv:1406.1078.
    """

    linear_before_reset: bool = False
    gates: ClassVar[int] = 3
    default_activations: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh")

    def step(self, xp, x, states, r, bias, peepholes, functions):
        (hidden,) = states
        h = self.hidden_size
        inner = bias if bias is not None else xp.zeros(3 * h, x.dtype)
        both = functions[0](xp, self.clipped(xp, x[:, : 2 * h] + hidden @ r[: 2 * h].T + inner[: 2 * h]))
        update, reset = both[:, :h], both[:, h:]
        if self.linear_before_reset:
            candidate = x[:, 2 * h :] + reset * (hidden @ r[2 * h :].T + inner[2 * h :])
        else:
            candidate = x[:, 2 * h :] + (reset * hidden) @ r[2 * h :].T + inner[2 * h :]
        return [(1 - update) * functions[1](xp, self.clipped(xp, candidate)) + update * hidden]


@register
@dataclass(frozen=True)
class ONNXLSTM(_Recurrent):
    """C' = f * C + i * g and H' = o * h(C') with the gates i, o, f, g, in this order in W, R and B.

    ``given`` may also name ``initial_c`` and ``P``, the peepholes of i, o and f. Y_c is the cell state after the last
    step.

    Source: ONNX's operator LSTM; Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997.
    """

    signature = """
        X (T, N, I) or (N, T, I): float
        W (D, 4 * hidden_size, I): as X
        R (D, 4 * hidden_size, hidden_size): as X
        more* (D, 8 * hidden_size) or (N) or (D, N, hidden_size) or (N, D, hidden_size) or (D, 3 * hidden_size):
            float|int32, B, sequence_lens, initial_h and initial_c, P
        -> Y (T, D, N, hidden_size) or (N, T, D, hidden_size): as X
        -> Y_h (D, N, hidden_size) or (N, D, hidden_size): as X
        -> Y_c (D, N, hidden_size) or (N, D, hidden_size): as X
    """
    gates: ClassVar[int] = 4
    default_activations: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh", "Tanh")
    optional: ClassVar[tuple[str, ...]] = ("B", "sequence_lens", "initial_h", "initial_c", "P")

    def step(self, xp, x, states, r, bias, peepholes, functions):
        hidden, cell = states
        total = x + hidden @ r.T
        if bias is not None:
            total = total + bias
        h = self.hidden_size
        i, o, f, g = (total[:, k * h : (k + 1) * h] for k in range(4))
        if peepholes is not None:
            i, f = i + peepholes[:h] * cell, f + peepholes[2 * h :] * cell
        gate, squash, out = functions
        i, f, g = gate(xp, self.clipped(xp, i)), gate(xp, self.clipped(xp, f)), squash(xp, self.clipped(xp, g))
        new = f * cell + i * g
        if peepholes is not None:
            o = o + peepholes[h : 2 * h] * new
        return [gate(xp, self.clipped(xp, o)) * out(xp, new), new]


@kernel(ONNXRNN)
@kernel(ONNXGRU)
@kernel(ONNXLSTM)
def onnx_recurrent(op: _Recurrent, ctx: RunContext, x: Array, w: Array, r: Array, *more: Array) -> tuple[Array, ...]:
    xp, named = ctx.xp, dict(zip(op.given, more))
    if op.layout:
        x = x.swapaxes(0, 1)
        named |= {name: named[name].swapaxes(0, 1) for name in ("initial_h", "initial_c") if name in named}
    ys, lasts = zip(*(_one_direction(op, xp, d, x, w[d], r[d], named) for d in range(op.directions)))
    y = xp.stack(ys, axis=1)
    finals = [xp.stack(states) for states in zip(*lasts)]
    if op.layout:
        y, finals = y.transpose(2, 0, 1, 3), [state.swapaxes(0, 1) for state in finals]
    return (y, *finals)


def _one_direction(
    op: _Recurrent, xp: Any, d: int, x: Array, w: Array, r: Array, named: dict[str, Array]
) -> tuple[Array, list[Array]]:
    """Return the states after each step (T, N, H) of a direction, and those after the last step of each sequence."""
    steps, count, h = x.shape[0], x.shape[1], op.hidden_size
    lengths = named.get("sequence_lens")
    order = _order(xp, steps, count, lengths, reverse=op.direction == "reverse" or d == 1)
    column = xp.arange(count)
    halves = xp.split(named["B"][d], 2) if "B" in named else (None, None)
    gates = x[order, column] @ w.T
    bias = halves[1]
    if halves[0] is not None:
        gates = gates + halves[0]
    start = xp.zeros((count, h), x.dtype)
    states = [named[name][d] if name in named else start for name in ("initial_h", "initial_c")][: op.n_out - 1]
    functions, peepholes = op.functions(d), named["P"][d] if "P" in named else None
    y = xp.zeros((steps, count, h), x.dtype)
    for t in range(steps):
        new = op.step(xp, gates[t], states, r, bias, peepholes, functions)
        if lengths is not None:
            running = (t < lengths)[:, None]
            y[order[t], column] = xp.where(running, new[0], y[order[t], column])
            new = [xp.where(running, after, before) for after, before in zip(new, states)]
        else:
            y[order[t], column] = new[0]
        states = new
    return y, states


def _order(xp: Any, steps: int, count: int, lengths: Array | None, reverse: bool) -> Array:
    """Return the step of each sequence that is processed at each time, (T, N); after its end, the steps past it."""
    time = xp.broadcast_to(xp.arange(steps)[:, None], (steps, count))
    if not reverse:
        return time
    ends = xp.full(count, steps) if lengths is None else lengths.astype(np.int64)
    return xp.where(time < ends, ends - 1 - time, time)
