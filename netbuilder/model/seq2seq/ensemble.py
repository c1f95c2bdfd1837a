"""Ensembles of translators: one beam search over the mean of their log probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.scope import NameScope
from netbuilder.model.rnn.cell import as_reference
from netbuilder.model.seq2seq.beam_net import BeamSearchForwardOnly, LinkConfig, StateConfig
from netbuilder.model.seq2seq.decoder import (
    LSTMWithAttentionDecoder,
    build_initial_rnn_decoder_states,
    decoder_layers,
    output_projection,
)
from netbuilder.model.seq2seq.encoder import build_embedding_encoder, build_embeddings
from netbuilder.model.seq2seq.model_helper import Seq2SeqModelHelper
from netbuilder.model.seq2seq.training import TRANSLATOR_PARAMS, require_params
from netbuilder.model.seq2seq.vocabulary import EOS_ID
from netbuilder.proto import ArgumentError, TensorProto

__all__ = ["DecodingBlobs", "Ensemble", "Member"]

_UNLIMITED = 100_000  # number of steps of a sequence in the search


class Member(NamedTuple):
    """One translator: the scope of its parameters, and its structure (see ``translation_loss``)."""

    scope: str
    model_params: Mapping[str, Any]


class DecodingBlobs(NamedTuple):
    """The inputs of a decoding net, and the outputs of its search (see ``BeamSearchForwardOnly.apply``)."""

    encoder_inputs: BlobReference
    encoder_lengths: BlobReference
    max_output_seq_len: BlobReference
    output_token_beam_list: BlobReference
    output_prev_index_beam_list: BlobReference
    output_score_beam_list: BlobReference
    output_attention_weights_beam_list: BlobReference


class _Encoded(NamedTuple):
    outputs: BlobReference | None
    hidden: list[BlobReference | None]
    cells: list[BlobReference | None]
    units: list[int]


class _Made(NamedTuple):
    """One translator's part of a step."""

    log_probs: BlobReference
    attention: BlobReference
    states: list[StateConfig]


