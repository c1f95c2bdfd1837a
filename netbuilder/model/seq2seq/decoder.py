"""Decoders: recurrent layers with attention, and the projection to words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.scope import NameScope
from netbuilder.model import brew
from netbuilder.model.initializers import Initializer
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterTags
from netbuilder.model.rnn.attention import AttentionType
from netbuilder.model.rnn.attention_cell import AttentionCell
from netbuilder.model.rnn.cell import Blob, RNNCell, as_reference, joined_name
from netbuilder.model.rnn.lstm import LSTMCell
from netbuilder.model.rnn.multi import DropoutCell, MultiRNNCell
from netbuilder.model.seq2seq.encoder import embedded_words
from netbuilder.proto import ArgumentError

__all__ = [
    "LSTMWithAttentionDecoder",
    "build_embedding_decoder",
    "build_initial_rnn_decoder_states",
    "decoder_layers",
    "output_projection",
]

_TYPES = {
    "regular": AttentionType.Regular,
    "recurrent": AttentionType.Recurrent,
    "dot": AttentionType.Dot,
    "soft_coverage": AttentionType.SoftCoverage,
}


class LSTMWithAttentionDecoder:
    """Layers with or without attention, for all steps at once or for single steps.

    Args:
        encoder_outputs: (steps, samples, encoder_output_dim).
        encoder_lengths: (samples,) int32; None: all steps.
        vocab_size: ignored.
        attention_type: "none", "regular", "recurrent", "dot" or "soft_coverage".
        embedding_size: width of the input.
        decoder_num_units: width of the last layer.
        decoder_cells: the layers.
        residual_output_layers: see ``MultiRNNCell``.
        name: prefix of the names of all blobs.
        weighted_encoder_outputs: see ``AttentionCell``.

    Raises:
        ArgumentError: the attention type is invalid.
    """

    def __init__(
        self,
        encoder_outputs: Blob | None,
        encoder_output_dim: int,
        encoder_lengths: Blob | None,
        vocab_size: int,
        attention_type: str,
        embedding_size: int,
        decoder_num_units: int,
        decoder_cells: Sequence[RNNCell],
        residual_output_layers: Sequence[int] | None = None,
        name: str | None = None,
        weighted_encoder_outputs: Blob | None = None,
    ) -> None:
        self.name = name
        self.num_layers = len(decoder_cells)
        kind = self._get_attention_type(attention_type)
        inner = MultiRNNCell(
            decoder_cells,
            name=self.scope("decoder"),
            residual_output_layers=residual_output_layers,
            forward_only=decoder_cells[0].forward_only,
        )
        self.use_attention = kind is not None
        self.decoder_output_dim = decoder_num_units + (encoder_output_dim if self.use_attention else 0)
        self.cell: RNNCell = inner
        if kind is not None:
            if encoder_outputs is None:
                raise ArgumentError(f"decoder {name!r}: attention needs encoder_outputs, got None")
            self.cell = AttentionCell(
                encoder_output_dim,
                encoder_outputs,
                encoder_lengths,
                inner,
                decoder_num_units,
                kind,
                weighted_encoder_outputs,
                attention_memory_optimization=True,
                name=self.scope("attention_decoder"),
                forward_only=decoder_cells[0].forward_only,
            )

    def scope(self, name: str) -> str:
        """Return a name with the decoder's name as prefix."""
        return joined_name(self.name, name)

    def _get_attention_type(self, attention_type_as_string: str) -> int | None:
        if attention_type_as_string == "none":
            return None
        if attention_type_as_string not in _TYPES:
            raise ArgumentError(
                f"decoder {self.name!r}: attention_type must be 'none' or one of {sorted(_TYPES)}, "
                f"got {attention_type_as_string!r}"
            )
        return _TYPES[attention_type_as_string]

    def get_state_names(self) -> list[str]:
        """Return the names of the states."""
        return self.cell.get_state_names()

    def get_outputs_with_grads(self) -> list[int]:
        """Return the indices of the outputs with gradients: the last layer's and, with attention, the context."""
        return self.cell._outputs_with_grads(None)

    def get_output_dim(self) -> int:
        """Return the width of the output."""
        return self.decoder_output_dim

    def get_attention_weights(self) -> BlobReference | None:
        """Return the weights of the step that was added last, (samples, encoder steps, 1); None without attention."""
        return self.cell.get_attention_weights() if isinstance(self.cell, AttentionCell) else None

    def apply(
        self, model: ModelHelper, input_t: Blob, seq_lengths: Blob | None, states: Sequence[Blob], timestep: Blob
    ) -> tuple[BlobReference, list[BlobReference]]:
        """Add one step; see ``RNNCell.apply``."""
        return self.cell.apply(model, input_t, seq_lengths, states, timestep)

    def apply_over_sequence(
        self, model: ModelHelper, inputs: Blob, seq_lengths: Blob | None, initial_states: Sequence[Blob]
    ) -> tuple[BlobReference, tuple[BlobReference, ...]]:
        """Run over a sequence; see ``RNNCell.apply_over_sequence``."""
        return self.cell.apply_over_sequence(
            model, inputs, seq_lengths, initial_states, outputs_with_grads=self.get_outputs_with_grads()
        )


