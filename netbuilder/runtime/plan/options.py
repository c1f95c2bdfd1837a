"""How a net is to be planned: engines, lanes, threads, optimizations."""

from __future__ import annotations

import os
from dataclasses import dataclass

from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS

__all__ = ["Setting", "default_threads"]


def default_threads() -> int:
    """Return how many threads a step may use: OMP_NUM_THREADS, or the cores this process may run on."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > 0:
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Setting:
    """How a net is to be planned.

    Args:
        engines: libraries that may serve; None: all that are present, (): NumPy alone.
        lanes: how many lanes compute; devices are assigned to them.
        exchange_lane: whether one more lane runs what exchanges values between devices.
        threads: threads over all lanes that compute.
        without: the optimizations that are switched off, see ``runtime.optimizations``.
        precision: how activations may be kept in memory (see ``ops.precision``).
        constants: blobs that do not change from run to run: reorders of them are made once.
    """

    engines: tuple[str, ...] | None = None
    lanes: int = 1
    exchange_lane: bool = False
    threads: int = 1
    without: frozenset[str] = frozenset()
    precision: str = "float32"
    constants: frozenset[str] = frozenset()

    @property
    def lane_threads(self) -> int:
        """Threads of a lane that computes."""
        return max(1, self.threads // self.lanes)

    @property
    def lane_count(self) -> int:
        """How many lanes there are of all roles; the lane for the exchange is the last one."""
        return self.lanes + self.exchange_lane

    def threads_of(self, lane: int) -> int:
        """Return how many threads a lane has: the lane for the exchange sleeps most of the time and has one."""
        return self.lane_threads if lane < self.lanes else 1

    def does(self, optimization: str) -> bool:
        """Whether plans may do that: a name of ``runtime.optimizations``."""
        assert optimization in OPTIMIZATIONS, f"no optimization is called {optimization!r}"
        return optimization not in self.without

    def allows(self, engine: str) -> bool:
        return engine == "" or self.engines is None or engine in self.engines
