"""Early stopping: training ends when a metric has not improved for some evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from netbuilder.proto.numbers import check_flags, check_numbers, check_whole_numbers

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Monitors one metric of validation data.

    Args:
        patience: number of evaluations without an improvement after which ``stops`` becomes true; at least 1.
        least: minimum difference to the best value so far that counts as an improvement.
        larger_is_better: True for an accuracy, False for a loss.

    Attributes:
        best: the best value so far; None before the first.
        best_at: the number of its evaluation, counted from 1; 0 before the first.
        seen: number of evaluations so far.

    Raises:
        ArgumentError: a number is out of range.

    >>> stopping = EarlyStopping(2)
    >>> [stopping.update(accuracy) for accuracy in (0.5, 0.7, 0.6, 0.7)]
    [False, False, False, True]
    """

    def __init__(self, patience: int, *, least: float = 0.0, larger_is_better: bool = True) -> None:
        check_whole_numbers("early stopping", 1, patience=patience)
        check_numbers("early stopping", "at least 0", least=least)
        check_flags("early stopping", larger_is_better=larger_is_better)
        self._patience, self._least, self._sign = patience, least, 1 if larger_is_better else -1
        self.best: float | None = None
        self.best_at = self.seen = 0

    def update(self, value: float) -> bool:
        """Record the metric of another evaluation; return whether training should end.

        NaN, for an evaluation without a metric, and infinities are no improvement.
        """
        self.seen += 1
        if math.isfinite(value) and (self.best is None or self._sign * (value - self.best) > self._least):
            self.best, self.best_at = value, self.seen
        return self.stops

    @property
    def stops(self) -> bool:
        """Whether training should end."""
        return self.seen - self.best_at >= self._patience

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, see ``restore``."""
        return {"best": self.best, "best_at": self.best_at, "seen": self.seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that ``state`` returned."""
        self.best, self.best_at, self.seen = state["best"], state["best_at"], state["seen"]
