"""The plain recurrent cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import brew
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.cell import ExtraInputs, StateInitializer, ZeroStates
from netbuilder.model.rnn.projected_cell import SizedCell
from netbuilder.proto import ArgumentError

__all__ = ["BasicRNNCell"]

_ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh"}


class BasicRNNCell(SizedCell):
    """H' = activation(W x + U H + b).

    Args:
        input_size, hidden_size: widths of the input and of the state.
        forget_bias, memory_optimization: ignored; they exist so that all cells have the same arguments.
        drop_states: set the state of a sample to 0 after its sequence has ended, instead of leaving it unchanged.
        initializer: of the initial state; None: a parameter ``initial_hidden_state``, initialized to 0.
        activation: "relu" or "tanh".
        kwargs: ``name``, ``forward_only``.

    Raises:
        ArgumentError: the activation is invalid; a width is not a positive integer.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        forget_bias: float,
        memory_optimization: bool,
        drop_states: bool = False,
        initializer: StateInitializer | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, drop_states, initializer, **kwargs)
        if activation not in _ACTIVATIONS:
            raise ArgumentError(f"cell {self._description()}: activation must be 'relu' or 'tanh', got {activation!r}")
        self.activation = activation
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
        given, width = self._with_extra(model, states[0], extra_inputs)
        gates = brew.fc(model, given, self.scope("gates_t"), dim_in=width, dim_out=self.hidden_size, axis=2)
        gates = brew.sum(model, [gates, input_t], gates)
        name = self.scope("hidden_t")
        hidden = getattr(model.net, _ACTIVATIONS[str(self.activation)])(
            gates, name if seq_lengths is None else f"{name}_new"
        )
        if seq_lengths is not None:
            hidden = self._masked(model, hidden, states[0], seq_lengths, timestep, name)
        model.net.AddExternalOutputs(hidden)
        return [hidden]

    def _masked(
        self,
        model: ModelHelper,
        hidden: BlobReference,
        before: BlobReference,
        seq_lengths: BlobReference,
        timestep: BlobReference,
        name: str,
    ) -> BlobReference:
        """Add the operators that restore, or drop, the states of samples whose sequence has ended."""
        net = model.net
        step = net.CopyFromCPUInput(timestep, self.scope("timestep_gpu"))

        def mask(compare: Any, which: str) -> BlobReference:
            flags = compare([seq_lengths, step], self.scope(f"{which}_b"), broadcast=1)
            number: BlobReference = net.Cast(flags, self.scope(which), to="float")
            return net.StopGradient(number, number)

        by_sample: dict[str, Any] = {"broadcast": 1, "axis": 1}
        valid = mask(net.GT, "valid")
        if self.drop_states:
            return net.Mul([hidden, valid], name, **by_sample)
        running = net.Mul([hidden, valid], self.scope("hidden_valid"), **by_sample)
        ended = net.Mul([before, mask(net.LE, "invalid")], self.scope("hidden_invalid"), **by_sample)
        return net.Add([running, ended], name)
