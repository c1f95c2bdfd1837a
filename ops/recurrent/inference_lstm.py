"""InferenceLSTM: layers of an LSTM over a whole sequence, with parameters as in PyTorch, without a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.recurrent.units import sigmoid
from netbuilder.proto import ArgumentError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["InferenceLSTM"]


@register
@dataclass(frozen=True)
class InferenceLSTM(Operator):
    """Run ``num_layers`` LSTM layers over X, T steps of N samples; with ``batch_first`` the samples are the first axis.

    The inputs after X are the initial hidden and cell states, then for each layer and direction W, U and, with
    ``has_biases``, two biases, with the gates in the order input, forget, cell, output. With ``bidirectional``, a
    second direction runs from the end, and the results of both are concatenated along the last axis. The outputs are
    the hidden states of the last layer in all steps, and the final states of all layers.

    Source: Hochreiter and Schmidhuber, "Long short-term memory", 1997; Gers et al., 2000, for the forget gate.
    """

    signature = """
        X (T, N, I) or (N, T, I): float
        hidden (num_layers * (1 + bidirectional), N, H): as X
        cell (num_layers * (1 + bidirectional), N, H): as X
        param+ (4 * H, I) or (4 * H, H) or (4 * H, H * (1 + bidirectional)) or (4 * H): as X, W of the first layer (I)
            and of the others, U (H), and the biases
        -> output (T, N, H * (1 + bidirectional)) or (N, T, H * (1 + bidirectional)): as X
        -> hidden_last (num_layers * (1 + bidirectional), N, H): as X
        -> cell_last (num_layers * (1 + bidirectional), N, H): as X
    """
    num_layers: int = 1
    has_biases: bool = True
    batch_first: bool = False
    bidirectional: bool = False

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _each(self) -> int:
        return 4 if self.has_biases else 2

    def check(self) -> None:
        if self.num_layers < 1:
            raise ArgumentError(f"InferenceLSTM: num_layers must be at least 1, got {self.num_layers}")
        want = self.num_layers * self.directions * self._each
        if self.n_in != 3 + want:
            raise ArgumentError(
                f"InferenceLSTM: num_layers={self.num_layers} in {counted(self.directions, 'direction')} needs "
                f"{want} parameters, got {self.n_in - 3}"
            )

    def groups(self, params: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the parameters of each layer and direction."""
        each = self._each
        return [params[i : i + each] for i in range(0, len(params), each)]

    def infer(self, x: TensorSpec, hidden: TensorSpec, cell: TensorSpec, *params: TensorSpec) -> tuple[TensorSpec, ...]:
        require(
            x.ndim == 3 and x.dtype.kind == "f", self, f"X must have 3 axes and hold floats, got {x.shape} {x.dtype}"
        )
        steps, samples = x.shape[:2][::-1] if self.batch_first else x.shape[:2]
        layers = self.num_layers * self.directions
        require(
            hidden.ndim == 3 and hidden.shape[:2] == (layers, samples) and hidden.shape == cell.shape,
            self,
            f"the first states must have the shape ({layers}, {samples}, hidden), got {hidden.shape} and {cell.shape}",
        )
        h, width = hidden.shape[2], x.shape[2]
        for i, group in enumerate(self.groups(params)):
            width_in = width if i < self.directions else h * self.directions
            want = [(4 * h, width_in), (4 * h, h), (4 * h,), (4 * h,)][: self._each]
            got = [param.shape for param in group]
            require(got == want, self, f"the parameters of part {i} must have the shapes {want}, got {got}")
        for spec in (hidden, cell, *params):
            require(spec.dtype == x.dtype, self, f"all inputs must have the type of X, {x.dtype}, got {spec.dtype}")
        made = (samples, steps) if self.batch_first else (steps, samples)
        return x.with_shape((*made, h * self.directions)), hidden.plain, cell.plain

    def flops(self, x: TensorSpec, hidden: TensorSpec, cell: TensorSpec, *params: TensorSpec) -> int:
        return 2 * x.shape[0] * x.shape[1] * sum(param.size for param in params if param.ndim == 2)


@kernel(InferenceLSTM)
def inference_lstm(op: InferenceLSTM, ctx: RunContext, x: Any, hidden: Any, cell: Any, *params: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    rows = x.swapaxes(0, 1) if op.batch_first else x
    last_hidden, last_cell = xp.empty_like(hidden), xp.empty_like(cell)
    groups = op.groups(params)
    for layer in range(op.num_layers):
        made = []
        for backwards in range(op.directions):
            i = layer * op.directions + backwards
            states = _layer(xp, rows[::-1] if backwards else rows, hidden[i], cell[i], groups[i])
            last_hidden[i], last_cell[i] = states[0][-1] if len(rows) else hidden[i], states[1]
            made.append(states[0][::-1] if backwards else states[0])
        rows = made[0] if len(made) == 1 else xp.concatenate(made, axis=2)
    return (xp.ascontiguousarray(rows.swapaxes(0, 1) if op.batch_first else rows), last_hidden, last_cell)


def _layer(xp: Any, x: Any, hidden: Any, cell: Any, params: Sequence[Any]) -> tuple[Any, Any]:
    """Return the hidden states after each step, and the last cell state."""
    w, u = params[:2]
    width, recurrent = hidden.shape[-1], u.T
    steps, samples, width_in = x.shape
    from_input = xp.matmul(x.reshape(steps * samples, width_in), w.T)  # of all steps at once
    for bias in params[2:]:
        from_input += bias
    from_input = from_input.reshape(steps, samples, 4 * width)
    states = xp.empty((steps, samples, width), x.dtype)
    for t in range(steps):
        gates = from_input[t] + xp.matmul(hidden, recurrent)
        i, f, g, o = (gates[:, k * width : (k + 1) * width] for k in range(4))
        cell = sigmoid(xp, f) * cell + sigmoid(xp, i) * xp.tanh(g)
        hidden = states[t] = sigmoid(xp, o) * xp.tanh(cell)
    return states, cell
