"""One step of recurrent cells, computed from the gates before their activations: LSTMUnit and GRUUnit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

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
            raise NetError(f"{self.type} takes {want} inputs {how} sequence_lengths, got {self.n_in}")

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
