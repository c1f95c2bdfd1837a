"""Beam search in Python: the most likely sequences, found by keeping the best of each length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Hypothesis", "beam_search"]

Array = np.ndarray[Any, Any]
States = Mapping[str, Array]
Step = Callable[[Array, States, int], tuple[Array, States]]
"""``step(tokens, states, number) -> (log probabilities, states)``: tokens (beams,) int32, states (beams, ...) each,
log probabilities (beams, words)."""


@dataclass(frozen=True)
class Hypothesis:
    """A sequence found by a search.

    Args:
        tokens: its tokens, without go and end token.
        score: the sum of the log probabilities of the tokens and, if it ended, of the end token.
        ended: whether the end token came before the maximum length.
    """

    tokens: tuple[int, ...]
    score: float
    ended: bool

    def normalized(self, penalty: float) -> float:
        """Return the score divided by the length to the power of ``penalty``."""
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
    """Return the best sequences, in descending order of scores; at most ``beam_size``.

    Args:
        step: one step of the decoder.
        states: its initial states for one sample, without the axis of beams.
        beam_size: number of sequences kept of each length.
        max_length: maximum number of tokens of a sequence.
        go_token: the input token of the first step.
        end_token: the token that ends a sequence.
        length_penalty: scores are divided by the length to this power for comparisons; 0: not divided.

    Raises:
        ArgumentError: a size is not positive.
        ShapeError: the step returns a wrong number of rows.

    >>> chances = np.log([[0.1, 0.1, 0.2, 0.6], [0.1, 0.1, 0.7, 0.1]])
    >>> def step(tokens, states, number):
    ...     return chances[[min(number, 1)] * len(tokens)], states
    >>> beam_search(step, {}, beam_size=2, max_length=3)[0].tokens
    (3,)
    """
    for what, value in (("beam_size", beam_size), ("max_length", max_length)):
        if value < 1:
            raise ArgumentError(f"beam_search: {what} must be positive, got {value!r}")
    live = [Hypothesis((), 0.0, False)]
    current = {name: np.asarray(value)[None] for name, value in states.items()}
    done: list[Hypothesis] = []
    for number in range(max_length):
        last = np.array([h.tokens[-1] if h.tokens else go_token for h in live], np.int32)
        scores, after = step(last, current, number)
        if scores.shape[0] != len(live):
            raise ShapeError(
                f"beam_search: the step must return one row for each of {len(live)} tokens, got {scores.shape[0]} rows"
            )
        total = np.asarray(scores, np.float64) + np.array([h.score for h in live])[:, None]
        live, rows = _best(total, live, beam_size, end_token, done)
        current = {name: np.asarray(value)[rows] for name, value in after.items()}
        if not live or _is_finished(live, done, beam_size, length_penalty):
            break
    found = sorted(done + live, key=lambda h: -h.normalized(length_penalty))
    return found[:beam_size]


def _best(
    total: Array, live: Sequence[Hypothesis], beam_size: int, end_token: int, done: list[Hypothesis]
) -> tuple[list[Hypothesis], list[int]]:
    """Return the best sequences that have not ended, with their rows; those that end are appended to ``done``."""
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


def _is_finished(live: Sequence[Hypothesis], done: Sequence[Hypothesis], beam_size: int, penalty: float) -> bool:
    """Whether ``beam_size`` ended sequences are better than all others, whose scores can only fall without penalty."""
    if penalty or len(done) < beam_size:
        return False
    worst = sorted((h.score for h in done), reverse=True)[beam_size - 1]
    return worst >= max(h.score for h in live)
