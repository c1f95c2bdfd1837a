"""One step of recurrent cells, LSTMUnit and GRUUnit, and their gradients: each gate is read once, nothing is stored.

The gates of a sample are next to each other: i, f and o before their sigmoids, then g before its tanh; or r, which is
not read, u before its sigmoid and o before its tanh. Samples that have ended keep their states, or drop them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.emitter import Emitter
from netbuilder.engines.llvm.functions import Fraction, sigmoid_fraction, tanh_fraction
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RECURRENT_UNITS"]

_BRIEF, _OF_A_THREAD = 1 << 11, 1 << 13  # elements of the state
_F = np.dtype(np.float32)


@dataclass(frozen=True)
class _Kind:
    """What the code of a unit depends on.

    Args:
        op_type: the operator's type.
        lengths: the type of the lengths of sequences; "": there are none.
        timestep: the type of the timestep.
        drop: the states of samples that have ended are 0; else they stay.
    """

    op_type: str
    lengths: str
    timestep: str
    drop: bool


class _Code(Loops):
    """Writes the function of a unit.

    Its arguments: the addresses of its inputs and outputs, the width of the states, the bits of the forget bias, the
    first sample and the end.
    """

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._unit = kind, _UNITS[kind.op_type]
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        b, unit = self._body, self._unit
        self._arguments([*unit.reads, *unit.writes, "timestep", "lengths"], ["width", "bias", "begin", "end"])
        with self._for("%begin", "%end", 1) as sample:
            ended = self._has_ended(sample)
            first = b.let(f"mul i64 {sample}, %width")
            for at, mask in self._across("%width"):
                self._mask = mask
                self._of_lanes_at(first, at, ended)
        return self._function()

    def _has_ended(self, sample: str) -> str:
        """Return whether a sample has ended, in each lane; "": it has no length."""
        if not self._kind.lengths:
            return ""
        length = self._integer("%lengths", np.dtype(self._kind.lengths), sample)
        timestep = self._integer("%timestep", np.dtype(self._kind.timestep))
        return self._body.splat(self._body.let(f"icmp sle i64 {length}, {timestep}"), "i1")

    def _of_lanes_at(self, first: str, at: str, ended: str) -> None:
        """Write what computes some elements of a sample's states."""
        b, unit = self._body, self._unit
        place = b.let(f"add i64 {first}, {at}")
        of_gates = b.let(f"add i64 {b.let(f'mul i64 {first}, {unit.gates}')}, {at}")
        gates = [b.let(f"add i64 {of_gates}, {b.let(f'mul i64 %width, {k}')}") for k in range(unit.gates)]
        given = {name: self._read(name, place) for name in unit.reads if name != "gates"}
        raw = [self._read("gates", each) if k in unit.used else "" for k, each in enumerate(gates)]
        found = unit.compute(_Vectors(b), given, raw)
        for name, value in found.items():
            if name.startswith("d_gate"):
                kept, where = b.constant(0), gates[int(name[-1])]
            else:
                old = unit.stays[name]
                kept, where = b.constant(0) if self._kind.drop else given[old], place
            target = "d_gates" if name.startswith("d_gate") else name
            result = b.select(ended, kept, value) if ended else value
            self._write(result, _F, self._moved(f"%{target}", _F, where), self._mask)

    def _read(self, name: str, place: str) -> str:
        return self._vector(self._moved(f"%{name}", _F, place), _F, self._mask)


