"""Measures a link by allreduces of values of many sizes, in every process of a world at the same time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.parallel.simulation.links import Link
from netbuilder.proto import ArgumentError

__all__ = ["SIZES", "fit_link", "sweep_allreduce", "sweep_rounds"]

Array = np.ndarray[Any, np.dtype[Any]]

SIZES = tuple(1 << bits for bits in range(10, 28))
"""Bytes of the values that are summed: 1 KiB to 128 MiB."""

_SMALL = 32 << 10  # bytes up to which an allreduce takes the time of its messages' latency, above all


def sweep_allreduce(
    world: Communicator,
    sizes: Sequence[int] = SIZES,
    *,
    repeats: int = 7,
    most_calls: int = 50,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of allreduces of float32 values: of each size the median over ``sweep_rounds``."""
    rounds = sweep_rounds(world, sizes, repeats=repeats, most_calls=most_calls, clock=clock)
    return [(same[0][0], statistics.median(seconds for _, seconds in same)) for same in zip(*rounds)]


def sweep_rounds(
    world: Communicator,
    sizes: Sequence[int],
    *,
    repeats: int,
    most_calls: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[tuple[int, float]]]:
    """Return, for each of ``repeats`` rounds over all sizes, (bytes, seconds) of allreduces of float32 values.

    Every process calls it, in the lane of collectives. Sums of a small value are repeated until they take long enough
    to be measured, up to ``most_calls`` times.

    Raises:
        ArgumentError: a size is less than that of one value, or the world has one process.
    """
    if world.size < 2:
        raise ArgumentError("a link is measured between two processes or more; run it by mpiexec -n 2")
    if not sizes or min(sizes) < 4:
        raise ArgumentError(f"the sizes of a sweep must be 4 or more bytes, got {list(sizes)}")
    whole = np.zeros(max(sizes) // 4, np.float32)
    for size in sizes:
        world.allreduce(whole[: size // 4])
    return [
        [(size, _seconds_of(world, whole[: size // 4], most_calls, clock)) for size in sizes] for _ in range(repeats)
    ]


def _seconds_of(world: Communicator, array: Array, most_calls: int, clock: Callable[[], float]) -> float:
    calls = max(1, min(most_calls, (1 << 20) // array.nbytes))
    world.barrier()
    began = clock()
    for _ in range(calls):
        world.allreduce(array)
    return (clock() - began) / calls


def fit_link(points: Sequence[tuple[int, float]], processes: int) -> Link:
    """Return the link with which the formula of the ring gives measured times of allreduces.

    The latency is that of the quickest small value (up to 32 KiB), and the bandwidth at each larger size what remains
    of its time, 2 (p - 1)/p n / (t - 2 (p - 1) a); it includes the time to add.

    Args:
        points: (bytes, seconds), of one size or more.
        processes: p, 2 or more.

    Raises:
        ArgumentError: there are no points, or a time is not positive.
    """
    if not points or processes < 2 or any(seconds <= 0 for _, seconds in points):
        raise ArgumentError(
            f"a link needs allreduces over 2 or more processes, with positive times; got {list(points)} over "
            f"{processes}"
        )
    points = sorted(points)
    rounds = 2 * (processes - 1)
    small = [seconds for size, seconds in points if size <= _SMALL]
    latency = min(small, default=0.0) / rounds
    curve = []
    for size, seconds in points:
        # A value that takes no longer than the smallest one says nothing about the bandwidth.
        rest = seconds - rounds * latency
        if size > _SMALL and rest > 0:
            curve.append((float(size), rounds / processes * size / rest))
    if not curve:
        size, seconds = points[-1]
        curve = [(float(size), rounds / processes * size / seconds)]
    return Link(latency, curve[-1][1], tuple(curve))
