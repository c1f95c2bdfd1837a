"""Tasks for sequence-to-sequence models: reverse a string, add two numbers written as strings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from netbuilder.model.seq2seq.vocabulary import EOS_ID, GO_ID, PAD_ID
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["TASKS", "Batch", "Pairs"]

Array = np.ndarray[Any, Any]
_MOST = 18  # number of digits that always fits into a 64-bit integer
FIRST = 4  # smaller indices are PAD, GO, EOS and UNK


def _reversed(rng: Any, length: int) -> tuple[str, str]:
    digits = "".join(map(str, rng.integers(0, 10, rng.integers(1, length + 1))))
    return digits, digits[::-1]


def _sum(rng: Any, length: int) -> tuple[str, str]:
    a, b = (int(rng.integers(0, 10 ** int(rng.integers(1, length + 1)))) for _ in range(2))
    return f"{a}+{b}", str(a + b)


TASKS: dict[str, tuple[Callable[[Any, int], tuple[str, str]], Callable[[int], int], Callable[[int], int]]] = {
    "reverse": (_reversed, lambda length: length, lambda length: length),
    "add": (_sum, lambda length: 2 * length + 1, lambda length: length + 1),
}
"""Task -> functions of ``length``: draw a pair; largest number of characters of a question, and of an answer."""


@dataclass(frozen=True)
class Batch:
    """Questions and answers as indices, the axis of steps first.

    Args:
        source: (source steps, samples) int32, with its lengths (samples,) int32.
        target: input of the decoder, which begins with GO, (target steps, samples), with its lengths.
        label: expected output of the decoder, which ends with EOS, of the same shape.
        weight: 1 for labels, 0 for padding; float32, of the same shape.
    """

    source: Array
    source_lengths: Array
    target: Array
    target_lengths: Array
    label: Array
    weight: Array


class Pairs:
    """Questions and answers of a task, drawn at random.

    Args:
        task: one of ``TASKS``.
        length: largest number of digits of a number, 1 to 18.

    Raises:
        ArgumentError: the task is unknown, or the length out of bounds.
    """

    alphabet = "0123456789+"

    def __init__(self, task: str, length: int) -> None:
        if task not in TASKS:
            raise ArgumentError(f"the task must be one of {sorted(TASKS)}, got {task!r}")
        if not 1 <= length <= _MOST:
            raise ArgumentError(
                f"{task}: --length, the largest number of digits, must be in [1, {_MOST}], got {length}"
            )
        self._draw, source, target = TASKS[task]
        self.length = length
        self.source_steps, self.target_steps = source(length), target(length) + 1
        self.words = FIRST + len(self.alphabet)

    def draw(self, rng: Any, count: int) -> list[tuple[str, str]]:
        """Return ``count`` questions with their answers."""
        return [self._draw(rng, self.length) for _ in range(count)]

    def encode(self, text: str) -> list[int]:
        """Return the indices of a string's characters."""
        return [FIRST + self.alphabet.index(character) for character in text]

    def decode(self, numbers: Any) -> str:
        """Return the string of indices."""
        return "".join(self.alphabet[int(number) - FIRST] for number in numbers if number >= FIRST)

    def batch(self, pairs: list[tuple[str, str]]) -> Batch:
        """Return pairs as arrays."""
        sources = [self.encode(question) for question, _ in pairs]
        answers = [self.encode(answer) for _, answer in pairs]
        label = _padded([[*answer, EOS_ID] for answer in answers], self.target_steps)
        return Batch(
            _padded(sources, self.source_steps),
            _lengths(sources),
            _padded([[GO_ID, *answer] for answer in answers], self.target_steps),
            _lengths(answers) + np.int32(1),
            label,
            (label != PAD_ID).astype(np.float32),
        )

    def batches(self, size: int, count: int, seed: int) -> Iterator[Batch]:
        """Yield ``count`` batches of ``size`` pairs."""
        rng = np.random.default_rng(seed)
        for _ in range(count):
            yield self.batch(self.draw(rng, size))


def _padded(rows: list[list[int]], steps: int) -> Array:
    made = np.full((steps, len(rows)), PAD_ID, np.int32)
    for i, row in enumerate(rows):
        made[: len(row), i] = row
    return made


def _lengths(rows: list[list[int]]) -> Array:
    return np.array([len(row) for row in rows], np.int32)
