"""simulate: predicts the step time of data-parallel training, by the events of a compute lane and an exchange lane."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.strategies import (
    BlockMomentum,
    HalfPrecision,
    LocalSGD,
    Plain,
    PowerSGD,
    Strategy,
    TopK,
)
from netbuilder.parallel.simulation.allreduce import (
    Cluster,
    allgather_seconds,
    allreduce_seconds,
)
from netbuilder.parallel.simulation.step_times import StepTimes, TimedWork
from netbuilder.passes.processes import DEFAULT_BUCKET_BYTES, bucket_lengths
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Bucket", "Exchange", "Prediction", "make_buckets", "simulate", "slowest_of"]

_SELECTING = {TopK: 7e-9, PowerSGD: 4e-9}
"""Seconds an element in which a core of an EPYC selects or approximates what is sent (docs/distributed.md)."""

_SIMULATED = (Plain, HalfPrecision, TopK, PowerSGD, LocalSGD, BlockMomentum)


@dataclass(frozen=True)
class Exchange:
    """How gradients are exchanged.

    Args:
        bucket_bytes: gradients are exchanged together until they have so many bytes; 0: each by itself.
        overlap: whether the exchange goes on while the device computes; else it computes nothing meanwhile.
        strategy: what of the gradients is sent; those whose bytes depend on data are refused, and what is not in
            buckets.
        header_bytes: of an allreduce by which the processes find out whether they agree, before a barrier or a block's
            exchange: what follows a barrier was agreed on in earlier steps; 0: none.
        jitter: standard deviation of a device's step time, as a fraction of it. Each step takes as long as on the
            slowest device.
        statistics_bytes: running means and variances that all get from one device, by a sum, after the last bucket.
        barriers: meetings of all processes before a step.

    Raises:
        ArgumentError: a number is negative, or the strategy cannot be simulated.
    """

    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    overlap: bool = True
    strategy: Strategy = dataclasses.field(default_factory=Plain)
    header_bytes: int = 0
    jitter: float = 0.0
    statistics_bytes: int = 0
    barriers: int = 0

    def __post_init__(self) -> None:
        for name in ("bucket_bytes", "header_bytes", "jitter", "statistics_bytes", "barriers"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ArgumentError(f"exchange: {name} must be 0 or more, got {getattr(self, name)}")
        if not isinstance(self.strategy, _SIMULATED):
            raise ArgumentError(
                f"exchange: strategy {str(self.strategy)!r} cannot be simulated; "
                f"{', '.join(each.name for each in _SIMULATED)} can"
            )

    @property
    def steps_between(self) -> int:
        """Number of steps after which processes exchange."""
        return self.strategy.iterations if isinstance(self.strategy, (LocalSGD, BlockMomentum)) else 1


@dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged together.

    Args:
        gradients: their names.
        nbytes: of all of them.
        ready, began, ended: seconds since the step began; NaN before it is simulated.
    """

    gradients: tuple[str, ...]
    nbytes: int
    ready: float = math.nan
    began: float = math.nan
    ended: float = math.nan


