"""When the trainer writes checkpoints, and from which one it resumes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from netbuilder.exchange import Checkpoint, CheckpointFolder, read_checkpoint
from netbuilder.proto import NetError
from netbuilder.tools.training.checks import AUTO
from netbuilder.tools.training.settings import Options

__all__ = ["Saving", "find_checkpoint"]


class Trained(Protocol):
    """What a run offers for checkpoints."""

    steps: int  #: in an epoch
    step: int  #: done in the current epoch

    @property
    def steps_done(self) -> int:
        """Steps of all epochs."""

    def checkpoint(self, metric: float | None = None) -> Checkpoint: ...


class Saving:
    """Writes the checkpoints of a run.

    Args:
        options: of the run.
        run: its state.

    Raises:
        NetError: the folder holds checkpoints of another run.
        OSError: it cannot be made.
    """

    def __init__(self, options: Options, run: Trained) -> None:
        self._run = run
        self._options = options
        self._folder = CheckpointFolder(options.checkpoint, options.keep) if options.checkpoint else None
        self.last: Path | None = None
        self.complete = True  # whether the last checkpoint that was due has been written
        self._last_step = -1
        if self._folder is not None:
            self._folder.require_none_later(run.steps_done)

    def after_step(self) -> None:
        """Write a checkpoint if one is due after so many steps."""
        every, run = self._options.every_steps, self._run
        ends_epoch = run.step == run.steps and self._due(
            run.steps_done // run.steps
        )  # after_epoch writes it, with the accuracy
        if every and not ends_epoch and run.steps_done % every == 0:
            self._try()

    def after_epoch(self, number: int, accuracy: float, *, last: bool = False) -> None:
        """Write a checkpoint if one is due after so many epochs, or if this is the ``last`` epoch."""
        if last or self._due(number):
            self._try(accuracy)

    def _due(self, epoch: int) -> bool:
        every = self._options.every_epochs
        return epoch == self._options.epochs or every is not None and epoch % every == 0

    def now(self, metric: float | None = None) -> Path | None:
        """Write a checkpoint, unless there is one of this step; return its file, None if the run keeps none.

        Raises:
            OSError: it cannot be written.
        """
        if self._folder is not None and self._run.steps_done != self._last_step:
            self.last = self._folder.write(self._run.checkpoint(metric))
            self._last_step = self._run.steps_done
        return self.last

    def _try(self, metric: float | None = None) -> None:
        try:
            self.now(metric)
            self.complete = True
        except OSError as error:
            self.complete = False
            kept = f"the last checkpoint is {self.last}" if self.last else "there is no checkpoint yet"
            print(
                f"netbuilder-train: a checkpoint could not be written: {error}; training continues, and {kept}",
                file=sys.stderr,
                flush=True,
            )


def find_checkpoint(options: Options) -> tuple[str, Checkpoint] | None:
    """Return the checkpoint from which a run resumes, and its file; None: it starts from the beginning.

    Raises:
        NetError: there is none where one was named.
        FileNotFoundError, ParseError: it cannot be read.
    """
    if options.resume is None:
        return None
    place = Path(str(options.checkpoint) if options.resume == AUTO else options.resume)
    if options.resume != AUTO and not place.exists():
        raise NetError(
            f"--resume: there is no checkpoint {str(place)!r}; name a file of --checkpoint FOLDER, the folder itself "
            "for its newest, or auto"
        )
    if not place.is_dir() and options.resume != AUTO:
        return str(place), read_checkpoint(place)
    found = CheckpointFolder(place).latest(set_aside=options.resume == AUTO) if place.is_dir() else None
    if found is None and options.resume != AUTO:
        raise NetError(f"--resume: the folder {str(place)!r} holds no checkpoint")
    return (str(found[0]), found[1]) if found is not None else None
