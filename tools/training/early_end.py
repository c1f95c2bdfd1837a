"""The end of a run whose results on held-out samples do not improve, for ``--patience``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from netbuilder.optimizers import EarlyStopping
from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.settings import Options

if TYPE_CHECKING:
    from netbuilder.tools.training.run import EpochResults, Run

__all__ = ["EarlyEnd"]


class EarlyEnd(Callback):
    """Ends training as ``EarlyStopping`` says, and prints why.

    Args:
        options: of the run, with a patience.
    """

    name = "early_end"

    def __init__(self, options: Options) -> None:
        assert options.patience is not None
        self._measure, self._patience = options.patience_measure, options.patience
        larger = options.patience_measure == "accuracy"
        self.stopping = EarlyStopping(options.patience, least=options.least_improvement, larger_is_better=larger)

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        self.stopping.update(results.held_out.top1 if self._measure == "accuracy" else results.held_out.loss)

    def ends(self, run: Run) -> bool:
        return self.stopping.stops

    def after_training(self, run: Run) -> None:
        early = self.stopping
        if not early.stops:
            return
        epoch = run.epochs_done - early.seen + early.best_at
        best = "none" if early.best is None else f"{early.best:.4g}, of epoch {epoch}"
        since = early.seen - early.best_at
        print(
            f"ended after epoch {run.epochs_done}: held-out {self._measure} has not improved for "
            f"{since} epoch{'s' if since != 1 else ''} (--patience {self._patience}); the best is {best}",
            flush=True,
        )

    def state_dict(self) -> dict[str, Any]:
        return self.stopping.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.stopping.restore(state)