class Ensemble:
    """Builds the decoding net of several translators.

    Args:
        model: model that gets the net.
        members: the translators.
        beam_size: number of sequences kept in each step.
        source_vocab_size, target_vocab_size: number of words of the languages.

    Raises:
        ArgumentError: there are no members, a parameter is missing, an attention type is not supported, or
            ``beam_size`` is too large.
    """

    def __init__(
        self,
        model: Seq2SeqModelHelper,
        members: Sequence[Member],
        beam_size: int,
        source_vocab_size: int,
        target_vocab_size: int,
    ) -> None:
        if not members:
            raise ArgumentError("an ensemble must have at least one translator, got none")
        for member in members:
            require_params(member.model_params, *TRANSLATOR_PARAMS)
            if member.model_params["attention"] == "soft_coverage":
                raise ArgumentError(
                    f"{member.scope}: attention 'soft_coverage' is not supported in beam search; use another type"
                )
        if beam_size > target_vocab_size:
            raise ArgumentError(f"beam_size must be at most the number of words, {target_vocab_size}, got {beam_size}")
        self.model, self.members, self.beam_size = model, members, beam_size
        self.source_vocab_size, self.target_vocab_size = source_vocab_size, target_vocab_size
        self._search = BeamSearchForwardOnly(beam_size, model, EOS_ID)

    def build(self) -> DecodingBlobs:
        """Add the net."""
        net, init = self.model.net, self.model.param_init_net
        names = ("encoder_inputs", "encoder_lengths", "max_output_seq_len")
        self.inputs, self.lengths, length = net.AddExternalInput(*names)
        many: dict[str, Any] = {"shape": [self.beam_size], "value": _UNLIMITED, "dtype": TensorProto.INT32}
        self._fake_lengths = init.ConstantFill([], "fake_seq_lengths", **many)
        made = [self._decode(member, self._encode(member)) for member in self.members]
        attentions = self._mean(
            [m.attention for m in made], "num_decoders_with_attention_blob", "attention_weights_average"
        )
        log_probs = self._mean([m.log_probs for m in made], "num_decoders_blob", "output_log_probs_average")
        rewards = init.ConstantFill(
            [], "word_rewards", shape=[self.target_vocab_size], value=0.0, dtype=TensorProto.FLOAT
        )
        found = self._search.apply(
            self.inputs, length, log_probs, attentions, [state for m in made for state in m.states], [], rewards
        )
        words, before, scores, attention = found
        assert attention is not None
        return DecodingBlobs(self.inputs, self.lengths, length, words, before, scores, attention)

    def _mean(self, blobs: Sequence[BlobReference], share: str, name: str) -> BlobReference:
        weight = self.model.param_init_net.ConstantFill([], share, value=1.0 / len(blobs), shape=[1])
        given = [blob for each in blobs for blob in (each, weight)]
        mean: BlobReference = self._search.get_step_model().net.WeightedSum(given, name)
        return mean

    def _encode(self, member: Member) -> _Encoded:
        """Add the encoder; its results are repeated for each sequence of the beam."""
        params, attends = member.model_params, member.model_params["attention"] != "none"
        with NameScope(member.scope):
            table = build_embeddings(
                self.model, self.source_vocab_size, params["encoder_embedding_size"], "encoder_embeddings", False
            )
        encoded = build_embedding_encoder(
            self.model,
            params["encoder_type"],
            len(params["decoder_layer_configs"]),
            self.inputs,
            self.lengths,
            self.source_vocab_size,
            table,
            params["encoder_embedding_size"],
            attends,
            forward_only=True,
            scope=member.scope,
        )
        with NameScope(member.scope):
            outputs = self._tiled(encoded.outputs, "encoder_outputs_tiled") if attends else None
            hidden, cells = (
                [self._tiled(state, f"final_encoder_{kind}_tiled_{i}") for i, state in enumerate(states)]
                for kind, states in (("hidden", encoded.final_hidden_states), ("cell", encoded.final_cell_states))
            )
        return _Encoded(outputs, hidden, cells, encoded.units_per_layer)

    def _tiled(self, blob: BlobReference | None, name: str) -> BlobReference | None:
        if blob is None:
            return None
        tiled: BlobReference = self.model.net.Tile(blob, name, tiles=self.beam_size, axis=1)
        return tiled

    def _decode(self, member: Member, encoded: _Encoded) -> _Made:
        """Add one translator's part of a step."""
        params, step = member.model_params, self._search.get_step_model()
        layers = params["decoder_layer_configs"]
        with NameScope(member.scope):
            table = build_embeddings(
                self.model, self.target_vocab_size, params["decoder_embedding_size"], "decoder_embeddings", False
            )
            words = step.net.Gather([table, self._search.get_previous_tokens()], "embedded_tokens_t_prev")
        cells, residual = decoder_layers(layers, params["decoder_embedding_size"], True)
        decoder = LSTMWithAttentionDecoder(
            encoded.outputs,
            encoded.units[-1],
            None,
            self.target_vocab_size,
            params["attention"],
            params["decoder_embedding_size"],
            layers[-1]["num_units"],
            cells,
            residual_output_layers=residual,
            name=member.scope,
        )
        first = self._first_states(member, encoded, decoder)
        before = self._states_before(member, decoder)
        outputs, after = decoder.apply(step, words, self._fake_lengths, before, self._search.get_timestep())
        with NameScope(member.scope):
            log_probs = self._log_probs(outputs, decoder.get_output_dim(), params["decoder_softmax_size"])
            attention = decoder.get_attention_weights()
            if attention is None:
                attention = self._no_attention()
        states = [
            StateConfig(initial, LinkConfig(old, 0, 1), LinkConfig(new, 1, 1))
            for initial, old, new in zip(first, before, after)
        ]
        return _Made(log_probs, attention, states)

    def _first_states(
        self, member: Member, encoded: _Encoded, decoder: LSTMWithAttentionDecoder
    ) -> list[BlobReference]:
        widths = [layer["num_units"] for layer in member.model_params["decoder_layer_configs"]]
        with NameScope(member.scope):
            return build_initial_rnn_decoder_states(
                self.model, encoded.units, widths, encoded.hidden, encoded.cells, decoder.use_attention
            )

    def _states_before(self, member: Member, decoder: LSTMWithAttentionDecoder) -> list[BlobReference]:
        net = self._search.get_step_model().net
        with NameScope(member.scope):
            return [net.AddExternalInput(as_reference(f"{name}_prev")) for name in decoder.get_state_names()]

    def _log_probs(self, outputs: BlobReference, width: int, softmax_size: int | None) -> BlobReference:
        step = self._search.get_step_model()
        names = ["decoder_outputs_flattened", "decoder_outputs_and_contexts_combination_old_shape"]
        flat, _ = step.net.Reshape(outputs, names, shape=[-1, width])
        logits = output_projection(step, flat, width, self.target_vocab_size, softmax_size)
        log_probs: BlobReference = step.net.Log(step.net.Softmax(logits, "output_probs"), "output_log_probs")
        return log_probs

    def _no_attention(self) -> BlobReference:
        """Add zero attention weights, (sequences, steps), or (sequences, steps, 1) if other members have attention."""
        net = self._search.get_step_model().net
        zeros = net.ConstantFill(self.inputs, "zero_attention_weights_tmp_1", value=0.0)
        transposed = net.Transpose(zeros, "zero_attention_weights_tmp_2")
        tiled: BlobReference = net.Tile(transposed, "zero_attention_weights_tmp", tiles=self.beam_size, axis=0)
        if any(member.model_params["attention"] != "none" for member in self.members):
            tiled = net.ExpandDims(tiled, "zero_attention_weights", dims=[2])
        return tiled
