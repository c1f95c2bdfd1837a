"""Time of training by phase: a few steps of each epoch are timed call by call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from netbuilder.parallel.blocks import count_iterations
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.values import StepKind
from netbuilder.runtime.profile.call import runs_again, share_again
from netbuilder.runtime.profile.timing import Recorder
from netbuilder.tools.training.callbacks import Callback

if TYPE_CHECKING:
    from netbuilder.tools.training.run import Run
    from netbuilder.tools.training.trained_model import TrainedModel

__all__ = ["PHASES", "Boundaries", "StepTiming", "phase_table", "run_recorded"]

PHASES = ("forward", "backward", "exchange", "update")


@dataclass
class Boundaries:
    """Ends of the phases of a training net, as indices of operators; set while it is built."""

    forward: int = 0
    backward: int = 0
    exchange: int = 0

    def phase(self, index: int) -> str:
        """Return the phase of an operator."""
        ends = (self.forward, self.backward, self.exchange)
        return next((name for name, end in zip(PHASES, ends) if index < end), PHASES[-1])


class StepTiming(Callback):
    """Times three steps of each epoch call by call; the fastest counts, since the machine may be shared.

    Attributes:
        shares: phase -> share of the time of that step; their sum is 1.
        again: the time to compute values again, to save memory, as a fraction of that of all else, in the same step.
    """

    name = "step_timing"

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}
        self.again = 0.0
        self._least = 0.0
        self._steps: frozenset[int] = frozenset()
        self._place = 0  # number of micro-batches of the epoch

    def before_epoch(self, run: Run) -> None:
        # Steps with a whole batch, unless there is none: a last batch of fewer samples would always be the fastest.
        whole = max(run.whole_batches, 1)
        self._steps = frozenset({min(2, whole - 1), whole // 3, whole * 2 // 3})
        self._least, self._place = 0.0, 0

    def runs_batch(self, run: Run) -> Callable[[], object] | None:
        self._place += 1
        if run.step in self._steps and self._place % run.options.accumulate_steps == 0:
            return functools.partial(self.run, run.model)
        return None

    def run(self, model: TrainedModel) -> None:
        """Run a micro-batch, and the update if it is due, like ``RunNet``, with every call timed."""
        each = model.record.accumulate_steps
        seconds = dict.fromkeys(PHASES, 0.0)
        first, times = 0, []
        for number, recorder in enumerate(run_recorded(model, [Recorder(net) for net in model.nets])):
            once = number > 0 and number == len(model.nets) - 1
            times += _times(recorder, first, 1 if once else each, model.boundaries, seconds)
            first += len(model.nets[number].program)
        whole = sum(seconds.values())
        if whole > 0 and (whole < self._least or not self._least):
            self._least = whole
            self.shares = {name: value / whole for name, value in seconds.items()}
            self.again = share_again(times)


def run_recorded(model: TrainedModel, recorders: Sequence[Recorder], *, keep: bool = True) -> Iterator[Recorder]:
    """Run a micro-batch, and the update if it is due, like ``RunNet``; yield the recorder of each net that has run.

    Args:
        recorders: of the model's nets.
        keep: record the times, see ``Recorder.run``.
    """
    for number, recorder in enumerate(recorders):
        once = number > 0 and number == len(recorders) - 1
        if once and model.nets[0].clock.iteration % model.record.accumulate_steps:
            return
        recorder.run(keep)
        yield recorder
    count_iterations(model.train, 1, workspace=model.workspace)


def _times(
    recorder: Recorder, first: int, weight: int, boundaries: Boundaries, seconds: dict[str, float]
) -> list[tuple[bool, bool, float]]:
    """Add the time of each call to that of its phase; return the times for ``share_again``."""
    times = []
    calls = [call for plan in recorder.plans for call in plan.calls] + recorder.alone
    for call in calls:
        took = weight * sum(ended - began for _, began, ended in call.spans) / 1e9
        seconds[boundaries.phase(first + call.instruction.index)] += took
        if call.step is not None:
            times.append((call.step.kind is StepKind.RECOMPUTE, runs_again(call.step), took))
    return times


def phase_table(shares: dict[str, float], wait: float, seconds: float) -> str:
    """Return a line with the time of an epoch by phase.

    Args:
        shares: of the steps' time, by phase.
        wait: seconds that the loop waited for input.
        seconds: of the epoch.

    >>> phase_table({"forward": 0.5, "backward": 0.5}, 1.0, 5.0)
    'input 1.00 s (20%), forward 2.00 s (40%), backward 2.00 s (40%)'
    """
    busy = max(seconds - wait, 0.0)
    rows: Sequence[tuple[str, float]] = [("input", wait), *((name, share * busy) for name, share in shares.items())]
    return ", ".join(f"{name} {value:.2f} s ({value / max(seconds, 1e-9):.0%})" for name, value in rows)
