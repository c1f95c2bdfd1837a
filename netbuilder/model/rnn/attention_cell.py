"""Cells with attention over the outputs of an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import brew
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.attention import (
    AttentionType,
    apply_dot_attention,
    apply_recurrent_attention,
    apply_regular_attention,
    apply_soft_coverage_attention,
)
from netbuilder.model.rnn.cell import Blob, RNNCell, StepInputs, as_reference
from netbuilder.model.rnn.lstm import LSTMCell
from netbuilder.model.rnn.milstm import MILSTMCell
from netbuilder.proto import ArgumentError, NetError

__all__ = ["AttentionCell", "LSTMWithAttentionCell", "MILSTMWithAttentionCell"]


class AttentionCell(RNNCell):
    """A decoder cell with attention: the previous step's context is an extra input, the new one part of the output.

    Its states are the decoder's, then the context, then, for SoftCoverage, the coverage.

    Args:
        encoder_output_dim: width of the encoder's outputs.
        encoder_outputs: (encoder steps, samples, width).
        encoder_lengths: (samples,) int32: number of encoder steps of each sample, at least one; None: all.
        decoder_cell: the decoder.
        decoder_state_dim: width of its output.
        attention_type: a value of ``AttentionType``.
        weighted_encoder_outputs: the encoder's outputs times a matrix; None: computed here.
        attention_memory_optimization: do not store blobs of shape (encoder steps, samples, width) for each step; the
            backward pass recomputes them.
        kwargs: ``name``, ``forward_only``, ``initializer``.

    Raises:
        ArgumentError: the attention type is invalid.
    """

    def __init__(
        self,
        encoder_output_dim: int,
        encoder_outputs: Blob,
        encoder_lengths: Blob | None,
        decoder_cell: RNNCell,
        decoder_state_dim: int,
        attention_type: int,
        weighted_encoder_outputs: Blob | None,
        attention_memory_optimization: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if attention_type not in range(4):
            raise ArgumentError(
                f"cell {self._description()}: attention_type must be one of AttentionType, got {attention_type!r}"
            )
        self.encoder_output_dim = encoder_output_dim
        self.encoder_outputs = encoder_outputs
        self.encoder_lengths = encoder_lengths
        self.decoder_cell = decoder_cell
        self.decoder_state_dim = decoder_state_dim
        self.attention_type = attention_type
        self.weighted_encoder_outputs = weighted_encoder_outputs
        self.attention_memory_optimization = attention_memory_optimization
        self.encoder_outputs_transposed: BlobReference | None = None
        self.coverage_weights: BlobReference | None = None
        self.attention_weights_3d: BlobReference | None = None
        self.hidden_t_intermediate: BlobReference | None = None

    @property
    def _covers(self) -> bool:
        return self.attention_type == AttentionType.SoftCoverage

    def prepare_input(self, model: ModelHelper, input_blob: Blob) -> Blob:
        encoder_outputs = as_reference(self.encoder_outputs)
        if self.encoder_outputs_transposed is None:
            self.encoder_outputs_transposed = brew.transpose(
                model, encoder_outputs, self.scope("encoder_outputs_transposed"), axes=[1, 2, 0]
            )
        if self.weighted_encoder_outputs is None and self.attention_type != AttentionType.Dot:
            self.weighted_encoder_outputs = self._product(model, "weighted_encoder_outputs")
        return self.decoder_cell.prepare_input(model, input_blob)

    def _product(self, model: ModelHelper, name: str) -> BlobReference:
        width = self.encoder_output_dim
        return brew.fc(model, self.encoder_outputs, self.scope(name), dim_in=width, dim_out=width, axis=2)

    def build_initial_coverage(self, model: ModelHelper) -> BlobReference:
        """Add the operators for coverage before the steps; return its initial value, (encoder steps,) zeros.

        Raises:
            NetError: the attention is of another type.
        """
        if not self._covers:
            raise NetError(f"cell {self._description()}: only attention of type SoftCoverage has a coverage")
        self.coverage_weights = self._product(model, "coverage_weights")
        steps = model.net.Slice(model.net.Shape(self.encoder_outputs), starts=[0], ends=[1])
        return model.net.ConstantFill(steps, self.scope("initial_coverage"), value=0.0, input_as_shape=1)

    def _step(self, model: ModelHelper, step: StepInputs) -> list[BlobReference]:
        before = [as_reference(state) for state in step.states]
        count = len(self.decoder_cell.get_state_names())
        extra = ((before[count], self.encoder_output_dim), *step.extra_inputs)
        after = self.decoder_cell._add_step(model, replace(step, states=before[:count], extra_inputs=extra))
        self.hidden_t_intermediate = self.decoder_cell._prepare_output(model, after)
        context, self.attention_weights_3d, recomputable, coverage = self._attend(
            model, self.hidden_t_intermediate, before[count:]
        )
        self.recompute_blobs = list(self.decoder_cell.recompute_blobs)
        if self.attention_memory_optimization:
            self.recompute_blobs += recomputable
        index = self.decoder_cell.get_output_state_index()
        after[index] = model.net.Copy(after[index], self.scope("hidden_t_external"))
        after += [context, *coverage]
        model.net.AddExternalOutputs(*after)
        return after

    def _attend(
        self, model: ModelHelper, hidden: BlobReference, own: Sequence[BlobReference]
    ) -> tuple[BlobReference, BlobReference, list[BlobReference], list[BlobReference]]:
        if self.encoder_outputs_transposed is None:
            raise NetError(f"cell {self._description()}: prepare_input must be called before the first step")
        width, transposed = self.encoder_output_dim, self.encoder_outputs_transposed
        weighted: Any = self.weighted_encoder_outputs
        state = (hidden, self.decoder_state_dim)
        lengths = self.encoder_lengths
        if self.attention_type == AttentionType.Dot:
            return *apply_dot_attention(model, width, transposed, *state, self.name, lengths), []
        if self.attention_type == AttentionType.Recurrent:
            found = apply_recurrent_attention(model, width, transposed, weighted, *state, own[0], self.name, lengths)
            return *found, []
        if self.attention_type == AttentionType.Regular:
            return *apply_regular_attention(model, width, transposed, weighted, *state, self.name, lengths), []
        if self.coverage_weights is None:
            raise NetError(f"cell {self._description()}: build_initial_coverage must be called before the first step")
        context, weights, recomputable, coverage = apply_soft_coverage_attention(
            model, width, transposed, weighted, *state, self.name, lengths, own[1], self.coverage_weights
        )
        return context, weights, recomputable, [coverage]

    def get_attention_weights(self) -> BlobReference | None:
        """Return the weights of the step that was added last, (samples, encoder steps, 1)."""
        return self.attention_weights_3d

    def get_state_names(self) -> list[str]:
        names = self.decoder_cell.get_state_names()
        names[self.decoder_cell.get_output_state_index()] = self.scope("hidden_t_external")
        names.append(self.scope("attention_weighted_encoder_context_t"))
        return [*names, self.scope("coverage_t")] if self._covers else names

    def get_output_state_index(self) -> int:
        return self.decoder_cell.get_output_state_index()

    def get_output_dim(self) -> int:
        return self.decoder_state_dim + self.encoder_output_dim

    def _context_index(self) -> int:
        return len(self.decoder_cell.get_state_names())

    def _prepare_output(self, model: ModelHelper, states: Sequence[BlobReference]) -> BlobReference:
        output = self.hidden_t_intermediate
        if output is None:
            output = self.decoder_cell._prepare_output(model, states)
        return self._combined(model, output, states[self._context_index()])

    def _prepare_output_sequence(self, model: ModelHelper, state_outputs: Sequence[BlobReference]) -> BlobReference:
        output = self.decoder_cell._prepare_output_sequence(model, state_outputs)
        return self._combined(model, output, state_outputs[2 * self._context_index()])

    def _combined(self, model: ModelHelper, output: BlobReference, context: BlobReference) -> BlobReference:
        return self.concatenated(model, [output, context], "states_and_context_combination")

    def _outputs_with_grads(self, given: Sequence[int] | None) -> list[int]:
        return (
            [*self.decoder_cell._outputs_with_grads(None), 2 * self._context_index()] if given is None else list(given)
        )


class _WithAttention(AttentionCell):
    """An attention cell that creates its own decoder."""

    decoder_class = LSTMCell

    def __init__(
        self,
        encoder_output_dim: int,
        encoder_outputs: Blob,
        encoder_lengths: Blob | None,
        decoder_input_dim: int,
        decoder_state_dim: int,
        name: str | None,
        attention_type: int,
        weighted_encoder_outputs: Blob | None,
        forget_bias: float,
        lstm_memory_optimization: bool,
        attention_memory_optimization: bool,
        forward_only: bool = False,
    ) -> None:
        decoder = self.decoder_class(
            input_size=decoder_input_dim,
            hidden_size=decoder_state_dim,
            forget_bias=forget_bias,
            memory_optimization=lstm_memory_optimization,
            name="decoder" if name is None else f"{name}/decoder",
            forward_only=False,
            drop_states=False,
        )
        super().__init__(
            encoder_output_dim=encoder_output_dim,
            encoder_outputs=encoder_outputs,
            encoder_lengths=encoder_lengths,
            decoder_cell=decoder,
            decoder_state_dim=decoder_state_dim,
            name=name,
            attention_type=attention_type,
            weighted_encoder_outputs=weighted_encoder_outputs,
            attention_memory_optimization=attention_memory_optimization,
            forward_only=forward_only,
        )


class LSTMWithAttentionCell(_WithAttention):
    """An LSTM with attention; arguments as for ``AttentionCell`` and ``LSTMCell``."""


class MILSTMWithAttentionCell(_WithAttention):
    """An LSTM with multiplicative integration and attention; arguments as for ``AttentionCell`` and ``LSTMCell``.

    Args:
        encoder_lengths: (samples,) int32: number of encoder steps of each sample; None: all.
    """

    decoder_class = MILSTMCell

    def __init__(
        self,
        encoder_output_dim: int,
        encoder_outputs: Blob,
        decoder_input_dim: int,
        decoder_state_dim: int,
        name: str | None,
        attention_type: int,
        weighted_encoder_outputs: Blob | None,
        forget_bias: float,
        lstm_memory_optimization: bool,
        attention_memory_optimization: bool,
        forward_only: bool = False,
        *,
        encoder_lengths: Blob | None = None,
    ) -> None:
        super().__init__(
            encoder_output_dim,
            encoder_outputs,
            encoder_lengths,
            decoder_input_dim,
            decoder_state_dim,
            name,
            attention_type,
            weighted_encoder_outputs,
            forget_bias,
            lstm_memory_optimization,
            attention_memory_optimization,
            forward_only,
        )
