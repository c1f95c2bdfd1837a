"""A text as indices of characters, cut into consecutive pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.proto import ArgumentError

__all__ = ["Characters"]

Array = np.ndarray[Any, Any]


class Characters:
    """A text and its alphabet.

    Args:
        text: at least two characters.
        alphabet: the characters, in their order; None: those of the text, sorted.

    Raises:
        ArgumentError: the text is too short, or has a character that is not in the alphabet.
    """

    def __init__(self, text: str, alphabet: str | None = None) -> None:
        self.alphabet = "".join(sorted(set(text))) if alphabet is None else alphabet
        self._number = {character: i for i, character in enumerate(self.alphabet)}
        if len(text) < 2:
            raise ArgumentError(f"a text must have at least two characters, got {text!r}")
        self.numbers = self.encode(text)

    def encode(self, text: str) -> Array:
        """Return the indices of characters, int32.

        Raises:
            ArgumentError: a character is not in the alphabet.
        """
        strange = sorted(set(text).difference(self._number))
        if strange:
            raise ArgumentError(
                f"the characters {strange} do not occur in the training text, whose characters are {self.alphabet!r}"
            )
        return np.array([self._number[character] for character in text], np.int32)

    def decode(self, numbers: Any) -> str:
        """Return the text of indices."""
        return "".join(self.alphabet[int(number)] for number in numbers)

    def batches(self, batch: int, steps: int) -> Iterator[tuple[Array, Array]]:
        """Yield (characters, the ones after them), each (steps, batch) int32; columns continue in the next piece.

        Args:
            batch: number of columns, parts into which the text is cut.
            steps: characters of each column in a piece.

        Raises:
            ArgumentError: the text is too short for one piece.
        """
        length = (len(self.numbers) - 1) // batch
        if length < steps:
            raise ArgumentError(
                f"a batch of {batch} parts of {steps} characters needs a text of at least {batch * steps + 1} "
                f"characters, got {len(self.numbers)}; give a smaller batch or fewer steps"
            )
        current = self.numbers[: batch * length].reshape(batch, length).T
        following = self.numbers[1 : batch * length + 1].reshape(batch, length).T
        for start in range(0, length - steps + 1, steps):
            yield current[start : start + steps], following[start : start + steps]