def build_initial_rnn_decoder_states(
    model: ModelHelper,
    encoder_units_per_layer: Sequence[int],
    decoder_units_per_layer: Sequence[int],
    final_encoder_hidden_states: Sequence[Blob | None],
    final_encoder_cell_states: Sequence[Blob | None],
    use_attention: bool,
) -> list[BlobReference]:
    """Return the initial states of a decoder: the encoder's final states, or parameters initialized to 0.

    The decoder's layers get the states of the encoder's last layers, in the same order; states of another width are
    projected. Layers without a counterpart in the encoder get parameters. With attention the initial context is a
    parameter as well.

    Args:
        encoder_units_per_layer, decoder_units_per_layer: widths of the layers.
        final_encoder_hidden_states, final_encoder_cell_states: the encoder's final states.
        use_attention: whether the decoder has a context.
    """
    offset = max(0, len(encoder_units_per_layer) - len(decoder_units_per_layer))
    states: list[BlobReference] = []
    for i, width in enumerate(decoder_units_per_layer):
        for kind, finals in (("hidden", final_encoder_hidden_states), ("cell", final_encoder_cell_states)):
            name = f"decoder_initial_{kind}_state_{i}"
            final = finals[i + offset] if i + offset < len(finals) else None
            if final is None:
                states.append(_zeros(model, name, width))
            elif encoder_units_per_layer[i + offset] != width:
                states.append(
                    brew.fc(model, final, name, dim_in=encoder_units_per_layer[i + offset], dim_out=width, axis=2)
                )
            else:
                states.append(as_reference(final))
    if use_attention:
        states.append(_zeros(model, "initial_attention_weighted_encoder_context", encoder_units_per_layer[-1]))
    return states


def _zeros(model: ModelHelper, name: str, width: int) -> BlobReference:
    return model.create_param(name, [width], Initializer("ConstantFill", value=0.0))


