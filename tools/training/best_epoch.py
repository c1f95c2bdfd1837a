"""The epoch of a run with the greatest accuracy on held-out samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["BestEpoch"]


class BestEpoch:
    """The best epoch so far.

    Attributes:
        number: from 1; 0: there is none, since no epoch has ended, or none had an accuracy.
        accuracy: on held-out samples.
        exported: the folder that its predictor was written to; None: it was not.
    """

    def __init__(self) -> None:
        self.number, self.accuracy = 0, -math.inf
        self.exported: str | None = None

    def update(self, number: int, accuracy: float) -> bool:
        """Return whether this epoch, which has just ended, is better than all before; NaN never is."""
        if not accuracy > self.accuracy:
            return False
        self.number, self.accuracy, self.exported = number, accuracy, None
        return True

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"number": self.number, "accuracy": self.accuracy, "exported": self.exported} if self.number else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that ``state`` returned."""
        if state:
            self.number, self.accuracy, self.exported = state["number"], state["accuracy"], state["exported"]
