"""Encoders: embeddings and recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.scope import SEPARATOR, DeviceScope, NameScope
from netbuilder.model.initializers import Initializer
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterTags
from netbuilder.model.rnn.cell import Blob, RNNCell, as_reference, joined_name
from netbuilder.model.rnn.lstm import LSTMCell
from netbuilder.model.rnn.multi import DropoutCell
from netbuilder.proto import PROTO_CPU, ArgumentError
from netbuilder.proto.arguments import make_device_option

__all__ = [
    "Encoded",
    "build_embedding_encoder",
    "build_embeddings",
    "embedded_words",
    "get_layer_scope",
    "rnn_bidirectional_layer",
    "rnn_unidirectional_layer",
]

Layer = tuple[BlobReference | None, BlobReference | None, BlobReference | None]
"""Outputs of all steps, final hidden state, final cell state."""


def build_embeddings(
    model: ModelHelper, vocab_size: int, embedding_size: int, name: str, freeze_embeddings: bool
) -> BlobReference:
    """Return an embedding table, (vocab_size, embedding_size), initialized with a standard deviation of 0.1.

    Args:
        name: name of the table.
        freeze_embeddings: do not train the table.
    """
    tags = ParameterTags.COMPUTED_PARAM if freeze_embeddings else None
    return model.create_param(name, [vocab_size, embedding_size], Initializer("GaussianFill", std=0.1), tags)


def rnn_unidirectional_layer(
    model: ModelHelper,
    inputs: Blob,
    input_lengths: Blob,
    input_size: int,
    num_units: int,
    dropout_keep_prob: float | None,
    forward_only: bool,
    return_sequence_output: bool,
    return_final_state: bool,
    scope: str | None = None,
) -> Layer:
    """Run an LSTM over a sequence, with initial states of 0.

    Args:
        inputs: (steps, samples, input_size).
        input_lengths: (samples,) int32.
        num_units: width of the states.
        dropout_keep_prob: probability that dropout keeps an output; None: no dropout.
        forward_only: build no backward pass.
        return_sequence_output, return_final_state: whether these outputs have gradients.
        scope: prefix of the names of all blobs.
    """
    first_cell, first_hidden = (
        model.create_param(
            joined_name(scope, f"initial_{state}_state"),
            [num_units],
            Initializer("ConstantFill", value=0.0),
            ParameterTags.COMPUTED_PARAM,
        )
        for state in ("cell", "hidden")
    )
    cell: RNNCell = LSTMCell(
        input_size=input_size,
        hidden_size=num_units,
        forget_bias=0.0,
        memory_optimization=False,
        name=joined_name(scope, "lstm"),
        forward_only=forward_only,
    )
    if dropout_keep_prob is not None:
        cell = DropoutCell(
            cell,
            dropout_ratio=1.0 - dropout_keep_prob,
            name=joined_name(scope, "dropout"),
            forward_only=forward_only,
            is_test=False,
        )
    with_grads = [*([0] if return_sequence_output else []), *([1, 3] if return_final_state else [])]
    outputs, (_, hidden, _, last_cell) = cell.apply_over_sequence(
        model, inputs, input_lengths, [first_hidden, first_cell], outputs_with_grads=with_grads
    )
    return outputs, hidden, last_cell


def rnn_bidirectional_layer(
    model: ModelHelper,
    inputs: Blob,
    input_lengths: Blob,
    input_size: int,
    num_units: int,
    dropout_keep_prob: float | None,
    forward_only: bool,
    return_sequence_output: bool,
    return_final_state: bool,
    scope: str | None = None,
) -> Layer:
    """Run one LSTM over a sequence and one over the reversed sequence, and concatenate their results.

    Arguments as for ``rnn_unidirectional_layer``; the width of outputs and states is ``2 * num_units``.
    """
    given, lengths = as_reference(inputs), as_reference(input_lengths)
    common = (input_size, num_units, dropout_keep_prob, forward_only, return_sequence_output, return_final_state)
    forward = rnn_unidirectional_layer(model, given, lengths, *common, scope=joined_name(scope, "fw"))
    flipped = model.net.ReversePackedSegs([given, lengths], joined_name(scope, "reversed_inputs"))
    backward = rnn_unidirectional_layer(model, flipped, lengths, *common, scope=joined_name(scope, "bw"))
    outputs = hidden = cell = None
    if return_sequence_output:
        in_order = model.net.ReversePackedSegs([backward[0], lengths], joined_name(scope, "outputs_bw"))
        outputs = _joined(model, [forward[0], in_order], joined_name(scope, "outputs"))
    if return_final_state:
        hidden = _joined(model, [forward[1], backward[1]], joined_name(scope, "final_hidden_state"))
        cell = _joined(model, [forward[2], backward[2]], joined_name(scope, "final_cell_state"))
    return outputs, hidden, cell


def _joined(model: ModelHelper, blobs: Sequence[Any], name: str) -> BlobReference:
    joined: BlobReference = model.net.Concat(list(blobs), [name, f"{name}_dim"], axis=2)[0]
    return joined


def get_layer_scope(scope: str | None, layer_type: str, i: int) -> str:
    """Return the scope of a layer: ``<scope>/<layer_type>/layer<i>``.

    >>> get_layer_scope("translate", "encoder", 0)
    'translate/encoder/layer0'
    """
    return joined_name(scope, f"{layer_type}{SEPARATOR}layer{i}")


class Encoded(NamedTuple):
    """The results of an encoder, for a decoder."""

    outputs: BlobReference | None  #: (steps, samples, width)
    weighted_outputs: BlobReference | None  #: the outputs times a matrix, if computed
    final_hidden_states: list[BlobReference | None]  #: final states of the layers that a decoder needs
    final_cell_states: list[BlobReference | None]
    units_per_layer: list[int]


def build_embedding_encoder(
    model: ModelHelper,
    encoder_params: Mapping[str, Any],
    num_decoder_layers: int,
    inputs: Blob,
    input_lengths: Blob,
    vocab_size: int,
    embeddings: Blob,
    embedding_size: int,
    use_attention: bool,
    num_gpus: int = 0,
    forward_only: bool = False,
    scope: str | None = None,
) -> Encoded:
    """Look up the embeddings of tokens and run recurrent layers over them.

    Args:
        encoder_params: "encoder_layer_configs": for each layer a mapping with "num_units", and optionally
            "dropout_keep_prob"; "use_bidirectional_encoder": whether the first layer is bidirectional, which doubles
            the width of its outputs.
        num_decoder_layers: number of the decoder's layers, which need final states.
        inputs: (steps, samples) token ids.
        input_lengths: (samples,) int32.
        vocab_size: ignored (rows of the table).
        embeddings: the table.
        embedding_size: its width.
        use_attention: whether the outputs of the last layer have gradients.
        num_gpus: if positive, the table is on the CPU, the layers on the GPU of the current device scope.
        forward_only: build no backward pass.
        scope: prefix of the names of all blobs.

    Raises:
        ArgumentError: there are no layers, or ``num_gpus`` is negative.
    """
    configs = encoder_params.get("encoder_layer_configs") or ()
    if not configs:
        raise ArgumentError(
            "build_embedding_encoder: encoder_params must have encoder_layer_configs, with one mapping per layer"
        )
    given, lengths, table = as_reference(inputs), as_reference(input_lengths), as_reference(embeddings)
    with NameScope(scope):
        outputs: Any = embedded_words(model, table, given, "embedded_encoder_inputs", num_gpus)
    size, hidden, cells, units = embedding_size, [], [], []
    for i, config in enumerate(configs):
        both = i == 0 and bool(encoder_params.get("use_bidirectional_encoder"))
        last, width = i + 1 == len(configs), config["num_units"] * (2 if both else 1)
        final = i >= len(configs) - num_decoder_layers
        outputs, last_hidden, last_cell = (rnn_bidirectional_layer if both else rnn_unidirectional_layer)(
            model=model,
            inputs=outputs,
            input_lengths=lengths,
            input_size=size,
            num_units=config["num_units"],
            dropout_keep_prob=config.get("dropout_keep_prob"),
            forward_only=forward_only,
            return_sequence_output=not last or use_attention,
            return_final_state=final,
            scope=get_layer_scope(scope, "encoder", i),
        )
        hidden.append(last_hidden if final else None)
        cells.append(last_cell if final else None)
        units.append(width)
        size = width
    return Encoded(outputs, None, hidden, cells, units)


def embedded_words(
    model: ModelHelper, table: BlobReference, words: BlobReference, name: str, num_gpus: int
) -> BlobReference:
    """Return the embeddings of tokens, (steps, samples, width).

    Args:
        table: the embedding table.
        words: token ids.
        name: name of the result.
        num_gpus: 0: the table is on the device of the model; otherwise it is on the CPU, and the embeddings are copied
            to the GPU of the current device scope.

    Raises:
        ArgumentError: ``num_gpus`` is negative.
    """
    if num_gpus < 0:
        raise ArgumentError(f"num_gpus must not be negative, got {num_gpus!r}")
    if num_gpus == 0:
        vectors: BlobReference = model.net.Gather([table, words], name)
        return vectors
    with DeviceScope(make_device_option(PROTO_CPU)):
        on_cpu = model.net.Gather([table, words], f"{name}_cpu")
    copied: BlobReference = model.net.CopyCPUToGPU(on_cpu, name)
    return copied
