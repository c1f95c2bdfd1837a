"""Sequence-to-sequence nets: vocabularies, encoders, decoders with attention, and beam search."""

from netbuilder.model.seq2seq.backtrace import best_sequence
from netbuilder.model.seq2seq.batches import Batch, gen_batches, prepare_batch
from netbuilder.model.seq2seq.beam_net import BeamSearchForwardOnly
from netbuilder.model.seq2seq.beam_search import Hypothesis, beam_search
from netbuilder.model.seq2seq.decoder import (
    LSTMWithAttentionDecoder,
    build_embedding_decoder,
    build_initial_rnn_decoder_states,
    output_projection,
)
from netbuilder.model.seq2seq.encoder import (
    Encoded,
    build_embedding_encoder,
    build_embeddings,
    get_layer_scope,
    rnn_bidirectional_layer,
    rnn_unidirectional_layer,
)
from netbuilder.model.seq2seq.ensemble import DecodingBlobs, Ensemble, Member
from netbuilder.model.seq2seq.model_helper import Seq2SeqModelHelper
from netbuilder.model.seq2seq.training import NormClippedUpdate, translation_loss
from netbuilder.model.seq2seq.vocabulary import gen_vocab, get_numberized_sentence

__all__ = [
    "Batch",
    "BeamSearchForwardOnly",
    "DecodingBlobs",
    "Encoded",
    "Ensemble",
    "Hypothesis",
    "LSTMWithAttentionDecoder",
    "Member",
    "NormClippedUpdate",
    "Seq2SeqModelHelper",
    "beam_search",
    "best_sequence",
    "build_embedding_decoder",
    "build_embedding_encoder",
    "build_embeddings",
    "build_initial_rnn_decoder_states",
    "gen_batches",
    "gen_vocab",
    "get_layer_scope",
    "get_numberized_sentence",
    "output_projection",
    "prepare_batch",
    "rnn_bidirectional_layer",
    "rnn_unidirectional_layer",
    "translation_loss",
]
