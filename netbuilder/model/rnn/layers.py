"""Recurrent layers: LSTM, GRU and others over a whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.attention import AttentionType
from netbuilder.model.rnn.attention_cell import LSTMWithAttentionCell
from netbuilder.model.rnn.basic import BasicRNNCell
from netbuilder.model.rnn.cell import Blob, RNNCell
from netbuilder.model.rnn.gru import GRUCell
from netbuilder.model.rnn.lstm import LayerNormLSTMCell, LSTMCell
from netbuilder.model.rnn.milstm import LayerNormMILSTMCell, MILSTMCell
from netbuilder.model.rnn.multi import MultiRNNCell
from netbuilder.model.rnn.unrolled import UnrolledCell
from netbuilder.proto import ArgumentError

__all__ = [
    "GRU",
    "LSTM",
    "MILSTM",
    "BasicRNN",
    "LSTMWithAttention",
    "LayerNormLSTM",
    "LayerNormMILSTM",
    "cudnn_LSTM",
    "layered_LSTM",
    "recurrent_layers",
]


def recurrent_layers(
    cell_class: Callable[..., RNNCell],
    model: ModelHelper,
    input_blob: Blob,
    seq_lengths: Blob | None,
    initial_states: Sequence[Blob] | None,
    dim_in: int,
    dim_out: int | Sequence[int],
    scope: str | None = None,
    outputs_with_grads: Sequence[int] = (0,),
    return_params: bool = False,
    memory_optimization: bool = False,
    forget_bias: float = 0.0,
    forward_only: bool = False,
    drop_states: bool = False,
    return_last_layer_only: bool = True,
    static_rnn_unroll_size: int | None = None,
    **cell_kwargs: Any,
) -> tuple[Any, ...]:
    """Run one layer, or a stack of layers, over a sequence.

    Args:
        cell_class: creates the cell of a layer.
        input_blob: (steps, samples, dim_in).
        seq_lengths: (samples,) int32: number of steps of each sample; None: all.
        initial_states: initial values of all states, lowest layer first; None: parameters initialized to 0.
        dim_in: width of the input.
        dim_out: width of the states; a list for several layers.
        scope: prefix of the names of all blobs.
        outputs_with_grads: indices of the outputs of the last layer that have gradients.
        return_params: append the names of the parameters to the result.
        memory_optimization, forget_bias, drop_states, cell_kwargs: see the cell.
        forward_only: build no backward pass.
        return_last_layer_only: return only the states of the last layer.
        static_rnn_unroll_size: unroll this number of steps instead of using a RecurrentNetwork operator; None: do not
            unroll.

    Returns:
        For each state all its values, (steps, samples, width), and the last one, (1, samples, width).

    Raises:
        ArgumentError: an argument of the cell is wrong.
        NetError: the number of initial states is wrong.
    """
    common = dict(
        forget_bias=forget_bias,
        memory_optimization=memory_optimization,
        forward_only=forward_only,
        drop_states=drop_states,
        **cell_kwargs,
    )
    widths = list(dim_out) if isinstance(dim_out, Sequence) else [dim_out]
    one = len(widths) == 1
    sizes = zip([dim_in, *widths], widths)
    names = {"name": scope} if one else {}
    cells = [cell_class(input_size=size, hidden_size=width, **names, **common) for size, width in sizes]
    cell = cells[0] if one else MultiRNNCell(cells, name=scope, forward_only=forward_only)
    first = 2 * sum(len(lower.get_state_names()) for lower in cells[:-1])
    runs = cell if static_rnn_unroll_size is None else UnrolledCell(cell, T=static_rnn_unroll_size)
    shifted = [first + number for number in outputs_with_grads]
    _, results = runs.apply_over_sequence(model, input_blob, seq_lengths, initial_states, outputs_with_grads=shifted)
    if return_last_layer_only:
        results = results[first:]
    return (*results, _params(cells)) if return_params else results


def _params(cells: Sequence[RNNCell]) -> dict[str, Any]:
    if len(cells) > 1 or not isinstance(cells[0], LSTMCell):
        raise ArgumentError(
            "return_params is supported only for an LSTM of one layer; model.GetParams() returns all parameters"
        )
    return {"input": cells[0].get_input_params(), "recurrent": cells[0].get_recurrent_params()}


LSTM = partial(recurrent_layers, LSTMCell)
"""``recurrent_layers`` of ``LSTMCell``; its results are hidden state and cell state."""

BasicRNN = partial(recurrent_layers, BasicRNNCell)
"""``recurrent_layers`` of ``BasicRNNCell``, with ``activation``."""

MILSTM = partial(recurrent_layers, MILSTMCell)
"""``recurrent_layers`` of ``MILSTMCell``."""

LayerNormLSTM = partial(recurrent_layers, LayerNormLSTMCell)
"""``recurrent_layers`` of ``LayerNormLSTMCell``."""

LayerNormMILSTM = partial(recurrent_layers, LayerNormMILSTMCell)
"""``recurrent_layers`` of ``LayerNormMILSTMCell``."""

GRU = partial(recurrent_layers, GRUCell)
"""``recurrent_layers`` of ``GRUCell``, with ``linear_before_reset``."""


def LSTMWithAttention(
    model: ModelHelper,
    decoder_inputs: Blob,
    decoder_input_lengths: Blob | None,
    initial_decoder_hidden_state: Blob,
    initial_decoder_cell_state: Blob,
    initial_attention_weighted_encoder_context: Blob,
    encoder_output_dim: int,
    encoder_outputs: Blob,
    encoder_lengths: Blob | None,
    decoder_input_dim: int,
    decoder_state_dim: int,
    scope: str | None,
    attention_type: int = AttentionType.Regular,
    outputs_with_grads: Sequence[int] = (0, 4),
    weighted_encoder_outputs: Blob | None = None,
    lstm_memory_optimization: bool = False,
    attention_memory_optimization: bool = False,
    forget_bias: float = 0.0,
    forward_only: bool = False,
) -> tuple[BlobReference, ...]:
    """Run an LSTM with attention over a sequence.

    Args:
        decoder_inputs: (steps, samples, decoder_input_dim).
        decoder_input_lengths: (samples,) int32; None: all steps.
        initial_decoder_hidden_state, initial_decoder_cell_state: initial states, of width decoder_state_dim.
        initial_attention_weighted_encoder_context: initial context, of width encoder_output_dim.
        scope: prefix of the names of all blobs.
        outputs_with_grads: indices of the outputs that have gradients; 0 and 4 are the hidden states and the contexts
            of all steps.
        The others: see ``AttentionCell`` and ``LSTMCell``.

    Returns:
        All values and the last one of the hidden state, the cell state, the context, and for SoftCoverage the coverage.
    """
    cell = LSTMWithAttentionCell(
        encoder_output_dim=encoder_output_dim,
        encoder_outputs=encoder_outputs,
        encoder_lengths=encoder_lengths,
        decoder_input_dim=decoder_input_dim,
        decoder_state_dim=decoder_state_dim,
        name=scope,
        attention_type=attention_type,
        weighted_encoder_outputs=weighted_encoder_outputs,
        forget_bias=forget_bias,
        lstm_memory_optimization=lstm_memory_optimization,
        attention_memory_optimization=attention_memory_optimization,
        forward_only=forward_only,
    )
    first = [
        initial_decoder_hidden_state,
        initial_decoder_cell_state,
        initial_attention_weighted_encoder_context,
    ]
    if attention_type == AttentionType.SoftCoverage:
        first.append(cell.build_initial_coverage(model))
    _, results = cell.apply_over_sequence(
        model, decoder_inputs, decoder_input_lengths, first, outputs_with_grads=outputs_with_grads
    )
    return results


def _layered_LSTM(
    model: ModelHelper,
    input_blob: Blob,
    seq_lengths: Blob | None,
    initial_states: Sequence[Blob] | None,
    dim_in: int,
    dim_out: Sequence[int],
    scope: str,
    outputs_with_grads: Sequence[int] = (0,),
    return_params: bool = False,
    memory_optimization: bool = False,
    forget_bias: float = 0.0,
    forward_only: bool = False,
    drop_states: bool = False,
    create_lstm: Callable[..., Any] | None = None,
) -> tuple[BlobReference, ...]:
    """Run layers over a sequence one after the other, each over the hidden states of the layer below.

    The initial states of each layer are the last states of the layer below, so all layers must have the same width;
    ``LSTM`` with a list for ``dim_out`` supports different widths.

    Args:
        dim_out: widths of the layers.
        scope: scope of the lowest layer; the others have the suffix "_layer_<i>".
        create_lstm: creates a layer; None: ``LSTM``.
        The others: see ``LSTM``.

    Returns:
        The result of the last layer.

    Raises:
        ArgumentError: ``return_params`` is set.
    """
    if return_params:
        raise ArgumentError("layered_LSTM: return_params is not supported; model.GetParams() returns all parameters")
    make = create_lstm or LSTM
    given, states = input_blob, initial_states
    results: tuple[BlobReference, ...] = ()
    for i, width in enumerate(dim_out):
        last = i + 1 == len(dim_out)
        results = make(
            model,
            given,
            seq_lengths,
            states,
            dim_in if i == 0 else dim_out[i - 1],
            width,
            scope=scope if i == 0 else f"{scope}_layer_{i}",
            outputs_with_grads=outputs_with_grads if last else (0, 1, 3),
            memory_optimization=memory_optimization,
            forget_bias=forget_bias,
            forward_only=forward_only,
            drop_states=drop_states,
        )
        given, states = results[0], [results[1], results[3]]
    return results


layered_LSTM = partial(_layered_LSTM, create_lstm=LSTM)
"""Layers that run over the whole sequence one after the other; see ``_layered_LSTM``."""


def cudnn_LSTM(
    model: ModelHelper,
    input_blob: Blob,
    initial_states: Sequence[Blob],
    dim_in: int,
    dim_out: int,
    scope: str,
    recurrent_params: Any = None,
    input_params: Any = None,
    num_layers: int = 1,
    return_params: bool = False,
) -> Any:
    """Raise NotImplementedError: the operator Recurrent, with all parameters in one blob, is not supported.

    Raises:
        NotImplementedError: always; the message says what to use instead.
    """
    raise NotImplementedError(
        f"cudnn_LSTM {scope!r}: the operator Recurrent is not supported in this version; rnn_cell.LSTM with "
        f"dim_out={[dim_out] * num_layers} has the same layers, with parameters that "
        "InitFromLSTMParams sets"
    )
