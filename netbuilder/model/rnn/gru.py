"""The GRU cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import brew
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.cell import ExtraInputs, StateInitializer, ZeroStates
from netbuilder.model.rnn.projected_cell import SizedCell

__all__ = ["GRUCell"]


class GRUCell(SizedCell):
    """A gated recurrent unit: H' = u * H + (1 - u) * tanh(o) with reset and update gates r and u, see ``GRUUnit``.

    Args:
        input_size, hidden_size: widths of the input and of the state.
        forget_bias, memory_optimization: ignored; they exist so that all cells have the same arguments.
        drop_states: set the state of a sample to 0 after its sequence has ended, instead of leaving it unchanged.
        linear_before_reset: apply the reset gate to the projected state, instead of to the state itself.
        initializer: of the initial state; None: a parameter ``initial_hidden_state``, initialized to 0.
        kwargs: ``name``, ``forward_only``.

    Raises:
        ArgumentError: a width is not a positive integer.

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014, arXiv:1406.1078.
    """

    projections = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        forget_bias: float,
        memory_optimization: bool,
        drop_states: bool = False,
        linear_before_reset: bool = False,
        *,
        initializer: StateInitializer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, drop_states, initializer, **kwargs)
        self.linear_before_reset = linear_before_reset
        if initializer is None:
            self.initializer = ZeroStates([self.scope("initial_hidden_state")], hidden_size)

    def apply_override(
        self,
        model: ModelHelper,
        input_t: BlobReference,
        seq_lengths: BlobReference | None,
        states: Sequence[BlobReference],
        timestep: BlobReference,
        extra_inputs: ExtraInputs | None = None,
    ) -> list[BlobReference]:
        (hidden,) = states
        parts = [self.scope(f"input_t_{gate}") for gate in ("reset", "update", "output")]
        inputs = model.net.Split(input_t, parts, axis=2)
        given, width = self._with_extra(model, hidden, extra_inputs)
        reset, update = (self._fc(model, given, f"{gate}_gate_t", width) for gate in ("reset", "update"))
        reset = brew.sum(model, [reset, inputs[0]], reset)
        gate = model.net.Sigmoid(reset, self.scope("reset_gate_t_sigmoid"))
        if self.linear_before_reset:
            product = self._fc(model, given, "output_gate_t", width)
            output = model.net.Mul([gate, product], self.scope("output_gate_t_mul"))
        else:
            modified = model.net.Mul([gate, hidden], self.scope("modified_hidden_t_prev"))
            modified, width = self._with_extra(model, modified, extra_inputs, "modified_concatenated_input_t")
            output = self._fc(model, modified, "output_gate_t", width)
        update = brew.sum(model, [update, inputs[1]], update)
        output = brew.sum(model, [output, inputs[2]], self.scope("output_gate_t_summed"))
        gates = self.concatenated(model, [reset, update, output], "gates_t")
        return self._unit(model, gates, seq_lengths, hidden, timestep)

    def _fc(self, model: ModelHelper, given: BlobReference, name: str, width: int) -> BlobReference:
        return brew.fc(model, given, self.scope(name), dim_in=width, dim_out=self.hidden_size, axis=2)

    def _unit(
        self,
        model: ModelHelper,
        gates: BlobReference,
        seq_lengths: BlobReference | None,
        hidden: BlobReference,
        timestep: BlobReference,
    ) -> list[BlobReference]:
        lengths = [] if seq_lengths is None else [seq_lengths]
        after = model.net.GRUUnit(
            [hidden, gates, *lengths, timestep],
            self.scope("hidden_t"),
            drop_states=self.drop_states,
            sequence_lengths=bool(lengths),
        )
        model.net.AddExternalOutputs(after)
        return [after]