@dataclass(frozen=True)
class Prediction:
    """A step of data-parallel training; times in seconds.

    Args:
        devices, hosts: of the cluster, devices for each host.
        samples: of a step, over all devices.
        alone: time of the step on one device without any other.
        compute: the same while the other devices of its host compute, and on the slowest of all devices.
        step: time of the step.
        exchange: time of all buckets.
        buckets: in order, with their times.
    """

    devices: int
    hosts: int
    samples: int
    alone: float
    compute: float
    step: float
    exchange: float
    buckets: tuple[Bucket, ...]

    @property
    def size(self) -> int:
        """Number of devices of all hosts."""
        return self.devices * self.hosts

    @property
    def exposed(self) -> float:
        """Seconds by which the exchange makes the step longer; the rest of it is hidden by computing."""
        return self.step - self.compute

    @property
    def efficiency(self) -> float:
        """Samples per second and device, divided by those of one device alone."""
        return self.alone / self.step

    @property
    def samples_per_second(self) -> float:
        """Samples per second over all devices."""
        return self.samples / self.step

    def with_shares_by_speed(self, speeds: Sequence[float]) -> float:
        """Return the time of the step if hosts get samples in proportion to their speeds, not the same number each."""
        return self.step - self.compute + self.compute * min(speeds) * len(speeds) / sum(speeds)

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as a record for JSON."""
        derived = ("size", "exposed", "efficiency", "samples_per_second")
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in derived}}


def make_buckets(gradients: Iterable[tuple[str, int]], bucket_bytes: int) -> list[Bucket]:
    """Group gradients in the order in which they become ready, as ``Parallelize`` does; see ``bucket_lengths``.

    >>> [bucket.gradients for bucket in make_buckets([("a", 3), ("b", 1), ("c", 8), ("d", 2)], 4)]
    [('a', 'b'), ('c',), ('d',)]
    """
    given, found = list(gradients), list[Bucket]()
    for length in bucket_lengths([nbytes for _, nbytes in given], bucket_bytes):
        part, given = given[:length], given[length:]
        found.append(Bucket(tuple(name for name, _ in part), sum(nbytes for _, nbytes in part)))
    return found


def slowest_of(count: int) -> float:
    """Return the expected maximum of so many independent standard normal values.

    It is the integral of 1 - F(x)^count - F(-x)^count over positive x, with the distribution function F.

    Source: David and Nagaraja, "Order Statistics", 3rd edition, 2003, section 3.1.

    >>> round(slowest_of(2), 4), round(slowest_of(100), 3)
    (0.5642, 2.508)
    """
    x = np.linspace(0.0, 12.0, 4801)
    above = np.array([0.5 * math.erfc(value / math.sqrt(2)) for value in x])
    values = 1 - (1 - above) ** count - above**count
    return float(np.sum((values[1:] + values[:-1]) / 2) * (x[1] - x[0]))


def simulate(times: StepTimes, cluster: Cluster, exchange: Exchange | None = None) -> Prediction:
    """Predict the step time of a data-parallel net of which each device computes a batch as large as the measured one.

    Each device has a compute lane, which makes the calls in order, and an exchange lane, which exchanges one bucket
    after the other from the moment when its last gradient is ready. A call that needs sums waits for their buckets. All
    devices do the same at the same time. The exchange polls, so while it runs its thread competes with those that
    compute for the host's cores: d devices with t threads on c cores compute at a rate of 1 or c / (d t), whichever is
    less, and both lanes run at a rate of 1 or c / (d (t + 1)) while both work. A call that moves bytes at a rate that
    the host's memory does not have for all of its devices takes longer in proportion.

    Args:
        times: the step on one device.
        cluster: devices, links and cores.
        exchange: buckets, overlap, precision; None: the defaults of ``Exchange``.
    """
    exchange = exchange or Exchange()
    work = [dataclasses.replace(each, seconds=_crowded(each, times, cluster)) for each in times.work]
    if exchange.jitter:
        slowest = 1 + exchange.jitter * slowest_of(cluster.size) if cluster.size > 1 else 1.0
        work = [dataclasses.replace(each, seconds=slowest * each.seconds) for each in work]
    if cluster.speeds:
        work = [dataclasses.replace(each, seconds=each.seconds / min(cluster.speeds)) for each in work]
    compute = sum(each.seconds for each in work) / _rates(cluster, True, False)
    header = allreduce_seconds(cluster, exchange.header_bytes) if exchange.header_bytes else 0.0
    if (rare := exchange.steps_between) > 1:  # parameters, of as many bytes as the gradients, after the last step
        whole = _block_seconds(cluster, exchange, times.gradient_bytes) + header if cluster.size > 1 else 0.0
        strategy = exchange.strategy
        hidden = strategy.overlap * compute if isinstance(strategy, BlockMomentum) else 0.0
        return Prediction(
            cluster.devices, cluster.hosts, times.samples * cluster.size, times.seconds, compute,
            compute + max(0.0, whole - hidden) / rare, whole / rare, (),
        )  # fmt: skip
    buckets = make_buckets(times.gradients, exchange.bucket_bytes) if cluster.size > 1 else []
    seconds = [_bucket_seconds(bucket, times, cluster, exchange) for bucket in buckets]
    ended, buckets = _Lanes(work, buckets, seconds, cluster, overlap=exchange.overlap).run()
    apart = _apart_seconds(cluster, exchange, header) if cluster.size > 1 else 0.0
    return Prediction(
        cluster.devices, cluster.hosts, times.samples * cluster.size, times.seconds, compute, ended + apart,
        sum(seconds) + apart, tuple(buckets),
    )  # fmt: skip


def _apart_seconds(cluster: Cluster, exchange: Exchange, header: float) -> float:
    """Return the seconds of the messages that nothing hides: barriers, and the running statistics at the end."""
    seconds = exchange.barriers * (header + allreduce_seconds(cluster, 8))
    if exchange.statistics_bytes:
        seconds += allreduce_seconds(cluster, exchange.statistics_bytes)
    return seconds


def _crowded(work: TimedWork, times: StepTimes, cluster: Cluster) -> float:
    """Return the seconds of a call while all devices of the host make it, by the bandwidth of the host's memory."""
    if cluster.memory_bandwidth is None or not work.seconds:
        return work.seconds
    # What moves bytes faster than the memory reads them from a cache, and needs the memory for no more than it has.
    one = min(work.nbytes / work.seconds, times.copy_bandwidth or math.inf)
    return work.seconds * max(1.0, cluster.devices * one / cluster.memory_bandwidth)


