"""When open choices between kernels are measured: a little before the first run, the rest between later runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from netbuilder.data.forking import new_lock
from netbuilder.engines.open_choice import Lend, OpenChoice

__all__ = ["BEFORE_RUNS", "SHARE", "MeasuringBetweenRuns", "Spent", "measure_before_run"]

BEFORE_RUNS = 2.0
"""Seconds for which a process measures, in all, before first runs of its nets."""

SHARE = 0.05
"""The share of the time of a net's runs for which it measures between them."""


class _Planned(Protocol):
    """A net that can be planned again."""

    def forget_plans(self) -> None: ...


class Spent:
    """The time that this process has measured before first runs."""

    seconds = 0.0


def measure_before_run(choices: Sequence[OpenChoice], lend: Lend) -> bool:
    """Measure while the process has time left for that; return whether a plan would now be another one."""
    Spent.seconds += _measure(choices, lend, BEFORE_RUNS - Spent.seconds)
    return any(choice.differs for choice in choices)


def _measure(choices: Iterable[OpenChoice], lend: Lend, limit: float) -> float:
    """Measure, those that were begun and then those worth most; return the seconds, at most ``limit``."""
    start = time.perf_counter()
    measured = []
    for choice in sorted(choices, key=lambda choice: (not choice.started, -choice.worth)):
        while not choice.known and (left := limit - (time.perf_counter() - start)) >= choice.expected:
            choice.advance(lend, left)
            measured.append(choice)
    for choice in measured[-1:]:
        choice.keep()
    return time.perf_counter() - start


class MeasuringBetweenRuns:
    """Measures the open choices of a net's plans; when all are known, the net is planned again if one differs.

    It is told of each run. The plans are forgotten when a run begins, so that what the run before left can be fetched.
    """

    def __init__(self) -> None:
        self._choices: dict[str, OpenChoice] = {}
        self._lend: Lend | None = None
        self._ran = self._spent = self._started = 0.0
        self._lock = new_lock()

    def add(self, choices: Iterable[OpenChoice], lend: Lend) -> None:
        """Note the open choices of a new plan, and how to borrow the memory of its arena."""
        self._choices.update((choice.key, choice) for choice in choices)
        self._lend = lend

    def run_starts(self, net: _Planned) -> None:
        """Have the net planned again if all choices are known and one differs."""
        self._settle(net)
        self._started = time.perf_counter()

    def run_ends(self) -> None:
        """Measure for as long as the share of the net's time allows, unless another thread does."""
        if not self._choices or self._lend is None or not self._lock.acquire(False):
            return
        try:
            self._ran += time.perf_counter() - self._started
            self._spent += _measure(self._choices.values(), self._lend, SHARE * self._ran - self._spent)
        finally:
            self._lock.release()

    def measure_all(self, net: _Planned) -> bool:
        """Measure all that is open, however long that takes; return whether the net has to be planned again."""
        if self._lend is not None:
            _measure(self._choices.values(), self._lend, float("inf"))
        return self._settle(net)

    def _settle(self, net: _Planned) -> bool:
        if not self._choices or not all(choice.known for choice in self._choices.values()):
            return False
        differs = any(choice.differs for choice in self._choices.values())
        self._choices.clear()
        if differs:
            net.forget_plans()
        return differs
