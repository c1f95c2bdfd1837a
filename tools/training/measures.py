"""Loss and accuracy of micro-batches, summed to those of steps and epochs over all processes."""

from __future__ import annotations

from collections import deque
from typing import Any

from netbuilder.distributed import ProcessGroup

__all__ = ["Measures"]


class Measures:
    """The sums of a run in training.

    Results of a micro-batch are read when the next one runs, and those of a step are then joined with the other
    processes' ones.

    Args:
        reader: of the net's loss and accuracy, see ``loss_reader``.
        group: the processes that train together.
        each: micro-batches of a step.

    Attributes:
        loss, accuracy: of the last step whose results were read; None: there is none.
    """

    def __init__(self, reader: Any, group: ProcessGroup, each: int) -> None:
        self._reader, self._group, self._each = reader, group, each
        self._counts: deque[int] = deque()  # samples of micro-batches whose results have not been read yet
        self._of_step = {"loss": 0.0, "accuracy": 0.0, "samples": 0}  # sums of a step whose micro-batches are read
        self._of_process = (0.0, 0.0, 0)  # loss, correct answers and samples of the last step that was read, here
        self._read = 0  # micro-batches
        self._epoch = self._ended = (0.0, 0.0, 0)  # sums of this epoch, and of the last one that was trained to its end
        self.loss: float | None = None
        self.accuracy: float | None = None

    @property
    def steps(self) -> int:
        """Number of steps whose results were read."""
        return self._read // self._each

    def ran(self, samples: int) -> None:
        """Note that a micro-batch of so many samples runs; add the results of the one before."""
        self._counts.append(samples)
        self._add(self._reader.read())

    def flush(self) -> dict[str, float] | None:
        """Wait for the last micro-batch; return the results of its step, see ``join``."""
        self._add(self._reader.last())
        return self.join(False)[1]

    def _add(self, measures: dict[str, float] | None) -> None:
        """Add the results of a micro-batch to the sums of its step, and note those of a step that is complete."""
        if measures is None:
            return
        count = self._counts.popleft()
        if count:
            for name in ("loss", "accuracy"):
                self._of_step[name] += measures[name] * count
        self._of_step["samples"] += count
        self._read += 1
        if self._read % self._each == 0:
            self._of_process = self._of_step["loss"], self._of_step["accuracy"], int(self._of_step["samples"])
            self._of_step = dict.fromkeys(self._of_step, 0)

    def join(self, stop: bool) -> tuple[bool, dict[str, float] | None]:
        """Add the results of the last step that was read, over all processes, to the sums of the epoch.

        Args:
            stop: whether this process wants to stop.

        Returns:
            Whether one of them does, and the results of the step; None: there are no new ones.
        """
        stopping, loss, right, seen = self._group.sum(stop, *self._of_process)
        self._of_process = (0.0, 0.0, 0)
        if not seen:
            return stopping > 0, None
        self.loss, self.accuracy = loss / seen, right / seen
        self._epoch = self._epoch[0] + loss, self._epoch[1] + right, self._epoch[2] + int(seen)
        return stopping > 0, {"loss": self.loss, "training_accuracy": self.accuracy, "samples": int(seen)}

    def end_epoch(self) -> tuple[float, float]:
        """Return mean loss and accuracy of an epoch that has been trained to its end; the next one begins."""
        loss, right, seen = self._ended = self._epoch
        self._epoch = (0.0, 0.0, 0)
        return loss / max(seen, 1), right / max(seen, 1)

    def reopen_epoch(self) -> None:
        """Go back to before ``end_epoch``."""
        self._epoch = self._ended

    def state(self) -> dict[str, Any]:
        """Return the sums of the epoch, for a checkpoint."""
        return dict(zip(("losses", "right", "seen"), self._epoch))

    def restore(self, state: Any) -> None:
        """Continue from the sums of a checkpoint; results of steps before that was loaded do not count."""
        self._reader.last()
        self._counts.clear()
        self._of_process = (0.0, 0.0, 0)
        self._epoch = state["losses"], state["right"], state["seen"]
