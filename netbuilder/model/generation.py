"""Generation of sequences, one step of a net a token, with a cache of the keys and values of earlier tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.attention import KeyValueCache
from netbuilder.model.model_helper import ModelHelper
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.numbers import check_numbers, check_whole_numbers
from netbuilder.proto.suggestions import mismatch, suggests_arguments

__all__ = ["Generator"]

_TOKENS = "generated_tokens"

Array = np.ndarray[Any, np.dtype[Any]]


class Generator:
    """Continues sequences of tokens by a causal language model whose parameters are in a workspace.

    Args:
        workspace: has the parameters; of a data-parallel model, ``build`` opens the name scope of a replica.
        build: called as ``build(model, tokens, cache)`` with a model that initializes no parameters, the blob of the
            tokens, (N, T) int32, and a cache for ``brew.attention`` and ``brew.positions``; returns the blob of the
            scores, (N, T, number of tokens).
        length: the longest sequence, the prompt included.
        batch: number of sequences N.

    Raises:
        ArgumentError: ``workspace`` is none, ``build`` does not take three arguments, an attention of it does
            not use the cache, a number is not positive, or the model's tables of positions are shorter than ``length``.

    >>> from netbuilder.model import ModelHelper, brew
    >>> from netbuilder.runtime import Workspace
    >>> def build(model, tokens, cache=None):
    ...     x = brew.embedding(model, tokens, "tokens_of", 5, 8)
    ...     x = brew.transformer_block(model, brew.positions(model, x, "placed", 8, 6, cache=cache), "block", 8, 2,
    ...                                causal=True, cache=cache)
    ...     return brew.fc(model, x, "scores", 8, 5, axis=2)
    >>> model, workspace = ModelHelper("language"), Workspace()
    >>> _ = build(model, "tokens"), workspace.run_net_once(model.param_init_net)
    >>> Generator(workspace, build, length=6)([[1, 2]], 4).shape
    (1, 6)
    """

    def __init__(self, workspace: Any, build: Callable[..., Any], *, length: int, batch: int = 1) -> None:
        check_whole_numbers("Generator", 1, length=length, batch=batch)
        if not callable(getattr(workspace, "run_net", None)):
            raise ArgumentError(f"Generator: workspace must be a Workspace, with the parameters, got {workspace!r}")
        _check_takes_cache(build)
        self.workspace = workspace
        self.cache = KeyValueCache(batch, length)
        model = ModelHelper("generate", init_params=False)
        self.scores = build(model, BlobReference(_TOKENS), self.cache)
        self.net = model.net
        self._check_attention()
        self._check_tables()
        self._start()
        workspace.create_net(model.net)

    def _check_attention(self) -> None:
        """Raise ArgumentError if tokens attend to one another without the cache: they would not see earlier ones."""
        made = {_TOKENS}
        for op in self.net.Proto().op:
            if made.isdisjoint(op.input):
                continue
            made.update(op.output)
            if op.type == "Attention" and op.input[1] in made and str(self.cache.mask) not in op.input:
                raise ArgumentError(
                    f"Generator: the attention that makes {op.output[0]!r} does not use the cache, without which no "
                    "token sees those before it; let build pass cache=cache to brew.attention or brew.transformer_block"
                )

    def _check_tables(self) -> None:
        """Raise ArgumentError if a table of rotary embeddings has fewer positions than sequences may have."""
        for op in self.net.Proto().op:
            if op.type == "RotaryEmbedding" and str(self.cache.positions) in op.input[3:]:
                rows = self.workspace.spec(op.input[1]).shape[0]
                if rows < self.cache.length:
                    raise ArgumentError(
                        f"Generator: the rotary table {op.input[1]!r} has {rows} positions, fewer than "
                        f"length={self.cache.length}; give a length of at most {rows}, or train with longer tables"
                    )

    def _start(self) -> None:
        for blob, shape in self.cache.shapes.items():
            self.workspace.feed(blob, np.zeros(shape, np.float32))

    def _step(self, tokens: Array, first: int) -> Array:
        """Compute the scores after the last of some tokens, (N, T), of which the first has this position."""
        numbers = np.arange(first, first + tokens.shape[1], dtype=np.int32)
        feed = self.workspace.feed
        feed(_TOKENS, tokens.astype(np.int32))
        feed(str(self.cache.positions), numbers)
        feed(str(self.cache.mask), np.arange(self.cache.length) <= numbers[:, None])
        self.workspace.run_net(self.net.Name())
        scores: Array = self.workspace.fetch(str(self.scores))[:, -1].astype(np.float64)
        return scores

    @suggests_arguments
    def __call__(
        self, prompt: Any, steps: int, *, temperature: float = 0.0, top_k: int | None = None, seed: int = 0
    ) -> Array:
        """Return the prompt and ``steps`` tokens more of each sequence.

        Args:
            prompt: numbers of tokens, (N, T), T at least 1.
            temperature: 0: the token with the highest score; otherwise it is drawn from the softmax of the scores
                divided by it.
            top_k: draw among so many tokens with the highest scores; None: among all.
            seed: of the draws.

        Returns:
            (N, T + steps), int32.

        Raises:
            ShapeError: the prompt is of another shape, or longer than the cache together with the steps.
            ArgumentError: an argument is out of range; ``top_k`` is more than the number of tokens.
        """
        check_numbers("Generator", "at least 0", temperature=temperature)
        check_whole_numbers("Generator", 0, steps=steps, seed=seed)
        if top_k is not None:
            check_whole_numbers("Generator", 1, top_k=top_k)
        try:
            tokens = np.asarray(prompt)
        except ValueError:  # NumPy makes no array of rows that differ in length
            raise ShapeError(
                "Generator: the sequences of prompt must have the same length, (N, T); give one batch for each length"
            ) from None
        batch, length = self.cache.batch, self.cache.length
        if tokens.ndim != 2 or tokens.shape[0] != batch or not tokens.size or tokens.dtype.kind not in "iu":
            raise ShapeError(
                f"Generator: prompt must have whole numbers in a shape ({batch}, T), T at least 1, got {tokens.dtype} "
                f"in the shape {tokens.shape}"
            )
        if tokens.shape[1] + steps > length:
            raise ArgumentError(
                f"Generator: {tokens.shape[1]} tokens of the prompt and {steps} steps are more than length={length}"
            )
        rng = np.random.default_rng(seed)
        self._start()
        given, first = tokens, 0
        for _ in range(steps):
            scores = self._step(given, first)
            first = tokens.shape[1]
            given = _chosen(scores, temperature, top_k, rng)[:, None]
            tokens = np.concatenate([tokens, given], axis=1)
        return tokens.astype(np.int32)


def _check_takes_cache(build: Any) -> None:
    """Raise ArgumentError for what cannot be called with a model, tokens and a cache."""
    if not callable(build):
        raise ArgumentError(f"Generator: build must be a function, build(model, tokens, cache), got {build!r}")
    if why := mismatch(inspect.signature(build), [None] * 3, {}):
        raise ArgumentError(
            "Generator: build must take the model, the tokens and the cache, which it passes on to brew.attention and "
            f"brew.positions: {why}"
        )


def _chosen(scores: Array, temperature: float, top_k: int | None, rng: Any) -> Array:
    """Return a token for each row of scores."""
    if top_k is not None and top_k > scores.shape[1]:
        raise ArgumentError(f"Generator: top_k must be at most the number of tokens, {scores.shape[1]}, got {top_k}")
    if not temperature:
        best: Array = scores.argmax(axis=1)
        return best
    if top_k is not None and top_k < scores.shape[1]:
        least = np.partition(scores, -top_k, axis=1)[:, -top_k, None]
        scores = np.where(scores < least, -np.inf, scores)
    noise = rng.gumbel(size=scores.shape)  # the greatest of scores with such noise is a draw from their softmax
    drawn: Array = (scores / temperature + noise).argmax(axis=1)
    return drawn
