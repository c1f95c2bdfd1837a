"""Speed of a small net while other programs use all cores but one, compared with an idle machine."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence

from netbuilder.proto.cores import core_count
from netbuilder.tools.bench.processes import our_worker
from netbuilder.tools.bench.report import Line
from netbuilder.tools.bench.work import Task

__all__ = ["busy_rate"]

_LEAST = 0.5  # share of its idle rate that the net must keep


def busy_rate(task: Task, *, pairs: int) -> Line:
    """Train alternately on an idle machine, and with a busy loop on each other core.

    Args:
        task: the net, with its number of threads.
        pairs: number of measurements of each kind.
    """
    loops = max(1, core_count() - 1)
    with our_worker(task.work, warmup=task.warmup) as worker:
        idle: list[float] = []
        busy: list[float] = []
        for turn in range(pairs):
            for is_busy in (False, True) if turn % 2 == 0 else (True, False):
                with _loops(loops if is_busy else 0):
                    seconds = worker.run(task.steps)
                (busy if is_busy else idle).append(sum(seconds) / len(seconds))
    return _line(task, idle, busy, loops)


@contextlib.contextmanager
def _loops(count: int) -> Iterator[None]:
    """Keep this number of cores busy while the block runs."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _line(task: Task, idle: Sequence[float], busy: Sequence[float], loops: int) -> Line:
    """Return the result; it is good if the busy net keeps half of its idle rate."""
    work = task.work
    rates = [work.batch / statistics.median(seconds) for seconds in (idle, busy)]
    kept = rates[1] / rates[0]
    text = (
        f"{work.net}, batch {work.batch}, up to {work.threads} thread{'s' if work.threads != 1 else ''}, "
        f"{len(idle)} pairs: {rates[0]:,.0f} samples/s alone, {rates[1]:,.0f} with {loops} "
        f"busy loop{'s' if loops != 1 else ''}: {kept:.0%} of its rate"
    )
    if kept < _LEAST:
        text += f"; TOO SLOW: it should keep {_LEAST:.0%}"
    record = {
        "kind": "busy", "work": dataclasses.asdict(work), "loops": loops, "seconds": [list(idle), list(busy)],
        "kept": kept,
    }  # fmt: skip
    return Line(text, record, kept >= _LEAST)
