"""Attention: weights of an encoder's outputs in each step of a decoder, and their weighted sum, the context."""

from __future__ import annotations

from netbuilder.graph.blob import BlobReference
from netbuilder.model import brew
from netbuilder.model.initializers import Initializer
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterTags
from netbuilder.model.rnn.cell import Blob, joined_name
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "AttentionType",
    "apply_dot_attention",
    "apply_recurrent_attention",
    "apply_regular_attention",
    "apply_soft_coverage_attention",
]

Attended = tuple[BlobReference, BlobReference, list[BlobReference]]
"""The context, (1, samples, width); the weights, (samples, encoder steps, 1); blobs that may be recomputed."""


class AttentionType:
    """How the weights are computed: see the functions of this module."""

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
    """Attend with the scores v . tanh(W encoder + U hidden).

    Args:
        encoder_output_dim: width of the encoder's outputs.
        encoder_outputs_transposed: (samples, width, encoder steps).
        weighted_encoder_outputs: W encoder, (encoder steps, samples, width).
        decoder_hidden_state_t: (1, samples, decoder width).
        decoder_hidden_state_dim: width of the decoder's hidden state.
        scope: prefix of the names of all blobs; None: no prefix.
        encoder_lengths: (samples,) int32: number of encoder steps of each sample; None: all.

    Source: Bahdanau, Cho and Bengio, "Neural machine translation by jointly learning to align and translate", 2014,
    arXiv:1409.0473.
    """
    attention = _Attention(model, encoder_output_dim, encoder_outputs_transposed, scope, encoder_lengths)
    hidden = attention.weighted(decoder_hidden_state_t, decoder_hidden_state_dim)
    total = model.net.Add([weighted_encoder_outputs, hidden], attention.name(_SUM), broadcast=1)
    return attention.attend(total)


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
    """Attend with the scores v . tanh(W encoder + U hidden + V context), the context being the previous step's.

    Args:
        attention_weighted_encoder_context_t_prev: (1, samples, encoder width); the others as for
            ``apply_regular_attention``.
    """
    attention = _Attention(model, encoder_output_dim, encoder_outputs_transposed, scope, encoder_lengths)
    context = attention.weighted(
        attention_weighted_encoder_context_t_prev, encoder_output_dim, "weighted_prev_attention_context"
    )
    hidden = attention.weighted(decoder_hidden_state_t, decoder_hidden_state_dim)
    name = attention.name(_SUM)
    both = model.net.Add([context, hidden], f"{name}_tmp")
    return attention.attend(model.net.Add([weighted_encoder_outputs, both], name, broadcast=1))


def apply_dot_attention(
    model: ModelHelper,
    encoder_output_dim: int,
    encoder_outputs_transposed: Blob,
    decoder_hidden_state_t: Blob,
    decoder_hidden_state_dim: int,
    scope: str | None,
    encoder_lengths: Blob | None = None,
) -> Attended:
    """Attend with the scores encoder . hidden; a hidden state of another width is projected first.

    Arguments as for ``apply_regular_attention``.

    Source: Luong, Pham and Manning, "Effective approaches to attention-based neural machine translation", 2015,
    arXiv:1508.04025.
    """
    attention = _Attention(model, encoder_output_dim, encoder_outputs_transposed, scope, encoder_lengths)
    hidden = decoder_hidden_state_t
    if decoder_hidden_state_dim != encoder_output_dim:
        hidden = attention.project(hidden, decoder_hidden_state_dim, _HIDDEN)
    net, name = model.net, attention.name("squeezed_weighted_decoder_hidden_state")
    column = net.ExpandDims(net.Squeeze(hidden, name, dims=[0]), name, dims=[2])
    logits = net.BatchMatMul([encoder_outputs_transposed, column], attention.name("attention_logits"), trans_a=1)
    weights = attention.softmax(logits)
    return attention.context(weights), weights, []


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
    """Attend with the scores v . tanh(W encoder + U hidden + c (C encoder)); c sums the weights of all previous steps.

    Args:
        coverage_t_prev: the coverage c, (1, samples, encoder steps).
        coverage_weights: C encoder, (encoder steps, samples, encoder width); the others as for
            ``apply_regular_attention``.

    Returns:
        Context, weights, blobs that may be recomputed, and the coverage with the new weights.

    Source: Tu et al., "Modeling coverage for neural machine translation", 2016, arXiv:1601.04811.
    """
    attention = _Attention(model, encoder_output_dim, encoder_outputs_transposed, scope, encoder_lengths)
    net = model.net
    hidden = attention.weighted(decoder_hidden_state_t, decoder_hidden_state_dim)
    name = attention.name(_SUM)
    both = net.Add([weighted_encoder_outputs, hidden], f"{name}_tmp", broadcast=1)
    flat = net.Squeeze(coverage_t_prev, attention.name("coverage_t_prev_2d"), dims=[0])
    transposed = net.Transpose(flat, attention.name("coverage_t_prev_transposed"))
    scaled = net.Mul([coverage_weights, transposed], attention.name("scaled_coverage_weights"), broadcast=1, axis=0)
    context, weights, recomputable = attention.attend(net.Add([both, scaled], name))
    rows = net.Squeeze(weights, attention.name("attention_weights_2d"), dims=[2])
    coverage = net.Add([coverage_t_prev, rows], attention.name("coverage_t"), broadcast=1)
    return context, weights, recomputable, coverage


