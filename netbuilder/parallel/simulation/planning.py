"""What follows from a predicted step: the best size of buckets, and how often to write checkpoints."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from netbuilder.parallel.simulation.allreduce import ALGORITHMS, Cluster
from netbuilder.parallel.simulation.links import Link
from netbuilder.parallel.simulation.simulate import Exchange, Prediction, simulate
from netbuilder.parallel.simulation.step_times import StepTimes
from netbuilder.parallel.simulation.sweep import fit_link
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BUCKETS", "BucketChoice", "Checkpoints", "best_exchange", "checkpoints", "choose_buckets"]

BUCKETS = (0, *(1 << k for k in range(18, 29)))
"""Bytes of buckets that ``best_exchange`` tries."""

_CLEARLY_SHORTER = 0.98  # of the step with the present buckets


def best_exchange(
    times: StepTimes,
    cluster: Cluster,
    exchange: Exchange,
    buckets: Iterable[int] = BUCKETS,
    algorithms: Iterable[str] = ALGORITHMS,
) -> tuple[Exchange, Cluster, Prediction]:
    """Return the size of buckets and the algorithm with the shortest step; of equal ones the first.

    Args:
        times, cluster, exchange: see ``simulate``.
        buckets, algorithms: to try.
    """
    tried = []
    sizes = [*buckets]
    for algorithm in algorithms:
        of_this = dataclasses.replace(cluster, algorithm=algorithm)
        for size in sizes:
            with_size = dataclasses.replace(exchange, bucket_bytes=size)
            tried.append((with_size, of_this, simulate(times, of_this, with_size)))
    return min(tried, key=lambda each: each[2].step)


@dataclass(frozen=True)
class BucketChoice:
    """The size of buckets that measurements speak for.

    Args:
        nbytes: the size.
        step, present: the predicted step with it, and with the present size.
        link: with the least times that were measured.
        refused: a size that would be faster by the least times, but not by each of the measurements; None: there is
            none.
    """

    nbytes: int
    step: float
    present: float
    link: Link
    refused: int | None = None


def choose_buckets(
    steps: Sequence[StepTimes], rounds: Sequence[Sequence[tuple[int, float]]], cluster: Cluster, exchange: Exchange
) -> BucketChoice:
    """Return the size of buckets with the shortest step, or the present one if no other is clearly faster.

    What else a machine does makes single times longer, and none shorter. So the size is searched with the least time of
    each call and of each sum; and it is taken only if none of the measurements, a step and a round each, contradicts.

    Args:
        steps: measurements of one step, with the same calls.
        rounds: measurements of the link; see ``sweep_rounds``.
        cluster: of devices with links of one kind, for which the measured one is put in.
        exchange: with the present size.
    """

    def over(points: Sequence[tuple[int, float]]) -> Cluster:
        return dataclasses.replace(cluster, inside=fit_link(points, cluster.size))

    def seconds(nbytes: int, times: StepTimes, place: Cluster) -> float:
        return simulate(times, place, dataclasses.replace(exchange, bucket_bytes=nbytes)).step

    present = exchange.bucket_bytes
    least, quickest = _least_times(steps), over([min(same) for same in zip(*rounds)])
    sizes = [present, *BUCKETS]
    now = seconds(present, least, quickest)
    step, found = min((seconds(nbytes, least, quickest), place) for place, nbytes in enumerate(sizes))
    best = sizes[found]
    if step >= _CLEARLY_SHORTER * now:
        return BucketChoice(present, now, now, quickest.inside)
    for times, points in zip(itertools.cycle(steps), rounds):
        if seconds(best, times, over(points)) > seconds(present, times, over(points)):
            return BucketChoice(present, now, now, quickest.inside, best)
    return BucketChoice(best, step, now, quickest.inside)


def _least_times(steps: Sequence[StepTimes]) -> StepTimes:
    """Return a step in which each call takes the least time that it has taken."""
    calls = zip(*(times.work for times in steps))
    work = tuple(min(same, key=lambda each: each.seconds) for same in calls)
    return dataclasses.replace(steps[0], work=work)


@dataclass(frozen=True)
class Checkpoints:
    """How often to write a checkpoint.

    Args:
        interval: seconds between two.
        lost: the share of time that writing, work done again and new starts take.
    """

    interval: float
    lost: float


def checkpoints(hosts: int, *, failures: float, writing: float, starting: float = 0.0) -> Checkpoints:
    """Return the interval that loses least time, where the failure of any host ends the job.

    It is sqrt(2 w m), with the seconds w that training stops for a checkpoint and the mean time m between two failures
    of any host; lost are w / interval for writing, (interval / 2 + starting) / m after failures. Source: Young, "A
    first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (9), 1974.

    Args:
        hosts: number of them.
        failures: mean time between two failures of one host, in seconds.
        writing: seconds that training stops for a checkpoint.
        starting: seconds from a failure to the first new step.

    Raises:
        ArgumentError: a time is not positive, or hosts fail more often than a job starts.

    >>> found = checkpoints(16, failures=30 * 86400.0, writing=5.0, starting=60.0)
    >>> round(found.interval), f"{found.lost:.2%}"
    (1273, '0.82%')
    """
    mean = failures / hosts
    if not (failures > 0 and writing > 0 and starting >= 0 and math.isfinite(failures)):
        raise ArgumentError(
            f"checkpoints: failures and writing must be more than 0 s, and starting 0 or more, got {failures}, "
            f"{writing} and {starting}"
        )
    interval = math.sqrt(2 * writing * mean)
    lost = writing / interval + (interval / 2 + starting) / mean
    if lost >= 1:
        raise ArgumentError(
            f"checkpoints: {hosts} hosts fail every {mean:.3g} s, so that a job that stops {writing:.3g} s for a "
            f"checkpoint and starts in {starting:.3g} s does not get on"
        )
    return Checkpoints(interval, lost)
