"""When the trainer writes checkpoints, and from which one it resumes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from netbuilder.exchange import Checkpoint, CheckpointFolder, read_checkpoint
from netbuilder.parallel.distributed import ProcessGroup
from netbuilder.proto import NetError
from netbuilder.proto.os_errors import error_text
from netbuilder.tools.training.checks import AUTO
from netbuilder.tools.training.settings import Options

__all__ = ["Saving", "find_checkpoint"]


class Trained(Protocol):
    """The part of a run that checkpoints need."""

    group: ProcessGroup
    steps: int  #: in an epoch
    step: int  #: done in the current epoch

    @property
    def steps_done(self) -> int:
        """Number of steps of all epochs so far."""

    def checkpoint(self, metric: float | None = None) -> Checkpoint: ...


class Saving:
    """Writes the checkpoints of a run; of several processes, which all call the methods, rank 0 writes.

    Args:
        options: of the run.
        run: its state.

    Raises:
        NetError: the folder holds checkpoints of another run.
        OSError: the folder cannot be created.
    """

    def __init__(self, options: Options, run: Trained) -> None:
        self._run = run
        self._options = options
        self._folder = CheckpointFolder(options.checkpoint, options.keep) if options.checkpoint else None
        self.last = next(reversed(self._folder.paths()), None) if self._folder is not None else None
        self.complete = True  # whether the last checkpoint that was due has been written
        self._last_step = -1
        if self._folder is not None and run.group.is_first:
            self._folder.require_none_later(run.steps_done)

    def after_step(self) -> None:
        """Write a checkpoint if one is due after this step."""
        every, run = self._options.checkpoint_every_steps, self._run
        # At the end of an epoch, after_epoch writes the checkpoint, with the accuracy.
        ends_epoch = run.step == run.steps and self._due(run.steps_done // run.steps)
        if every and not ends_epoch and run.steps_done % every == 0:
            self.attempt()

    def after_epoch(self, number: int, accuracy: float, *, last: bool = False) -> None:
        """Write a checkpoint if one is due after this epoch, or if it is the ``last`` one."""
        if last or self._due(number):
            self.attempt(accuracy)

    def _due(self, epoch: int) -> bool:
        every = self._options.every_epochs
        return epoch == self._options.epochs or every is not None and epoch % every == 0

    def now(self, metric: float | None = None) -> Path | None:
        """Write a checkpoint, unless this step has one; return its file, or None if this process writes none.

        Raises:
            OSError: the file cannot be written.
        """
        if self._folder is not None and self._run.steps_done != self._last_step:
            checkpoint, group = self._run.checkpoint(metric), self._run.group
            problem: OSError | None = None
            try:
                self.last = self._folder.write(checkpoint) if group.is_first else None
            except OSError as error:
                problem = error
            if group.broadcast(problem is not None):
                raise problem or OSError("rank 0 could not write it")
            self._last_step = self._run.steps_done
        return self.last

    def attempt(self, metric: float | None = None, then: str = "training continues") -> Path | None:
        """Write a checkpoint, unless this step has one; say if it cannot be written, and what happens ``then``.

        Returns:
            the file of the last checkpoint; None: there is none, or this process writes none.
        """
        try:
            self.now(metric)
            self.complete = True
        except OSError as error:
            self.complete = False
            if self._run.group.is_first:
                kept = f"the last checkpoint is {self.last}" if self.last else "there is no checkpoint yet"
                print(
                    f"netbuilder-train: a checkpoint could not be written: {error_text(error)}; {then}, and {kept}",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
        return self.last


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
