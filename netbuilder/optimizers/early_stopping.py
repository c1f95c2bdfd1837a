"""Early stopping: an end of training when a measure has not improved for some evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.proto import ArgumentError

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Watches one measure of held-out data.

    Args:
        patience: evaluations without an improvement after which ``stops`` becomes true; 1 or more.
        least: by how much the measure has to be better than the best so far to count as an improvement.
        larger_is_better: as of an accuracy; False: as of a loss.

    Attributes:
        best: the best value so far; None before the first.
        best_at: the number of the evaluation that gave it, from 1; 0 before the first.
        seen: how many evaluations there were.

    Raises:
        ArgumentError: a number is out of range.

    >>> stopping = EarlyStopping(2)
    >>> [stopping.update(accuracy) for accuracy in (0.5, 0.7, 0.6, 0.7)]
    [False, False, False, True]
    """

    def __init__(self, patience: int, *, least: float = 0.0, larger_is_better: bool = True) -> None:
        if patience < 1:
            raise ArgumentError(f"early stopping: patience must be 1 evaluation or more, got {patience}")
        if not least >= 0:
            raise ArgumentError(f"early stopping: the least improvement must not be negative, got {least}")
        self._patience, self._least, self._sign = patience, least, 1 if larger_is_better else -1
        self.best: float | None = None
        self.best_at = self.seen = 0

    def update(self, value: float) -> bool:
        """Take the measure of one more evaluation, NaN if it has none; return whether training should end."""
        self.seen += 1
        if (
            self.best is None
            and value == value
            or self.best is not None
            and (self._sign * (value - self.best) > self._least)
        ):
            self.best, self.best_at = value, self.seen
        return self.stops

    @property
    def stops(self) -> bool:
        """Whether training should end."""
        return self.seen - self.best_at >= self._patience

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs, to be given to ``restore``."""
        return {"best": self.best, "best_at": self.best_at, "seen": self.seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that ``state`` returned."""
        self.best, self.best_at, self.seen = state["best"], state["best_at"], state["seen"]
