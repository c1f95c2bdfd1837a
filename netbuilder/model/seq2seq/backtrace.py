"""The best sequence of a beam search, traced back from its end to its beginning."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from netbuilder.model.seq2seq.vocabulary import EOS_ID
from netbuilder.proto import ArgumentError

__all__ = ["Traced", "best_sequence"]

Array = np.ndarray[Any, Any]


class Traced(NamedTuple):
    """A sequence found by a beam search."""

    tokens: list[int]  #: its tokens, with the end token if it ended
    places: list[int]  #: its position in each row, from the second row on
    score: float


def best_sequence(tokens: Array, before: Array, scores: Array, end_token: int = EOS_ID) -> Traced:
    """Return the sequence with the highest score among those that ended and those of the last row.

    Args:
        tokens, before, scores: (steps + 1, beam size): the tokens of each row, the indices of the sequences of the
            previous row that they continue, and the scores (see ``BeamSearchForwardOnly.apply``); the first row is the
            initial one.
        end_token: the token that ends a sequence.

    Raises:
        ArgumentError: there are no steps, or the arrays have different shapes.

    >>> tokens, before = np.array([[1, 1], [5, 2], [2, 6]]), np.array([[0, 0], [0, 0], [0, 0]])
    >>> best_sequence(tokens, before, np.array([[0, 0], [-1, -3], [-2, -4]]))
    Traced(tokens=[5, 2], places=[0, 0], score=-2.0)
    """
    if tokens.ndim != 2 or not tokens.shape == before.shape == scores.shape or len(tokens) < 2:
        raise ArgumentError(
            "best_sequence: tokens, before and scores must have the same shape (steps + 1, beam size), with at least "
            f"one step, got {tokens.shape}, {before.shape} and {scores.shape}"
        )
    last = len(tokens) - 1
    row, place = last, 0  # of equal scores the best of the last row wins, then the shortest sequence
    for step in range(1, last + 1):
        for i in range(tokens.shape[1]):
            if (step == last or tokens[step, i] == end_token) and scores[step, i] > scores[row, place]:
                row, place = step, i
    score, places = float(scores[row, place]), []
    for step in range(row, 0, -1):
        places.append(place)
        place = int(before[step, place])
    places.reverse()
    return Traced([int(tokens[i, at]) for i, at in enumerate(places, 1)], places, score)
