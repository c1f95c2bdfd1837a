"""When the trainer writes checkpoints, and from which one it resumes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from netbuilder.exchange import Checkpoint, CheckpointFolder, read_checkpoint
from netbuilder.proto import NetError
from netbuilder.proto.os_errors import error_text
from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.option_checks import AUTO
from netbuilder.tools.training.settings import Options

if TYPE_CHECKING:
    from netbuilder.tools.training.run import EpochResults, Run

__all__ = ["Saving", "find_checkpoint"]


class Saving(Callback):
    """Writes the checkpoints of a run; of several processes rank 0 does.

    Args:
        options: of the run.

    Attributes:
        last: the file of the last checkpoint; None: there is none, or this process writes none.
        complete: whether the last checkpoint that was due has been written.

    """

    name = "saving"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._folder = CheckpointFolder(options.checkpoint, options.keep) if options.checkpoint else None
        self.last: Path | None = None
        self.complete = True
        self._last_step = -1

    def before_training(self, run: Run) -> None:
        """Check the folder.

        Raises:
            NetError: it holds checkpoints of another run.
        """
        if self._folder is not None:
            self.last = next(reversed(self._folder.paths()), None)
            if run.group.is_first:
                self._folder.require_none_later(run.steps_done)

    def after_step(self, run: Run) -> None:
        every = self._options.checkpoint_every_steps
        # At the end of an epoch, after_epoch writes the checkpoint, with the accuracy.
        ends_epoch = run.step == run.steps and self._due(run.steps_done // run.steps)
        if every and not ends_epoch and run.steps_done % every == 0:
            self._attempt(run)

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        if run.ends or self._due(results.number):
            self._attempt(run, results.held_out.top1)

    def after_training(self, run: Run) -> None:
        if run.stopped:
            self._attempt(run, then="training has stopped")

    def _due(self, epoch: int) -> bool:
        every = self._options.every_epochs
        return epoch == self._options.epochs or every is not None and epoch % every == 0

    def _write(self, run: Run, metric: float | None) -> None:
        """Write a checkpoint, unless this step has one.

        Raises:
            OSError: the file cannot be written.
        """
        if self._folder is None or run.steps_done == self._last_step:
            return
        checkpoint, group = run.checkpoint(metric), run.group
        problem: OSError | None = None
        try:
            written = self._folder.write(checkpoint) if group.is_first or checkpoint.is_divided else None
            self.last = written if group.is_first else None
        except OSError as error:
            problem = error
        if group.broadcast(problem is not None):
            raise problem or OSError("rank 0 could not write it")
        self._last_step = run.steps_done

    def _attempt(self, run: Run, metric: float | None = None, then: str = "training continues") -> None:
        """Write a checkpoint; say if it cannot be written, and what happens ``then``."""
        try:
            self._write(run, metric)
            self.complete = True
        except OSError as error:
            self.complete = False
            if run.group.is_first:
                kept = f"the last checkpoint is {self.last}" if self.last else "there is no checkpoint yet"
                print(
                    f"netbuilder-train: a checkpoint could not be written: {error_text(error)}; {then}, and {kept}",
                    file=sys.stderr, flush=True,
                )  # fmt: skip


def find_checkpoint(options: Options) -> tuple[str, Checkpoint] | None:
    """Return the checkpoint from which a run resumes, and its file; None: it starts from the beginning.

    Raises:
        NetError: the checkpoint that ``resume`` names does not exist.
        FileNotFoundError, ParseError: it cannot be read.
    """
    if options.resume is None:
        return None
    place = Path(str(options.checkpoint) if options.resume == AUTO else options.resume)
    if options.resume != AUTO and not place.exists():
        raise NetError(
            f"--resume: the checkpoint {str(place)!r} does not exist; give a file in --checkpoint FOLDER, the folder "
            "for its newest checkpoint, or auto"
        )
    if not place.is_dir() and options.resume != AUTO:
        return str(place), read_checkpoint(place)
    found = CheckpointFolder(place).latest(set_aside=options.resume == AUTO) if place.is_dir() else None
    if found is None and options.resume != AUTO:
        raise NetError(f"--resume: the folder {str(place)!r} holds no checkpoint")
    return (str(found[0]), found[1]) if found is not None else None