class _Vectors:
    """Arithmetic on vectors."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter, self.zero, self.one = emitter, emitter.constant(0), emitter.constant(1)
        bits = emitter.let("trunc i64 %bias to i32")
        self.bias = emitter.splat(emitter.let(f"bitcast i32 {bits} to float"), "float")

    def add(self, x: str, y: str) -> str:
        return self._emitter.binary("fadd", x, y)

    def subtract(self, x: str, y: str) -> str:
        return self._emitter.binary("fsub", x, y)

    def multiply(self, x: str, *others: str) -> str:
        for other in others:
            x = self._emitter.binary("fmul", x, other)
        return x

    def sigmoid(self, x: str) -> Fraction:
        return sigmoid_fraction(self._emitter, x)

    def tanh(self, x: str) -> Fraction:
        return tanh_fraction(self._emitter, x)

    def divided(self, *fractions: Fraction) -> list[tuple[str, str]]:
        """Return the functions of some fractions and their derivatives, by one division; NaN in one makes all NaN."""
        divisors = [each.divisor for each in fractions]
        inverse = self._emitter.binary("fdiv", self.one, self.multiply(*divisors))
        found = []
        for number, each in enumerate(fractions):
            own = self.multiply(inverse, *divisors[:number], *divisors[number + 1 :])
            found.append((self.multiply(each.dividend, own), self.multiply(each.derived, own, own)))
        return found


Values = Mapping[str, str]


def _lstm(v: _Vectors, given: Values, raw: Sequence[str]) -> dict[str, str]:
    (i, _), (f, _), (g, _) = v.divided(v.sigmoid(raw[0]), v.sigmoid(v.add(raw[1], v.bias)), v.tanh(raw[3]))
    cell = v.add(v.multiply(f, given["cell"]), v.multiply(i, g))
    (o, _), (squashed, _) = v.divided(v.sigmoid(raw[2]), v.tanh(cell))
    return {"new_hidden": v.multiply(o, squashed), "new_cell": cell}


def _lstm_gradient(v: _Vectors, given: Values, raw: Sequence[str]) -> dict[str, str]:
    fractions = v.sigmoid(raw[0]), v.sigmoid(v.add(raw[1], v.bias)), v.tanh(raw[3])
    (i, slope_of_i), (f, slope_of_f), (g, slope_of_g) = v.divided(*fractions)
    cell = v.add(v.multiply(f, given["cell"]), v.multiply(i, g))
    (o, slope_of_o), (squashed, slope) = v.divided(v.sigmoid(raw[2]), v.tanh(cell))
    through = v.add(given["d_cell"], v.multiply(given["d_hidden"], o, slope))
    return {
        "d_hidden_prev": v.zero,
        "d_cell_prev": v.multiply(through, f),
        "d_gate0": v.multiply(through, g, slope_of_i),
        "d_gate1": v.multiply(through, given["cell"], slope_of_f),
        "d_gate2": v.multiply(given["d_hidden"], squashed, slope_of_o),
        "d_gate3": v.multiply(through, i, slope_of_g),
    }


def _gru(v: _Vectors, given: Values, raw: Sequence[str]) -> dict[str, str]:
    (u, _), (o, _) = v.divided(v.sigmoid(raw[1]), v.tanh(raw[2]))
    return {"new_hidden": v.add(v.multiply(u, given["hidden"]), v.multiply(v.subtract(v.one, u), o))}


def _gru_gradient(v: _Vectors, given: Values, raw: Sequence[str]) -> dict[str, str]:
    ((u, slope_of_u),) = v.divided(v.sigmoid(raw[1]))
    ((o, slope_of_o),) = v.divided(v.tanh(raw[2]))
    d_hidden = given["d_hidden"]
    return {
        "d_hidden_prev": v.multiply(d_hidden, u),
        "d_gate0": v.zero,
        "d_gate1": v.multiply(d_hidden, v.subtract(given["hidden"], o), slope_of_u),
        "d_gate2": v.multiply(d_hidden, v.subtract(v.one, u), slope_of_o),
    }


@dataclass(frozen=True)
class _Unit:
    """What an operator reads, writes and computes.

    Args:
        reads: its inputs by name, each with its index.
        writes: its outputs.
        gates: how many gates there are.
        used: those that are read.
        stays: for each state that it writes, the input that is that of a sample that has ended.
        compute: returns the outputs for vectors of the inputs and of the gates.
    """

    reads: Mapping[str, int]
    writes: Sequence[str]
    gates: int
    used: Sequence[int]
    stays: Mapping[str, str]
    compute: Callable[[_Vectors, Values, Sequence[str]], dict[str, str]]


_UNITS = {
    "LSTMUnit": _Unit(
        {"hidden": 0, "cell": 1, "gates": 2}, ("new_hidden", "new_cell"), 4, range(4),
        {"new_hidden": "hidden", "new_cell": "cell"}, _lstm,
    ),
    "LSTMUnitGradient": _Unit(
        {"cell": 1, "gates": 2, "d_hidden": -2, "d_cell": -1}, ("d_hidden_prev", "d_cell_prev", "d_gates"), 4,
        range(4), {"d_hidden_prev": "d_hidden", "d_cell_prev": "d_cell"}, _lstm_gradient,
    ),
    "GRUUnit": _Unit(
        {"hidden": 0, "gates": 1}, ("new_hidden",), 3, (1, 2), {"new_hidden": "hidden"}, _gru,
    ),
    "GRUUnitGradient": _Unit(
        {"hidden": 0, "gates": 1, "d_hidden": -1}, ("d_hidden_prev", "d_gates"), 3, (1, 2),
        {"d_hidden_prev": "d_hidden"}, _gru_gradient,
    ),
}  # fmt: skip


@functools.cache
def _text(kind: _Kind) -> str:
    return _Code(kind).text()


def _unit(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare a unit of float32; the lengths are those of the samples, so that only one axis may be theirs."""
    unit, state = _UNITS[op.type], specs[0]
    if state.dtype != _F or not state.size or op.sequence_lengths and math.prod(state.shape[:-2]) != 1:
        return None
    lengths = specs[op.states + 1].dtype.name if op.sequence_lengths else ""
    kind = _Kind(op.type, lengths, specs[op.timestep_index].dtype.name, op.drop_states)
    address = machine.address_of(_text(kind)) if machine.available() else None
    if address is None:
        return None
    width = state.shape[-1]
    samples = state.size // width
    threads = 1 if state.size < _OF_A_THREAD else max(1, min(ctx.threads, samples))
    bias = int(np.float32(getattr(op, "forget_bias", 0)).view(np.uint32))
    given = [spec.plain for spec in specs]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        timestep = inputs[op.timestep_index]
        buffers = [*(inputs[i] for i in unit.reads.values()), *outputs, timestep]
        buffers.append(inputs[op.states + 1] if op.sequence_lengths else timestep)
        fixed = [address, *(each.ctypes.data for each in buffers), width, bias]
        words = [np.array([*fixed, *bounds], np.int64) for bounds in shares(samples, threads)]
        return call_of_threads(ctx, words, buffers, brief=state.size < _BRIEF)

    read = {*(i % len(specs) for i in unit.reads.values()), *range(op.states + 1, op.timestep_index + 1)}
    expected = [spec if i in read else None for i, spec in enumerate(given)]
    return Prepared(expected, list(op.infer(*given)), bind, name=f"llvm {op.type}")


RECURRENT_UNITS: Mapping[str, Callable[..., Prepared | None]] = dict.fromkeys(_UNITS, _unit)
"""By operator type."""