_SUM = "decoder_hidden_encoder_outputs_sum"
_HIDDEN = "weighted_decoder_hidden_state"


@dataclass(frozen=True)
class _Attention:
    """The arguments that all kinds of attention share, and the operators built from them."""

    model: ModelHelper
    width: int
    outputs_transposed: Blob
    scope: str | None
    lengths: Blob | None

    def name(self, name: str) -> str:
        return joined_name(self.scope, name)

    def project(self, blob: Blob, dim_in: int, name: str) -> BlobReference:
        """Multiply a state by a matrix, to the width of the encoder."""
        return brew.fc(self.model, blob, self.name(name), dim_in=dim_in, dim_out=self.width, axis=2)

    def weighted(self, blob: Blob, dim_in: int, name: str = _HIDDEN) -> BlobReference:
        """Project a state; return it without its first axis."""
        product = self.project(blob, dim_in, name)
        squeezed: BlobReference = self.model.net.Squeeze(product, product, dims=[0])
        return squeezed

    def attend(self, total: BlobReference) -> Attended:
        """Compute the scores v . tanh(total), and from them weights and context."""
        total = self.model.net.Tanh(total, total)
        name = self.name("attention_logits")
        xavier = Initializer("XavierFill")
        weight = self.model.create_param(name + "_w", [1, self.width], xavier, ParameterTags.WEIGHT)
        # The softmax does not depend on a bias common to all logits, so the bias remains 0 and is not trained.
        tags = [ParameterTags.BIAS, ParameterTags.COMPUTED_PARAM]
        bias = self.model.create_param(name + "_b", [1], Initializer("ConstantFill"), tags)
        logits = self.model.net.FC([total, weight, bias], name, axis=2)
        weights = self.softmax(brew.transpose(self.model, logits, f"{name}_transposed", axes=[1, 0, 2]))
        return self.context(weights), weights, [total]

    def softmax(self, logits: BlobReference) -> BlobReference:
        """Return the weights; encoder steps beyond the lengths get weight 0."""
        net = self.model.net
        if self.lengths is not None:
            logits = net.SequenceMask([logits, self.lengths], "masked_attention_logits", mode="sequence")
        weights: BlobReference = net.Softmax(logits, self.name("attention_weights_3d"), axis=1)
        return weights

    def context(self, weights: BlobReference) -> BlobReference:
        """Return the weighted sum of the encoder's outputs, (1, samples, width)."""
        net, name = self.model.net, self.name("attention_weighted_encoder_context")
        context = net.BatchMatMul([self.outputs_transposed, weights], name)
        reshaped: BlobReference = net.Reshape(context, [context, f"{name}_old_shape"], shape=[1, -1, self.width])[0]
        return reshaped