def build_embedding_decoder(
    model: ModelHelper,
    decoder_layer_configs: Sequence[Mapping[str, Any]],
    inputs: Blob,
    input_lengths: Blob,
    encoder_lengths: Blob | None,
    encoder_outputs: Blob | None,
    weighted_encoder_outputs: Blob | None,
    final_encoder_hidden_states: Sequence[Blob | None],
    final_encoder_cell_states: Sequence[Blob | None],
    encoder_units_per_layer: Sequence[int],
    vocab_size: int,
    embeddings: Blob,
    embedding_size: int,
    attention_type: str,
    forward_only: bool,
    num_gpus: int = 0,
    scope: str | None = None,
) -> tuple[BlobReference, int]:
    """Look up the embeddings of tokens and run a decoder over them.

    Args:
        decoder_layer_configs: for each layer a mapping with "num_units", and optionally "dropout_keep_prob" and
            "residual" (the input is added to the output).
        inputs: (steps, samples) token ids.
        input_lengths: (samples,) int32.
        encoder_lengths, encoder_outputs, weighted_encoder_outputs: see ``LSTMWithAttentionDecoder``.
        final_encoder_hidden_states, final_encoder_cell_states, encoder_units_per_layer: see
            ``build_initial_rnn_decoder_states``.
        vocab_size: ignored (rows of the table).
        embeddings: the table.
        embedding_size: its width.
        attention_type: see ``LSTMWithAttentionDecoder``.
        forward_only: build no backward pass.
        num_gpus: if positive, the table is on the CPU, the layers on the GPU of the current device scope.
        scope: prefix of the names of all blobs.

    Returns:
        The outputs of all steps, (steps * samples, width), and the width.

    Raises:
        ArgumentError: ``num_gpus`` is negative.
    """
    given, lengths, table = as_reference(inputs), as_reference(input_lengths), as_reference(embeddings)
    with NameScope(scope):
        embedded = embedded_words(model, table, given, "embedded_decoder_inputs", num_gpus)
    cells, residual = decoder_layers(decoder_layer_configs, embedding_size, forward_only)
    decoder = LSTMWithAttentionDecoder(
        encoder_outputs,
        encoder_units_per_layer[-1],
        encoder_lengths,
        vocab_size,
        attention_type,
        embedding_size,
        decoder_layer_configs[-1]["num_units"],
        cells,
        residual_output_layers=residual,
        name=scope,
        weighted_encoder_outputs=weighted_encoder_outputs,
    )
    states = build_initial_rnn_decoder_states(
        model,
        encoder_units_per_layer,
        [config["num_units"] for config in decoder_layer_configs],
        final_encoder_hidden_states,
        final_encoder_cell_states,
        decoder.use_attention,
    )
    if isinstance(decoder.cell, AttentionCell) and decoder.cell.attention_type == AttentionType.SoftCoverage:
        states.append(decoder.cell.build_initial_coverage(model))
    outputs, _ = decoder.apply_over_sequence(model, embedded, lengths, states)
    width = decoder.get_output_dim()
    flat = ["decoder_outputs_flattened", "decoder_outputs_and_contexts_combination_old_shape"]
    return model.net.Reshape(outputs, flat, shape=[-1, width])[0], width


def decoder_layers(
    configs: Sequence[Mapping[str, Any]], embedding_size: int, forward_only: bool
) -> tuple[list[RNNCell], list[int]]:
    """Return the cells of a decoder's layers, and the indices of the residual layers."""
    cells: list[RNNCell] = []
    residual = []
    size = embedding_size
    for i, config in enumerate(configs):
        cell: RNNCell = LSTMCell(
            input_size=size,
            hidden_size=config["num_units"],
            forget_bias=0.0,
            memory_optimization=False,
            forward_only=forward_only,
        )
        keep = config.get("dropout_keep_prob")
        if keep is not None:
            cell = DropoutCell(
                cell, dropout_ratio=1.0 - keep, name=f"dropout_{i}", forward_only=forward_only, is_test=False
            )
        cells.append(cell)
        if config.get("residual"):
            residual.append(i)
        size = config["num_units"]
    return cells, residual


def output_projection(
    model: ModelHelper,
    decoder_outputs: Blob,
    decoder_output_size: int,
    target_vocab_size: int,
    decoder_softmax_size: int | None,
) -> BlobReference:
    """Return the logits of the words.

    Args:
        decoder_outputs: (rows, decoder_output_size).
        target_vocab_size: number of words.
        decoder_softmax_size: width of an additional layer before the projection; None: no such layer.
    """
    given, size = decoder_outputs, decoder_output_size
    if decoder_softmax_size is not None:
        given = brew.fc(model, given, "decoder_outputs_scaled", dim_in=size, dim_out=decoder_softmax_size)
        size = decoder_softmax_size
    weights = model.create_param(
        "output_projection_w", [target_vocab_size, size], Initializer("XavierFill"), ParameterTags.WEIGHT
    )
    bias = model.create_param("output_projection_b", [target_vocab_size], Initializer("XavierFill"), ParameterTags.BIAS)
    logits: BlobReference = model.net.FC([given, weights, bias], ["output_logits"])
    return logits
