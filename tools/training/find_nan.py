"""Looks at each value of each step of training, for ``--find-nan``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from netbuilder.runtime.execute.not_finite import NotFiniteError
from netbuilder.tools.training.callbacks import Callback

if TYPE_CHECKING:
    from netbuilder.tools.training.run import Run

__all__ = ["FindNan"]


class FindNan(Callback):
    """Ends the run at the first operator whose result is NaN or infinite, by FloatingPointError."""

    name = "find_nan"

    def runs_batch(self, run: Run) -> Callable[[], object]:
        return functools.partial(self._run, run)

    def _run(self, run: Run) -> None:
        try:
            run.model.run_finding_nan()
        except NotFiniteError as error:
            raise FloatingPointError(f"epoch {run.epochs_done + 1}, step {run.step + 1}: {error}") from error
