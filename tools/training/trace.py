"""A trace of a few steps of all processes, on one clock, for Perfetto."""

from __future__ import annotations

import functools
import socket
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netbuilder.distributed import ProcessGroup
from netbuilder.runtime.profile.profiling import profile_of
from netbuilder.runtime.profile.timing import Recorder, clock
from netbuilder.runtime.profile.trace import trace_events
from netbuilder.tools.results import write_json
from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.step_timing import run_recorded

if TYPE_CHECKING:
    from netbuilder.tools.training.run import Run
    from netbuilder.tools.training.trained_model import TrainedModel

__all__ = ["Trace"]

_FIRST, _STEPS = 3, 3  # two steps warm up, and one makes the timed plans
_MEETINGS = 9  # from which the clocks' differences are known
_TRACKS = 1000  # of a net, at most


class Trace(Callback):
    """Records every call of three steps, the fourth to the sixth of the run, and writes those of all processes.

    Args:
        file: is written by rank 0.
    """

    name = "trace"

    def __init__(self, file: str) -> None:
        self._file = file
        self._recorders: list[Recorder] | None = None
        self._start = 0
        self._steps = 0  # of this run

    def runs_batch(self, run: Run) -> Callable[[], object] | None:
        if not _FIRST - 1 <= self._steps < _FIRST + _STEPS:
            return None
        if self._recorders is None:
            self._recorders = [Recorder(net) for net in run.model.nets]
            self._start = common_moment(run.group)
        return functools.partial(self._run, run.model, self._recorders)

    def _run(self, model: TrainedModel, recorders: list[Recorder]) -> None:
        for _ in run_recorded(model, recorders, keep=self._steps >= _FIRST):
            pass

    def after_step(self, run: Run) -> None:
        self._steps += 1
        if self._steps == _FIRST + _STEPS:
            self._write(run)

    def after_training(self, run: Run) -> None:
        if _FIRST < self._steps < _FIRST + _STEPS:
            self._write(run)
        elif self._steps <= _FIRST and run.group.is_first:
            print(f"--trace: the run had only {self._steps} steps, and the first {_FIRST} are not traced", flush=True)

    def _write(self, run: Run) -> None:
        group, events = run.group, list[dict[str, Any]]()
        host = f"rank {group.rank} on {socket.gethostname()}"
        for place, (net, recorder) in enumerate(zip(run.model.nets, self._recorders or ())):
            if recorder.runs:
                found, tracks = profile_of(net, recorder), place * _TRACKS
                events += trace_events(found, self._start, host, process=group.rank + 1, first_track=tracks)
        self._recorders = None
        everywhere = [event for of_rank in group.gather(events) for event in of_rank]
        if group.is_first:
            write_json(self._file, {"traceEvents": everywhere, "displayTimeUnit": "ms"}, indent=None, announced=True)


def common_moment(group: ProcessGroup) -> int:
    """Return one moment in nanoseconds of this process's clock: the same for all processes, which call it together.

    Clocks of hosts differ, but processes leave a barrier at the same time, up to the time of a message; the median of
    several barriers counts.
    """
    ends = []
    for _ in range(_MEETINGS):
        group.wait()
        ends.append(clock())
    first = group.broadcast(ends)
    return round(statistics.median(own - there for own, there in zip(ends, first))) + first[-1]
