"""Beam search: the likeliest sequences that a step net writes, found by keeping the best few of each length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.proto import ArgumentError, ShapeError

__all__ = ["Hypothesis", "beam_search"]

Array = np.ndarray[Any, Any]
States = Mapping[str, Array]
Step = Callable[[Array, States, int], tuple[Array, States]]
"""``step(tokens, states, number) -> (log probabilities, states)``: tokens (beams,) int32, states (beams, ...) each,
log probabilities (beams, words)."""


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that a search found.

    Args:
        tokens: its words, without the first and the end word.
        score: the sum of the log probabilities of the words and, if it ended, of the end word.
        ended: whether the end word came before the greatest length.
    """

    tokens: tuple[int, ...]
    score: float
    ended: bool

    def normalized(self, penalty: float) -> float:
        """Return the score over the number of words to the power of ``penalty``."""
        return self.score / max(1, len(self.tokens) + self.ended) ** penalty


def beam_search(
    step: Step,
    states: States,
    *,
    beam_size: int,
    max_length: int,
    go_token: int = 1,
    end_token: int = 2,
    length_penalty: float = 0.0,
) -> list[Hypothesis]:
    """Return the best sequences found, the best first; at most ``beam_size``.

    Args:
        step: one step of the decoder.
        states: its first states, of one sample: each with shape (...), without an axis of beams.
        beam_size: sequences kept of each length.
        max_length: words of the longest sequence.
        go_token: the word that the first step gets.
        end_token: the word that ends a sequence.
        length_penalty: power of the length that scores are divided by to compare sequences; 0: not divided.

    Raises:
        ArgumentError: a size is below 1.
        ShapeError: the step gives another number of rows than it was given.

    >>> chances = np.log([[0.1, 0.1, 0.2, 0.6], [0.1, 0.1, 0.7, 0.1]])
    >>> def step(tokens, states, number):
    ...     return chances[[min(number, 1)] * len(tokens)], states
    >>> beam_search(step, {}, beam_size=2, max_length=3)[0].tokens
    (3,)
    """
    for what, value in (("beam_size", beam_size), ("max_length", max_length)):
        if value < 1:
            raise ArgumentError(f"beam_search: {what} must be 1 or more, got {value!r}")
    live = [Hypothesis((), 0.0, False)]
    current = {name: np.asarray(value)[None] for name, value in states.items()}
    done: list[Hypothesis] = []
    for number in range(max_length):
        last = np.array([h.tokens[-1] if h.tokens else go_token for h in live], np.int32)
        scores, after = step(last, current, number)
        if scores.shape[0] != len(live):
            raise ShapeError(f"beam_search: the step was given {len(live)} words and gave {scores.shape[0]} rows")
        total = np.asarray(scores, np.float64) + np.array([h.score for h in live])[:, None]
        kept, rows = _best(total, live, beam_size, end_token, done)
        live = kept
        current = {name: np.asarray(value)[rows] for name, value in after.items()}
        if not live or _cannot_get_better(live, done, beam_size, length_penalty):
            break
    found = sorted(done + live, key=lambda h: -h.normalized(length_penalty))
    return found[:beam_size]


def _best(
    total: Array, live: Sequence[Hypothesis], beam_size: int, end_token: int, done: list[Hypothesis]
) -> tuple[list[Hypothesis], list[int]]:
    """Return the best sequences that go on, with the rows they come from; those that end go to ``done``."""
    words = total.shape[1]
    flat = total.ravel()
    count = min(2 * beam_size, flat.size)
    order = np.argpartition(-flat, count - 1)[:count]
    order = order[np.lexsort((order, -flat[order]))]
    kept: list[Hypothesis] = []
    rows: list[int] = []
    for rank, place in enumerate(order):
        row, word = divmod(int(place), words)
        if word == end_token:
            if rank < beam_size:
                done.append(Hypothesis(live[row].tokens, float(flat[place]), True))
        elif len(kept) < beam_size:
            kept.append(Hypothesis((*live[row].tokens, word), float(flat[place]), False))
            rows.append(row)
    return kept, rows


def _cannot_get_better(live: Sequence[Hypothesis], done: Sequence[Hypothesis], beam_size: int, penalty: float) -> bool:
    """Whether enough sequences ended that are better than all that go on; scores only fall without a penalty."""
    if penalty or len(done) < beam_size:
        return False
    worst = sorted((h.score for h in done), reverse=True)[beam_size - 1]
    return worst >= max(h.score for h in live)
