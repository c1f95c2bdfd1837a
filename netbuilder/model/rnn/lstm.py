"""LSTM cells, plain and layer-normalized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from netbuilder.graph.blob import BlobReference
from netbuilder.model import brew
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_sharing import parameter_name
from netbuilder.model.rnn.cell import Blob, ExtraInputs, RNNCell, StateInitializer, ZeroStates
from netbuilder.model.rnn.projected_cell import SizedCell

__all__ = ["LSTMCell", "LSTMInitializer", "LayerNormLSTMCell"]


class LSTMInitializer:
    """Initial states that are parameters ``initial_hidden_state`` and ``initial_cell_state``, initialized to 0.

    Args:
        hidden_size: width of both.
    """

    def __init__(self, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.scope: str | None = None

    def create_states(self, model: ModelHelper) -> list[BlobReference]:
        """Create the two parameters in the current name scope and return them."""
        return ZeroStates(["initial_hidden_state", "initial_cell_state"], self.hidden_size).create_states(model)


class LSTMCell(SizedCell):
    """A long short-term memory cell, see ``LSTMUnit``.

    Args:
        input_size, hidden_size: widths of the input and of both states.
        forget_bias: added to the forget gate before its sigmoid.
        memory_optimization: do not store the gates of all steps; the backward pass recomputes them.
        drop_states: set the states of a sample to 0 after its sequence has ended, instead of leaving them unchanged.
        initializer: of the initial states; None: ``LSTMInitializer``.
        kwargs: ``name``, ``forward_only``.

    Source: Hochreiter and Schmidhuber, "Long short-term memory", 1997; Gers, Schmidhuber and Cummins, "Learning to
    forget: continual prediction with LSTM", 2000.
    """

    projections = 4
    output_names = ("hidden_state", "cell_state")
    normalizes_gates: ClassVar[bool] = False

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        forget_bias: float,
        memory_optimization: bool,
        drop_states: bool = False,
        initializer: StateInitializer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, drop_states, initializer, **kwargs)
        self.forget_bias = float(forget_bias)
        self.memory_optimization = memory_optimization
        if initializer is None:
            self.initializer = _Named(self, hidden_size)

    def apply_override(
        self,
        model: ModelHelper,
        input_t: BlobReference,
        seq_lengths: BlobReference | None,
        states: Sequence[BlobReference],
        timestep: BlobReference,
        extra_inputs: ExtraInputs | None = None,
    ) -> list[BlobReference]:
        gates = self.gates(model, input_t, states[0], extra_inputs)
        if self.normalizes_gates:
            gates = self._normalized(model, gates)
        return self._unit(model, gates, seq_lengths, states, timestep)

    def gates(
        self, model: ModelHelper, input_t: Blob, hidden: BlobReference, extra_inputs: ExtraInputs | None
    ) -> BlobReference:
        """Add the gates before their activations: the prepared input plus the projected hidden state."""
        given, width = self._with_extra(model, hidden, extra_inputs)
        total = self.projections * self.hidden_size
        gates = brew.fc(model, given, self.scope("gates_t"), dim_in=width, dim_out=total, axis=2)
        gates = brew.sum(model, [gates, input_t], gates)
        self._recompute(gates)
        return gates

    def _recompute(self, *blobs: BlobReference) -> None:
        if self.memory_optimization:
            self.recompute_blobs = [*blobs]

    def _normalized(self, model: ModelHelper, gates: BlobReference) -> BlobReference:
        """Add layer normalization of the gates of each sample."""
        width = self.projections * self.hidden_size
        name = self.scope("gates_t_norm")
        result: BlobReference = brew.layer_norm(model, gates, name, dim_in=width, axis=-1, epsilon=1e-4)
        self._recompute(*self.recompute_blobs, result, result + "_mean", result + "_std")
        return result

    def _unit(
        self,
        model: ModelHelper,
        gates: BlobReference,
        seq_lengths: BlobReference | None,
        states: Sequence[BlobReference],
        timestep: BlobReference,
    ) -> list[BlobReference]:
        lengths = [] if seq_lengths is None else [seq_lengths]
        after = model.net.LSTMUnit(
            [*states, gates, *lengths, timestep],
            [self.scope(name) for name in self.output_names],
            forget_bias=self.forget_bias,
            drop_states=self.drop_states,
            sequence_lengths=bool(lengths),
        )
        model.net.AddExternalOutputs(*after)
        return list(after)

    def get_input_params(self) -> dict[str, BlobReference]:
        """Return the weights and biases of the input's projection, in the current name scope."""
        return self._params("i2h")

    def get_recurrent_params(self) -> dict[str, BlobReference]:
        """Return the weights and biases of the hidden state's projection, in the current name scope."""
        return self._params("gates_t")

    def _params(self, name: str) -> dict[str, BlobReference]:
        return {
            "weights": parameter_name(self.scope(name) + "_w"),
            "biases": parameter_name(self.scope(name) + "_b"),
        }

    def get_state_names_override(self) -> list[str]:
        return ["hidden_t", "cell_t"]


class _Named(LSTMInitializer):
    """Initial states with the cell's name as prefix."""

    def __init__(self, cell: RNNCell, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self._cell = cell

    def create_states(self, model: ModelHelper) -> list[BlobReference]:
        names = [self._cell.scope(f"initial_{state}_state") for state in ("hidden", "cell")]
        return ZeroStates(names, self.hidden_size).create_states(model)


class LayerNormLSTMCell(LSTMCell):
    """An LSTM whose gates are layer-normalized before their activations.

    Arguments as for ``LSTMCell``.

    Source: Ba, Kiros and Hinton, "Layer normalization", 2016, arXiv:1607.06450.
    """

    output_names = ("hidden_t", "cell_t")
    normalizes_gates = True
