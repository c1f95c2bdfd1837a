"""Options of the plan compiler: engines, lanes, threads, optimizations."""

from __future__ import annotations

import os
from dataclasses import dataclass

from netbuilder.proto.cores import core_count
from netbuilder.runtime.plan.optimizations import check_optimization

__all__ = ["PlanOptions", "default_threads"]


def default_threads() -> int:
    """Return the default number of threads: OMP_NUM_THREADS, or the number of cores that this process may use."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > 0:
        return int(text)
    return core_count()


@dataclass(frozen=True)
class PlanOptions:
    """Options of the plan compiler.

    Args:
        engines: names of the library engines that may be used; None: all that are available, (): NumPy alone.
        lanes: number of compute lanes, to which devices are assigned.
        exchange_lane: whether one more lane runs the operators that exchange values between devices.
        threads: number of threads of all compute lanes together.
        without: names of the optimizations that are off, see ``runtime.plan.optimizations``.
        precision: how activations may be stored (see ``ops.core.precision``).
        constants: blobs that do not change from run to run: they are converted to other layouts once.
        memory_budget: bytes that a plan may need, or a fraction of what it would need (see ``runtime.plan.recompute``);
            None: as many as it needs.
        largest_plan: with such a fraction, the most bytes that an earlier plan of the net would have needed.
        allow_tf32: whether products of float32 values on GPUs may use TF32, which rounds the factors to 10 bits.

    Raises:
        NetError: ``without`` names an optimization that does not exist.
    """

    engines: tuple[str, ...] | None = None
    lanes: int = 1
    exchange_lane: bool = False
    threads: int = 1
    without: frozenset[str] = frozenset()
    precision: str = "float32"
    constants: frozenset[str] = frozenset()
    memory_budget: int | float | None = None
    largest_plan: int = 0
    allow_tf32: bool = False

    def __post_init__(self) -> None:
        for name in self.without:
            check_optimization(name, "PlanOptions")

    @property
    def lane_threads(self) -> int:
        """Number of threads of a compute lane."""
        return max(1, self.threads // self.lanes)

    @property
    def lane_count(self) -> int:
        """Number of lanes of all roles; the exchange lane is the last one."""
        return self.lanes + self.exchange_lane

    def threads_of(self, lane: int) -> int:
        """Return how many threads a lane has; the exchange lane waits most of the time and has one."""
        return self.lane_threads if lane < self.lanes else 1

    def enabled(self, optimization: str) -> bool:
        """Whether an optimization is on, by its name in ``runtime.plan.optimizations``.

        Raises:
            NetError: there is no such optimization.
        """
        check_optimization(optimization, "PlanOptions.enabled")
        return optimization not in self.without

    def uses_engine(self, engine: str) -> bool:
        """Whether kernels of an engine may be used; "" stands for NumPy and CuPy, which always may."""
        return engine == "" or self.engines is None or engine in self.engines
