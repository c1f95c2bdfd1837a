"""LSTMUnit, GRUUnit and their gradients bound to buffers on the CPU: no temporary arrays, one tanh over all gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.half import one_float_type
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import CPU, prepare
from netbuilder.ops.recurrent.units import GRUUnit, GRUUnitGradient, LSTMUnit, LSTMUnitGradient

__all__: list[str] = []

Array = Any
Unit = LSTMUnit | LSTMUnitGradient | GRUUnit | GRUUnitGradient


class _Gates:
    """The gates after their activations, in scratch memory: i, f and o after a sigmoid, then g after tanh."""

    def __init__(self, op: LSTMUnit | LSTMUnitGradient, gates: Array, acts: Array) -> None:
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

    def __init__(self, op: Unit, given: Sequence[Array]) -> None:
        self._lengths = given[op.states + 1] if op.sequence_lengths else None
        self._timestep = given[op.timestep_index]

    def rows(self) -> Array | None:
        """Return a column that is true for samples that have ended; None if none has."""
        if self._lengths is None:
            return None
        now = self._timestep.item()
        if self._lengths.min() > now:
            return None
        return (self._lengths <= now)[:, None]


def _flat(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _usable(op: Unit, specs: Sequence[TensorSpec]) -> bool:
    floats = [spec for i, spec in enumerate(specs) if i <= op.states or i > op.timestep_index]
    return one_float_type(*floats) and math.prod(specs[0].shape[:-2]) == 1


@prepare(LSTMUnit, device=CPU)
def prepare_lstm_unit(op: LSTMUnit, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    if not _usable(op, specs):
        return None
    size = specs[2].nbytes

    def bind(ins: Sequence[Array], outs: Sequence[Array], scratch: Array) -> Callable[[], None]:
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

    def bind(ins: Sequence[Array], outs: Sequence[Array], scratch: Array) -> Callable[[], None]:
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

    def __init__(self, gates: Array, acts: Array) -> None:
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

    def bind(ins: Sequence[Array], outs: Sequence[Array], scratch: Array) -> Callable[[], None]:
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

    def bind(ins: Sequence[Array], outs: Sequence[Array], scratch: Array) -> Callable[[], None]:
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
