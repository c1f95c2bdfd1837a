"""Attention: which outputs of an encoder a decoder's step looks at, and their weighted sum."""

from __future__ import annotations

from netbuilder.graph.blob import BlobReference
from netbuilder.model import brew
from netbuilder.model.initializers import Initializer
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterTags
from netbuilder.model.rnn.cell import Blob, joined_name

__all__ = [
    "AttentionType",
    "apply_dot_attention",
    "apply_recurrent_attention",
    "apply_regular_attention",
    "apply_soft_coverage_attention",
]

Attended = tuple[BlobReference, BlobReference, list[BlobReference]]
"""The context, (1, samples, encoder width); the weights, (samples, encoder steps, 1); what may be computed again."""


class AttentionType:
    """How the weights are found: see the functions of this module."""

    Regular, Recurrent, Dot, SoftCoverage = range(4)


def apply_regular_attention(
    model: ModelHelper,
    encoder_output_dim: int,
    encoder_outputs_transposed: Blob,
    weighted_encoder_outputs: Blob,
    decoder_hidden_state_t: Blob,
    decoder_hidden_state_dim: int,
    scope: str | None,
    encoder_lengths: Blob | None = None,
) -> Attended:
    """Weigh by v . tanh(W encoder + U hidden).

    Args:
        encoder_output_dim: width of the encoder's outputs.
        encoder_outputs_transposed: (samples, width, encoder steps).
        weighted_encoder_outputs: W encoder, (encoder steps, samples, width).
        decoder_hidden_state_t: (1, samples, decoder width).
        decoder_hidden_state_dim: its width.
        scope: put before the names of all blobs; None: nothing.
        encoder_lengths: (samples,) int32: how many of the encoder's steps each sample has; None: all.

    Source: Bahdanau, Cho and Bengio, "Neural machine translation by jointly learning to align and translate", 2014,
    arXiv:1409.0473.
    """
    hidden = _weighted(model, decoder_hidden_state_t, decoder_hidden_state_dim, encoder_output_dim, scope)
    total = model.net.Add(
        [weighted_encoder_outputs, hidden], joined_name(scope, "decoder_hidden_encoder_outputs_sum"), broadcast=1
    )
    return _attend_to_sum(model, total, encoder_output_dim, encoder_outputs_transposed, scope, encoder_lengths)


def apply_recurrent_attention(
    model: ModelHelper,
    encoder_output_dim: int,
    encoder_outputs_transposed: Blob,
    weighted_encoder_outputs: Blob,
    decoder_hidden_state_t: Blob,
    decoder_hidden_state_dim: int,
    attention_weighted_encoder_context_t_prev: Blob,
    scope: str | None,
    encoder_lengths: Blob | None = None,
) -> Attended:
    """Weigh by v . tanh(W encoder + U hidden + V context), of the context of the step before.

    Args:
        attention_weighted_encoder_context_t_prev: (1, samples, encoder width); the others as for
            ``apply_regular_attention``.
    """
    width = encoder_output_dim
    context = _weighted(
        model, attention_weighted_encoder_context_t_prev, width, width, scope, "weighted_prev_attention_context"
    )
    hidden = _weighted(model, decoder_hidden_state_t, decoder_hidden_state_dim, encoder_output_dim, scope)
    name = joined_name(scope, "decoder_hidden_encoder_outputs_sum")
    both = model.net.Add([context, hidden], f"{name}_tmp")
    total = model.net.Add([weighted_encoder_outputs, both], name, broadcast=1)
    return _attend_to_sum(model, total, encoder_output_dim, encoder_outputs_transposed, scope, encoder_lengths)


def apply_dot_attention(
    model: ModelHelper,
    encoder_output_dim: int,
    encoder_outputs_transposed: Blob,
    decoder_hidden_state_t: Blob,
    decoder_hidden_state_dim: int,
    scope: str | None,
    encoder_lengths: Blob | None = None,
) -> Attended:
    """Weigh by encoder . hidden; a hidden state of another width is multiplied by a matrix before.

    Arguments as for ``apply_regular_attention``.

    Source: Luong, Pham and Manning, "Effective approaches to attention-based neural machine translation", 2015,
    arXiv:1508.04025.
    """
    hidden = decoder_hidden_state_t
    if decoder_hidden_state_dim != encoder_output_dim:
        hidden = brew.fc(
            model,
            hidden,
            joined_name(scope, "weighted_decoder_hidden_state"),
            dim_in=decoder_hidden_state_dim,
            dim_out=encoder_output_dim,
            axis=2,
        )
    net, name = model.net, joined_name(scope, "squeezed_weighted_decoder_hidden_state")
    column = net.ExpandDims(net.Squeeze(hidden, name, dims=[0]), name, dims=[2])
    logits = net.BatchMatMul([encoder_outputs_transposed, column], joined_name(scope, "attention_logits"), trans_a=1)
    weights = _weights(model, logits, scope, encoder_lengths)
    return _context(model, encoder_outputs_transposed, encoder_output_dim, weights, scope), weights, []


