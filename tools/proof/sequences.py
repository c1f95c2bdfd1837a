"""Models that netbuilder-prove trains on sequences of different lengths: embeddings, recurrent cells, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.model.rnn import GRU, LSTM, AttentionType, LSTMWithAttention
from netbuilder.tools.proof.models import SAMPLES, ProofModel

__all__ = ["SEQUENCES"]

_WORDS, _WIDTH, _HIDDEN, _STEPS, _CLASSES = 11, 3, 4, 5, 4


def _lengths(rng: np.random.Generator, least: int = 0) -> Any:
    return rng.integers(least, _STEPS + 1, SAMPLES).astype(np.int32)


def _words(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "words": rng.integers(0, _WORDS, (_STEPS, SAMPLES)).astype(np.int32),
        "lengths": _lengths(rng),
        "label": rng.integers(0, _CLASSES, SAMPLES).astype(np.int32),
    }


def _pairs(rng: np.random.Generator) -> dict[str, Any]:
    """Draw source and target sequences, and the first context, which is 0."""
    words = rng.integers(0, _WORDS, (2, _STEPS - 1, SAMPLES)).astype(np.int32)
    return {
        "words": rng.integers(0, _WORDS, (_STEPS, SAMPLES)).astype(np.int32),
        "lengths": _lengths(rng, least=1),  # attention needs at least one word
        "target": words[0],
        "next": words[1],
        "context": np.zeros((1, SAMPLES, _HIDDEN), np.float32),
    }


def _table(model: ModelHelper) -> Any:
    return model.create_param("table", [_WORDS, _WIDTH], Initializer("UniformFill", min=-0.5, max=0.5))


def _embedded(model: ModelHelper, table: Any, words: str, steps: int = _STEPS) -> Any:
    """Embed words (steps, samples) as (steps, samples, width); repeated rows can be summed thanks to flat indices."""
    flat, _ = model.net.Reshape(words, [f"{words}_flat", f"{words}_shape"], shape=[-1])
    rows = model.net.Gather([table, flat], f"{words}_rows")
    shaped, _ = model.net.Reshape(rows, [f"{words}_in", f"{words}_rows_shape"], shape=[steps, -1, _WIDTH])
    return shaped


def _loss(model: ModelHelper, states: Any, width: int, classes: int, label: Any, loss_scale: float) -> list[Any]:
    flat, _ = model.net.Reshape(states, ["flat_states", "states_shape"], shape=[-1, width])
    _, loss = model.net.SoftmaxWithLoss([brew.fc(model, flat, "scores", width, classes), label], ["softmax", "loss"])
    return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]


def _classified(layer: Callable[..., Any]) -> Callable[[ModelHelper, float, Any], list[Any]]:
    """Return a builder of a model that classifies words by the last state of a recurrent layer."""

    def build(model: ModelHelper, loss_scale: float, outside: Any) -> list[Any]:
        rows = _embedded(model, _table(model), "words")
        _, last, *_ = layer(model, rows, "lengths", None, _WIDTH, _HIDDEN, "layer", outputs_with_grads=(1,))
        return _loss(model, last, _HIDDEN, _CLASSES, "label", loss_scale)

    return build


def _translated(model: ModelHelper, loss_scale: float, outside: Any) -> list[Any]:
    """Add an LSTM encoder and an LSTM decoder with attention; both use the same embedding table."""
    table = _table(model)
    read, hidden, _, cell = LSTM(
        model,
        _embedded(model, table, "words"),
        "lengths",
        None,
        _WIDTH,
        _HIDDEN,
        "encoder",
        outputs_with_grads=(0, 1, 3),
    )
    states = LSTMWithAttention(
        model,
        decoder_inputs=_embedded(model, table, "target", _STEPS - 1),
        decoder_input_lengths=None,
        initial_decoder_hidden_state=hidden,
        initial_decoder_cell_state=cell,
        initial_attention_weighted_encoder_context="context",
        encoder_output_dim=_HIDDEN,
        encoder_outputs=read,
        encoder_lengths="lengths",
        decoder_input_dim=_WIDTH,
        decoder_state_dim=_HIDDEN,
        scope="decoder",
        attention_type=AttentionType.Regular,
    )
    both, _ = model.net.Concat([states[0], states[4]], ["both", "both_split"], axis=2)
    label, _ = model.net.Reshape("next", ["next_flat", "next_shape"], shape=[-1])
    return _loss(model, both, 2 * _HIDDEN, _WORDS, label, loss_scale)


_AXES = {"words": 1, "target": 1, "next": 1, "context": 1}

SEQUENCES: dict[str, ProofModel] = {
    "LSTM": ProofModel(_classified(LSTM), _words, axes=_AXES, looks_up=True),
    "GRU": ProofModel(_classified(GRU), _words, axes=_AXES, looks_up=True),
    "attention": ProofModel(_translated, _pairs, axes=_AXES, looks_up=True),
}
"""Name -> model."""
