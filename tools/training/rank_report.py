"""How the processes of a run differ: which of them keeps the others waiting, and which waits for input."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from netbuilder.distributed.failure.recent import ExchangeSeconds
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.training.callbacks import Callback

if TYPE_CHECKING:
    from netbuilder.tools.training.run import EpochResults, Run

__all__ = ["RankReport", "RankTimes", "rank_table"]

_WORTH_NAMING = 0.02
"""Share of an epoch that others wait for a rank from which on it is called slow."""


@dataclass(frozen=True)
class RankTimes:
    """The training part of an epoch on one rank, in seconds.

    Args:
        rank: number of the process.
        host: where it runs.
        steps: number of steps.
        training: the whole of it.
        input: waiting for batches.
        waiting: in exchanges, until all ranks were there; a rank that is slower than the others waits least.
        moving: in exchanges, from then on; most of it passes while the rank computes.
    """

    rank: int
    host: str
    steps: int
    training: float
    input: float
    waiting: float
    moving: float

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"


class RankReport(Callback):
    """Gathers the times of each epoch on all ranks.

    Attributes:
        times: of the last epoch, by rank; empty with one process.
    """

    name = "rank_report"

    def __init__(self) -> None:
        self.times: list[RankTimes] = []
        self._exchanged = ExchangeSeconds()
        self._ended = ExchangeSeconds()  # at the last step: evaluation follows
        self._steps = 0
        self._began = self._until = 0.0

    def before_epoch(self, run: Run) -> None:
        self._exchanged = self._ended = run.group.exchange_seconds
        self._steps, self._began = 0, time.monotonic()

    def after_step(self, run: Run) -> None:
        self._steps += 1
        self._ended, self._until = run.group.exchange_seconds, time.monotonic()

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        if run.group.size == 1:
            return
        exchanged = self._ended - self._exchanged
        self.times = run.group.gather(
            RankTimes(
                run.group.rank, socket.gethostname(), self._steps, self._until - self._began, results.training.wait,
                exchanged.waiting, exchanged.moving,
            )
        )  # fmt: skip


def rank_table(times: Sequence[RankTimes]) -> str:
    """Return lines about the ranks of an epoch: least, median and most of each time, and who is slow.

    >>> print(rank_table([RankTimes(0, "a", 100, 10.0, 0.0, 2.0, 1.0), RankTimes(1, "b", 100, 10.0, 3.0, 0.0, 1.5)]))
    ranks, least / median / most: step 100 / 100 / 100 ms; waited for input 0 / 1.5 / 3 s (most: rank 1 on b); \
waited for other ranks 0 / 1 / 2 s (most: rank 0 on a); exchange 1 / 1.25 / 1.5 s (most: rank 1 on b)
    the slowest is rank 1 on b: the others waited for it for 2 s, 20% of the time; it waited for input for 3 s
    """
    step = _spread([1e3 * each.training / max(each.steps, 1) for each in times])
    columns: dict[str, Callable[[RankTimes], float]] = {
        "waited for input": lambda each: each.input,
        "waited for other ranks": lambda each: each.waiting,
        "exchange": lambda each: each.moving,
    }
    texts = [
        f"{title} {_spread([value(each) for each in times])} s (most: {max(times, key=value).name})"
        for title, value in columns.items()
    ]
    slowest = min(times, key=lambda each: each.waiting)
    lost = statistics.median(each.waiting for each in times if each is not slowest) - slowest.waiting
    share = lost / max(slowest.training, 1e-9)
    verdict = "no rank keeps the others waiting"
    if share >= _WORTH_NAMING:
        verdict = f"the slowest is {slowest.name}: the others waited for it for {lost:.3g} s, {share:.0%} of the time"
        if slowest.input >= lost / 2:
            verdict += f"; it waited for input for {slowest.input:.3g} s"
    return f"ranks, least / median / most: step {step} ms; {'; '.join(texts)}\n{verdict}"


def _spread(values: Sequence[float]) -> str:
    return " / ".join(f"{each:.3g}" for each in (min(values), statistics.median(values), max(values)))