def apply_soft_coverage_attention(
    model: ModelHelper,
    encoder_output_dim: int,
    encoder_outputs_transposed: Blob,
    weighted_encoder_outputs: Blob,
    decoder_hidden_state_t: Blob,
    decoder_hidden_state_dim: int,
    scope: str | None,
    encoder_lengths: Blob | None,
    coverage_t_prev: Blob,
    coverage_weights: Blob,
) -> tuple[BlobReference, BlobReference, list[BlobReference], BlobReference]:
    """Weigh by v . tanh(W encoder + U hidden + c (C encoder)), where c is the sum of the weights of the steps before.

    Args:
        coverage_t_prev: c, (1, samples, encoder steps).
        coverage_weights: C encoder, (encoder steps, samples, encoder width); the others as for
            ``apply_regular_attention``.

    Returns:
        Context, weights, what may be computed again; and c with the new weights.

    Source: Tu et al., "Modeling coverage for neural machine translation", 2016, arXiv:1601.04811.
    """
    net = model.net
    hidden = _weighted(model, decoder_hidden_state_t, decoder_hidden_state_dim, encoder_output_dim, scope)
    name = joined_name(scope, "decoder_hidden_encoder_outputs_sum")
    both = net.Add([weighted_encoder_outputs, hidden], f"{name}_tmp", broadcast=1)
    flat = net.Squeeze(coverage_t_prev, joined_name(scope, "coverage_t_prev_2d"), dims=[0])
    turned = net.Transpose(flat, joined_name(scope, "coverage_t_prev_transposed"))
    scaled = net.Mul([coverage_weights, turned], joined_name(scope, "scaled_coverage_weights"), broadcast=1, axis=0)
    total = net.Add([both, scaled], name)
    context, weights, again = _attend_to_sum(
        model, total, encoder_output_dim, encoder_outputs_transposed, scope, encoder_lengths
    )
    rows = net.Squeeze(weights, joined_name(scope, "attention_weights_2d"), dims=[2])
    coverage = net.Add([coverage_t_prev, rows], joined_name(scope, "coverage_t"), broadcast=1)
    return context, weights, again, coverage


def _weighted(
    model: ModelHelper,
    blob: Blob,
    dim_in: int,
    dim_out: int,
    scope: str | None,
    name: str = "weighted_decoder_hidden_state",
) -> BlobReference:
    """Multiply a state by a matrix; return it without its first axis."""
    product = brew.fc(model, blob, joined_name(scope, name), dim_in=dim_in, dim_out=dim_out, axis=2)
    squeezed: BlobReference = model.net.Squeeze(product, product, dims=[0])
    return squeezed


def _attend_to_sum(
    model: ModelHelper,
    total: BlobReference,
    width: int,
    encoder_outputs_transposed: Blob,
    scope: str | None,
    encoder_lengths: Blob | None,
) -> Attended:
    total = model.net.Tanh(total, total)
    name = joined_name(scope, "attention_logits")
    weight = model.create_param(name + "_w", [1, width], Initializer("XavierFill"), ParameterTags.WEIGHT)
    # A bias moves all logits alike, which changes nothing: it stays 0 and is not trained.
    tags = [ParameterTags.BIAS, ParameterTags.COMPUTED_PARAM]
    bias = model.create_param(name + "_b", [1], Initializer("ConstantFill"), tags)
    logits = model.net.FC([total, weight, bias], name, axis=2)
    turned = brew.transpose(model, logits, f"{name}_transposed", axes=[1, 0, 2])
    weights = _weights(model, turned, scope, encoder_lengths)
    context = _context(model, encoder_outputs_transposed, width, weights, scope)
    return context, weights, [total]


def _weights(
    model: ModelHelper, logits: BlobReference, scope: str | None, encoder_lengths: Blob | None
) -> BlobReference:
    if encoder_lengths is not None:
        logits = model.net.SequenceMask([logits, encoder_lengths], "masked_attention_logits", mode="sequence")
    weights: BlobReference = model.net.Softmax(logits, joined_name(scope, "attention_weights_3d"), axis=1)
    return weights


def _context(model: ModelHelper, outputs: Blob, width: int, weights: BlobReference, scope: str | None) -> BlobReference:
    context = model.net.BatchMatMul([outputs, weights], joined_name(scope, "attention_weighted_encoder_context"))
    shape = joined_name(scope, "attention_weighted_encoder_context_old_shape")
    reshaped: BlobReference = model.net.Reshape(context, [context, shape], shape=[1, -1, width])[0]
    return reshaped