def _block_seconds(cluster: Cluster, exchange: Exchange, nbytes: float) -> float:
    """Return the seconds in which parameters of so many bytes are averaged at the end of a block."""
    rounded = isinstance(exchange.strategy, BlockMomentum) and exchange.strategy.bits == 8
    return allgather_seconds(cluster, nbytes / 4) if rounded else allreduce_seconds(cluster, nbytes)


def _bucket_seconds(bucket: Bucket, times: StepTimes, cluster: Cluster, exchange: Exchange) -> float:
    strategy, elements = exchange.strategy, bucket.nbytes / 4
    selecting = _SELECTING.get(type(strategy), 0.0) * elements
    if isinstance(strategy, TopK):
        return selecting + allgather_seconds(cluster, 8 * strategy.fraction * elements)
    if isinstance(strategy, BlockMomentum):
        return _block_seconds(cluster, exchange, bucket.nbytes)
    if isinstance(strategy, PowerSGD):
        shapes = [
            times.shapes.get(name, (-(-size // 4),)) for name, size in times.gradients if name in bucket.gradients
        ]
        return selecting + 2 * allreduce_seconds(cluster, (strategy.planned_bytes(shapes, cluster.size) or 0.0) / 2)
    width = 0.5 if isinstance(strategy, HalfPrecision) else 1.0
    seconds = allreduce_seconds(cluster, width * bucket.nbytes)
    if times.copy_bandwidth and width < 1:
        seconds += 2 * (1 + width) * bucket.nbytes / times.copy_bandwidth  # there and back; read, and written
    return seconds


def _rates(cluster: Cluster, computes: bool, exchanges: bool) -> float:
    """Return how fast the lanes work, at most 1, by the number of threads for each core."""
    if cluster.cores is None:
        return 1.0
    threads = cluster.devices * (cluster.threads * computes + exchanges)
    return min(1.0, cluster.cores / threads) if threads else 1.0


class _Lanes:
    """The two lanes of a device during one step."""

    def __init__(
        self,
        work: Sequence[TimedWork],
        buckets: Sequence[Bucket],
        seconds: Sequence[float],
        cluster: Cluster,
        *,
        overlap: bool,
    ) -> None:
        self._work, self._buckets, self._seconds = work, list(buckets), seconds
        self._cluster, self._overlap = cluster, overlap
        self._bucket_of = {name: number for number, bucket in enumerate(buckets) for name in bucket.gradients}
        self._missing = [len(bucket.gradients) for bucket in buckets]
        self._now = 0.0
        self._next_call = self._next_bucket = 0
        self._left_call = self._left_bucket = 0.0  # seconds of work, at a rate of 1
        self._computes = self._exchanges = False

    def run(self) -> tuple[float, list[Bucket]]:
        """Return the time at which both lanes have ended, and the buckets with their times."""
        while True:
            self._begin()
            if not (self._computes or self._exchanges):
                assert self._next_call == len(self._work) and self._next_bucket == len(self._buckets)
                return self._now, self._buckets
            self._advance()

    def _begin(self) -> None:
        """Begin what can begin now."""
        if not self._exchanges and self._next_bucket < len(self._buckets) and not self._missing[self._next_bucket]:
            self._exchanges, self._left_bucket = True, self._seconds[self._next_bucket]
            self._mark(self._next_bucket, began=self._now)
        if self._computes or self._next_call == len(self._work) or (self._exchanges and not self._overlap):
            return
        call = self._work[self._next_call]
        if all(self._bucket_of.get(name, -1) < self._next_bucket for name in call.needs):
            self._computes, self._left_call = True, call.seconds

    def _advance(self) -> None:
        """Go on to the next end of a call or a bucket."""
        rate = _rates(self._cluster, self._computes, self._exchanges)
        call = self._left_call if self._computes else math.inf
        bucket = self._left_bucket if self._exchanges else math.inf
        done = min(call, bucket)
        self._now += done / rate
        self._left_call -= done
        self._left_bucket -= done
        if bucket <= call:
            self._exchanges = False
            self._mark(self._next_bucket, ended=self._now)
            self._next_bucket += 1
        if call <= bucket:
            self._computes = False
            self._make_ready(self._work[self._next_call])
            self._next_call += 1

    def _make_ready(self, call: TimedWork) -> None:
        for name, _ in call.ready:
            number = self._bucket_of.get(name, -1)
            if number >= 0:
                self._missing[number] -= 1
                if not self._missing[number]:
                    self._mark(number, ready=self._now)

    def _mark(self, number: int, **times: Any) -> None:
        self._buckets[number] = dataclasses.replace(self._buckets[number], **times)
