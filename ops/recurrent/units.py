"""One step of recurrent cells, computed from the gates before their activations: LSTMUnit and GRUUnit.

The kernels prepared for the CPU make no temporary arrays, and compute one tanh over all gates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.core.half import one_float_type
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import NetError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["GRUUnit", "GRUUnitGradient", "LSTMUnit", "LSTMUnitGradient"]


@dataclass(frozen=True)
class _Unit(Operator):
    """Base: the inputs are states, gates, lengths of sequences (unless ``sequence_lengths=False``) and the timestep.

    Gates are ``gates`` times as wide as states. After the end of a sequence, ``timestep >= seq_lengths``, its states
    do not change or, with ``drop_states``, are 0.
    """

    states: ClassVar[int] = 1
    gates: ClassVar[int] = 3
    backward: ClassVar[bool] = False
    drop_states: bool = False
    sequence_lengths: bool = True

    @property
    def timestep_index(self) -> int:
        """The index of the input timestep."""
        return self.states + 1 + self.sequence_lengths

    def check(self) -> None:
        want = self.timestep_index + 1 + (2 * self.states if self.backward else 0)
        if self.n_in != want:
            how = "with" if self.sequence_lengths else "without"
            raise NetError(f"{self.type}: takes {want} inputs {how} sequence_lengths, got {self.n_in}")

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == self.timestep_index else "here"

    def infer(self, *given: TensorSpec) -> tuple[TensorSpec, ...]:
        hidden, gates = given[0], given[self.states]
        require(hidden.ndim >= 2, self, f"the state must have samples and a width, got shape {hidden.shape}")
        require(hidden.dtype.kind == "f", self, f"the state must hold floating-point numbers, got {hidden.dtype}")
        shape, count = hidden.shape, self.gates
        want = (*shape[:-1], count * shape[-1])
        require(
            gates.shape == want and gates.dtype == hidden.dtype,
            self,
            f"gates must have shape {want} and type {hidden.dtype}, got {gates.shape} {gates.dtype}",
        )
        for other in (*given[1 : self.states], *given[self.timestep_index + 1 :]):
            require(other.shape == shape, self, f"all states must have shape {shape}, got {other.shape}")
        if self.sequence_lengths:
            lengths = given[self.states + 1]
            require(
                lengths.shape == shape[-2:-1] and lengths.dtype.kind == "i",
                self,
                f"seq_lengths must have shape {shape[-2:-1]} and hold integers, got {lengths.shape} of {lengths.dtype}",
            )
        require(
            given[self.timestep_index].size == 1,
            self,
            f"timestep must hold one number, got shape {given[self.timestep_index].shape}",
        )
        made = given[: self.states]
        return tuple(spec.plain for spec in ((*made, gates) if self.backward else made))

    def flops(self, *given: TensorSpec) -> int:
        return 4 * given[self.states].size

    def running(self, ctx: RunContext, given: Sequence[Any]) -> Any:
        """Return a column that is true for samples that have not ended; None without sequence lengths."""
        if not self.sequence_lengths:
            return None
        return (given[self.states + 1] > int(ctx.host(given[self.timestep_index]).item()))[:, None]

    def next_state(self, ctx: RunContext, running: Any, new: Any, old: Any) -> Any:
        """Return ``new`` for samples that have not ended, else ``old`` or, with ``drop_states``, 0."""
        if running is None:
            return new
        return ctx.xp.where(running, new, new.dtype.type(0) if self.drop_states else old)

    def parts(self, gates: Any) -> list[Any]:
        width = gates.shape[-1] // self.gates
        return [gates[..., k * width : (k + 1) * width] for k in range(self.gates)]


def sigmoid(xp: Any, x: Any) -> Any:
    """Return 1 / (1 + exp(-x)), computed without overflow."""
    return (xp.tanh(x * 0.5) + 1) * 0.5


def _zero_ended(ctx: RunContext, running: Any, x: Any) -> Any:
    return x if running is None else ctx.xp.where(running, x, x.dtype.type(0))


@dataclass(frozen=True)
class _LSTM(_Unit):
    states = 2
    gates = 4
    forget_bias: float = 0.0


@register
@dataclass(frozen=True)
class LSTMUnit(_LSTM):
    """C' = f * C + i * g, H' = o * tanh(C'); gates holds i, f and o before their sigmoids, then g before its tanh.

    ``forget_bias`` is added to f before its sigmoid.

    Source: Gers, Schmidhuber and Cummins, "Learning to forget: continual prediction with LSTM", 2000, section 2.
    """

    signature = """
        hidden_prev (*B, N, D): float
        cell_prev (*B, N, D): as hidden_prev
        gates (*B, N, 4 * D): as hidden_prev
        seq_lengths (N) or (1): int8|int16|int32|int64, with ``sequence_lengths=False`` the timestep
        timestep? (1): int
        -> hidden (*B, N, D): as hidden_prev
        -> cell (*B, N, D): as hidden_prev
    """

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input(i) for i in range(self.n_in)] + [g.output("hidden"), g.output("cell")]
        inputs += [g.d_output("hidden"), g.d_output("cell")]
        return [make_op("LSTMUnitGradient", inputs, [g.d_input(i) for i in range(3)])]


@kernel(LSTMUnit)
def lstm_unit(op: LSTMUnit, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    xp, (hidden, cell, gates) = ctx.xp, given[:3]
    i, f, o, g = op.parts(gates)
    new = sigmoid(xp, f + op.forget_bias) * cell + sigmoid(xp, i) * xp.tanh(g)
    running = op.running(ctx, given)
    return op.next_state(ctx, running, sigmoid(xp, o) * xp.tanh(new), hidden), op.next_state(ctx, running, new, cell)


@register
@dataclass(frozen=True)
class LSTMUnitGradient(_LSTM):
    """dhidden_prev, dcell_prev and dgates, from the inputs of LSTMUnit, its outputs, and their gradients."""

    signature = "hidden_prev, cell_prev, gates, more+ -> dhidden_prev, dcell_prev, dgates"
    backward = True


@kernel(LSTMUnitGradient)
def lstm_unit_gradient(op: LSTMUnitGradient, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    xp, cell, gates = ctx.xp, given[1], given[2]
    i, f, o, g = op.parts(gates)
    i, f, o, g = sigmoid(xp, i), sigmoid(xp, f + op.forget_bias), sigmoid(xp, o), xp.tanh(g)
    running, d_hidden, d_cell = op.running(ctx, given), given[-2], given[-1]
    squashed = xp.tanh(f * cell + i * g)
    through = d_cell + d_hidden * o * (1 - squashed * squashed)
    d_gates = xp.concatenate(
        [
            through * g * i * (1 - i),
            through * cell * f * (1 - f),
            d_hidden * squashed * o * (1 - o),
            through * i * (1 - g * g),
        ],
        axis=-1,
    )
    return (
        op.next_state(ctx, running, xp.zeros_like(d_hidden), d_hidden),
        op.next_state(ctx, running, through * f, d_cell),
        _zero_ended(ctx, running, d_gates),
    )


@register
@dataclass(frozen=True)
class GRUUnit(_Unit):
    """H' = u * H + (1 - u) * o; gates holds r, then u before its sigmoid and o before its tanh.

    r is not read here: the net has already used it to compute o.

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014, arXiv:1406.1078, section 2.3.
    """

    signature = """
        hidden_prev (*B, N, D): float
        gates (*B, N, 3 * D): as hidden_prev
        seq_lengths (N) or (1): int8|int16|int32|int64, with ``sequence_lengths=False`` the timestep
        timestep? (1): int
        -> hidden (*B, N, D): as hidden_prev
    """

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [*(g.input(i) for i in range(self.n_in)), g.output("hidden"), g.d_output("hidden")]
        return [make_op("GRUUnitGradient", inputs, [g.d_input(0), g.d_input(1)])]


@kernel(GRUUnit)
def gru_unit(op: GRUUnit, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    xp, (hidden, gates) = ctx.xp, given[:2]
    _, u, o = op.parts(gates)
    u = sigmoid(xp, u)
    return (op.next_state(ctx, op.running(ctx, given), u * hidden + (1 - u) * xp.tanh(o), hidden),)


@register
@dataclass(frozen=True)
class GRUUnitGradient(_Unit):
    """dhidden_prev and dgates, from the inputs of GRUUnit, its output, and the gradient of the output."""

    signature = "hidden_prev, gates, more+ -> dhidden_prev, dgates"
    backward = True


@kernel(GRUUnitGradient)
def gru_unit_gradient(op: GRUUnitGradient, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    xp, (hidden, gates), d_hidden = ctx.xp, given[:2], given[-1]
    _, u, o = op.parts(gates)
    u, o, running = sigmoid(xp, u), xp.tanh(o), op.running(ctx, given)
    d_gates = xp.concatenate(
        [xp.zeros_like(u), d_hidden * (hidden - o) * u * (1 - u), d_hidden * (1 - u) * (1 - o * o)], axis=-1
    )
    return op.next_state(ctx, running, d_hidden * u, d_hidden), _zero_ended(ctx, running, d_gates)


_AnyUnit = LSTMUnit | LSTMUnitGradient | GRUUnit | GRUUnitGradient


class _Gates:
    """The gates after their activations, in scratch memory: i, f and o after a sigmoid, then g after tanh."""

    def __init__(self, op: LSTMUnit | LSTMUnitGradient, gates: Any, acts: Any) -> None:
        self._raw = gates.reshape(-1, gates.shape[-1])
        self._acts = acts.reshape(self._raw.shape)
        width = self._raw.shape[1] // 4
        self.parts = [self._acts[:, k * width : (k + 1) * width] for k in range(4)]
        self._sigmoids = slice(0, 3 * width)
        self._forget = slice(width, 2 * width)
        self._bias = op.forget_bias

    def compute(self) -> None:
        raw, acts, sigmoids = self._raw, self._acts, self._acts[:, self._sigmoids]
        np.copyto(acts, raw)
        if self._bias:
            acts[:, self._forget] += self._bias
        sigmoids *= 0.5
        np.tanh(acts, acts)
        sigmoids += 1
        sigmoids *= 0.5


class _Ended:
    """Tells which samples have ended.

    Args:
        op: the unit.
        given: its inputs.
    """

    def __init__(self, op: _AnyUnit, given: Sequence[Any]) -> None:
        self._lengths = given[op.states + 1] if op.sequence_lengths else None
        self._timestep = given[op.timestep_index]

    def rows(self) -> Any | None:
        """Return a column that is true for samples that have ended; None if none has."""
        if self._lengths is None:
            return None
        now = self._timestep.item()
        if self._lengths.min() > now:
            return None
        return (self._lengths <= now)[:, None]


def _flat(array: Any) -> Any:
    return array.reshape(-1, array.shape[-1])


def _usable(op: _AnyUnit, specs: Sequence[TensorSpec]) -> bool:
    floats = [spec for i, spec in enumerate(specs) if i <= op.states or i > op.timestep_index]
    return one_float_type(*floats) and math.prod(specs[0].shape[:-2]) == 1


@prepare(LSTMUnit, device=CPU)
def prepare_lstm_unit(op: LSTMUnit, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    if not _usable(op, specs):
        return None
    size = specs[2].nbytes

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        hidden, cell = _flat(ins[0]), _flat(ins[1])
        new_hidden, new_cell = _flat(outs[0]), _flat(outs[1])
        gates = _Gates(op, ins[2], scratch[:size].view(cell.dtype))
        ended = _Ended(op, ins)
        temporary = scratch[size : size + cell.nbytes].view(cell.dtype).reshape(cell.shape)

        def call() -> None:
            gates.compute()
            i, f, o, g = gates.parts
            np.multiply(f, cell, new_cell)
            np.multiply(i, g, temporary)
            np.add(new_cell, temporary, new_cell)
            np.tanh(new_cell, temporary)
            np.multiply(o, temporary, new_hidden)
            ended_rows = ended.rows()
            if ended_rows is not None:
                np.copyto(new_hidden, 0 if op.drop_states else hidden, where=ended_rows)
                np.copyto(new_cell, 0 if op.drop_states else cell, where=ended_rows)

        return call

    outputs = op.infer(*specs)
    return Prepared([s.plain for s in specs], outputs, bind, scratch=size + specs[1].nbytes, name="numpy")


@prepare(LSTMUnitGradient, device=CPU)
def prepare_lstm_unit_gradient(op: LSTMUnitGradient, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    if not _usable(op, specs):
        return None
    size, half = specs[2].nbytes, specs[1].nbytes

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        cell, new_cell, d_hidden, d_cell = (_flat(ins[k]) for k in (1, -3, -2, -1))
        d_hidden_prev, d_cell_prev, d_gates = map(_flat, outs)
        gates = _Gates(op, ins[2], scratch[:size].view(cell.dtype))
        ended = _Ended(op, ins)
        through, squashed, temporary = (
            scratch[size + k * half : size + (k + 1) * half].view(cell.dtype).reshape(cell.shape) for k in range(3)
        )
        width = cell.shape[1]
        d_i, d_f, d_o, d_g = (d_gates[:, k * width : (k + 1) * width] for k in range(4))
        multiply, subtract = np.multiply, np.subtract

        def call() -> None:
            gates.compute()
            i, f, o, g = gates.parts
            np.tanh(new_cell, squashed)
            multiply(squashed, squashed, temporary)
            subtract(1, temporary, temporary)
            multiply(d_hidden, o, through)
            multiply(through, temporary, through)
            np.add(d_cell, through, through)
            for gate, d_gate, one, two in ((i, d_i, through, g), (f, d_f, through, cell), (o, d_o, d_hidden, squashed)):
                multiply(one, two, d_gate)
                multiply(d_gate, gate, d_gate)
                subtract(1, gate, temporary)
                multiply(d_gate, temporary, d_gate)
            multiply(g, g, temporary)
            subtract(1, temporary, temporary)
            multiply(through, i, d_g)
            multiply(d_g, temporary, d_g)
            ended_rows = ended.rows()
            if ended_rows is not None:
                np.copyto(d_gates, 0, where=ended_rows)
                keep, keep_cell = (0, 0) if op.drop_states else (d_hidden, d_cell)
                multiply(through, f, temporary)
                np.copyto(temporary, keep_cell, where=ended_rows)
                np.copyto(d_hidden_prev, np.where(ended_rows, keep, d_hidden_prev.dtype.type(0)))
                np.copyto(d_cell_prev, temporary)
                return
            d_hidden_prev.fill(0)
            multiply(through, f, d_cell_prev)

        return call

    outputs = op.infer(*specs)
    return Prepared([s.plain for s in specs], outputs, bind, scratch=size + 3 * half, name="numpy")


class _TwoGates:
    """The gates u and o of a GRU after their activations, in scratch memory."""

    def __init__(self, gates: Any, acts: Any) -> None:
        raw = _flat(gates)
        width = raw.shape[1] // 3
        self._raw = raw[:, width:]
        self._acts = acts.reshape(self._raw.shape)
        self.u, self.o = self._acts[:, :width], self._acts[:, width:]

    def compute(self) -> None:
        np.copyto(self._acts, self._raw)
        u = self.u
        u *= 0.5
        np.tanh(self._acts, self._acts)
        u += 1
        u *= 0.5


@prepare(GRUUnit, device=CPU)
def prepare_gru_unit(op: GRUUnit, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    if not _usable(op, specs):
        return None
    size = 2 * specs[0].nbytes

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        hidden, new_hidden = _flat(ins[0]), _flat(outs[0])
        gates = _TwoGates(ins[1], scratch[:size].view(hidden.dtype))
        ended = _Ended(op, ins)

        def call() -> None:
            gates.compute()
            np.subtract(hidden, gates.o, new_hidden)
            np.multiply(new_hidden, gates.u, new_hidden)
            np.add(new_hidden, gates.o, new_hidden)
            ended_rows = ended.rows()
            if ended_rows is not None:
                np.copyto(new_hidden, 0 if op.drop_states else hidden, where=ended_rows)

        return call

    return Prepared([s.plain for s in specs], op.infer(*specs), bind, scratch=size, name="numpy")


@prepare(GRUUnitGradient, device=CPU)
def prepare_gru_unit_gradient(op: GRUUnitGradient, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    if not _usable(op, specs):
        return None
    size = 2 * specs[0].nbytes

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        hidden, d_hidden = _flat(ins[0]), _flat(ins[-1])
        d_hidden_prev, d_gates = map(_flat, outs)
        gates = _TwoGates(ins[1], scratch[:size].view(hidden.dtype))
        ended = _Ended(op, ins)
        width = hidden.shape[1]
        d_r, d_u, d_o = (d_gates[:, k * width : (k + 1) * width] for k in range(3))
        multiply, subtract = np.multiply, np.subtract

        def call() -> None:
            gates.compute()
            u, o = gates.u, gates.o
            d_r.fill(0)
            multiply(d_hidden, u, d_hidden_prev)
            subtract(hidden, o, d_u)
            multiply(d_u, d_hidden_prev, d_u)
            subtract(1, u, u)
            multiply(d_u, u, d_u)
            multiply(d_hidden, u, u)
            multiply(o, o, o)
            subtract(1, o, o)
            multiply(u, o, d_o)
            ended_rows = ended.rows()
            if ended_rows is not None:
                np.copyto(d_gates, 0, where=ended_rows)
                np.copyto(d_hidden_prev, 0 if op.drop_states else d_hidden, where=ended_rows)

        return call

    return Prepared([s.plain for s in specs], op.infer(*specs), bind, scratch=size, name="numpy")
