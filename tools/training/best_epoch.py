"""The best epoch of a run, by accuracy on held-out samples and then by loss, which can be exported at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.settings import Options

if TYPE_CHECKING:
    from netbuilder.tools.training.run import EpochResults, Run

__all__ = ["BestEpoch"]


_STORED = ("number", "accuracy", "loss", "last", "exported")


class BestEpoch(Callback):
    """The best epoch so far: of those with the greatest accuracy, that with the least loss.

    Args:
        options: of the run; they say whether its predictor is exported as soon as it has ended.

    Attributes:
        number: from 1; 0: there is none, since no epoch has ended, or none had an accuracy.
        accuracy, loss: on held-out samples.
        last: that of the last epoch.
        exported: the folder that its predictor was written to; None: it was not.
    """

    name = "best_epoch"

    def __init__(self, options: Options) -> None:
        self._folder = options.export if options.export_epoch == "best" else None
        self.number, self.accuracy, self.loss = 0, -math.inf, math.inf
        self.last = -math.inf
        self.exported: str | None = None

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        self.last, loss = results.held_out.top1, results.held_out.loss
        if not (self.last > self.accuracy or self.last == self.accuracy and loss < self.loss):  # NaN never is
            return
        self.number, self.accuracy, self.loss, self.exported = results.number, self.last, loss, None
        if self._folder is not None:
            if run.group.is_first:
                run.export(self._folder)
            self.exported = self._folder

    def state_dict(self) -> dict[str, Any]:
        if not self.number:
            return {}
        return {name: getattr(self, name) for name in _STORED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update({name: state[name] for name in _STORED})
