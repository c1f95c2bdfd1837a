"""A trace of a few steps of all processes, on one clock, for Perfetto."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
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
_MEETINGS = 9  # from which the difference of two clocks is known
_TRACKS = 1000  # of a net, at most

Meeting = tuple[int, int]
"""When a process came and left, in nanoseconds of its clock."""


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

    Processes of one system have one clock. That of another one is compared at several meetings: nobody leaves one
    before all have come, which bounds the difference of the clocks from both sides; the middle counts.
    """
    name, meetings = _clock_name(), list[Meeting]()
    for _ in range(_MEETINGS):
        came = clock()
        group.wait()
        meetings.append((came, clock()))
    first_name, first = group.broadcast((name, meetings))
    return first[-1][1] + (0 if name and name == first_name else clock_difference(meetings, first))


def clock_difference(own: Sequence[Meeting], others: Sequence[Meeting]) -> int:
    """Return by how many nanoseconds one's own clock is ahead of another one, from the same meetings by both."""
    least = max(came - left for (came, _), (_, left) in zip(own, others))
    most = min(left - came for (_, left), (came, _) in zip(own, others))
    return (least + most) // 2


def _clock_name() -> str:
    """Return what processes have in common that read the same clock; "" where the system has no name for it."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return started + os.readlink("/proc/self/ns/time")
    except OSError:
        return ""
