"""The epoch of a run with the greatest accuracy on held-out samples, which can be exported at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.settings import Options

if TYPE_CHECKING:
    from netbuilder.tools.training.run import EpochResults, Run

__all__ = ["BestEpoch"]


class BestEpoch(Callback):
    """The best epoch so far.

    Args:
        options: of the run; they say whether its predictor is exported as soon as it has ended.

    Attributes:
        number: from 1; 0: there is none, since no epoch has ended, or none had an accuracy.
        accuracy: on held-out samples.
        last: that of the last epoch.
        exported: the folder that its predictor was written to; None: it was not.
    """

    name = "best_epoch"

    def __init__(self, options: Options) -> None:
        self._folder = options.export if options.export_epoch == "best" else None
        self.number, self.accuracy = 0, -math.inf
        self.last = -math.inf
        self.exported: str | None = None

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        self.last = results.held_out.top1
        if not self.last > self.accuracy:  # NaN never is
            return
        self.number, self.accuracy, self.exported = results.number, results.held_out.top1, None
        if self._folder is not None:
            if run.group.is_first:
                run.export(self._folder)
            self.exported = self._folder

    def state_dict(self) -> dict[str, Any]:
        if not self.number:
            return {}
        return {"number": self.number, "accuracy": self.accuracy, "last": self.last, "exported": self.exported}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.number, self.accuracy, self.exported = state["number"], state["accuracy"], state["exported"]
        self.last = state["last"]
