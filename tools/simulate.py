"""Predict data-parallel training on many devices and hosts from one device's step: ``netbuilder-simulate NET``."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from netbuilder.distributed.strategies import Strategy
from netbuilder.distributed.worlds.session import HEADER_BYTES
from netbuilder.distributed.worlds.world import create_world
from netbuilder.engines.engine import find_engine
from netbuilder.parallel.simulation.allreduce import ALGORITHMS, Cluster
from netbuilder.parallel.simulation.links import Link, bandwidth_of, seconds_of
from netbuilder.parallel.simulation.planning import best_exchange, checkpoints
from netbuilder.parallel.simulation.published import PUBLISHED, Published
from netbuilder.parallel.simulation.simulate import Exchange, Prediction, simulate
from netbuilder.parallel.simulation.step_times import StepTimes
from netbuilder.parallel.simulation.sweep import fit_link, sweep_allreduce
from netbuilder.passes.processes import DEFAULT_BUCKET_BYTES
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.common_options import check_outputs, classes_option, count, image_size_option, size
from netbuilder.tools.options import OptionsParser, argument, option, switch
from netbuilder.tools.picture import check_picture
from netbuilder.tools.profiling.zoo import ZooOptions
from netbuilder.tools.reporting import reporting
from netbuilder.tools.results import write_json
from netbuilder.tools.simulating.growth_table import draw_growth, growth_table, link_table, published_table
from netbuilder.tools.simulating.step import Measured, measure_step, read_link, read_log, read_step
from netbuilder.tools.terminal import print_report

__all__ = ["main"]

T = TypeVar("T")

_LOCAL, _NETWORK = "5us:10GB/s", "20us:10Gbit/s"
_BUCKET = f"{DEFAULT_BUCKET_BYTES >> 20}MiB"
_OF_PUBLISHED = ("devices", "hosts", "link", "local_link", "algorithm", "bucket", "batch")


@reporting("netbuilder-simulate")
def main(arguments: Sequence[str] | None = None) -> int:
    """Predict as the command line says, and print a table; return the exit status."""
    parser = OptionsParser(_Options, prog="netbuilder-simulate")
    options = parser.parse(arguments)
    if options.measure:
        return _measure(parser, options)
    published = PUBLISHED[options.published] if options.published else None
    if published:
        for name in _OF_PUBLISHED:
            if getattr(options, name) is not None:
                parser.error(f"--{name.replace('_', '-')} is part of what --published says; leave it out")
    if not (options.step or published):
        parser.error("give the name of a net of the zoo, or a file that --save wrote")
    _check_files(options)
    clusters = [] if published else _clusters(options)
    log = read_log(options.log) if options.log else None
    usual = Exchange(header_bytes=HEADER_BYTES, barriers=1)
    exchange = _exchange(options, published.exchange if published else usual)
    if options.total_batch is not None:
        steps = _steps_of_shares(parser, options, clusters)
    else:
        one = _step(options, published)
        if log is not None:
            one = one.scaled(step=log.step * (1 - log.exchanging) * one.samples * log.devices / log.samples)
        write_json(options.save, one.to_dict(), indent=None, announced=True)
        if published:
            clusters = [_with_options(published.cluster(size), options) for size, _ in published.steps]
        steps = [one] * len(clusters)
    exchanges = [dataclasses.replace(exchange, statistics_bytes=each.statistics_bytes) for each in steps]
    if published:
        exchanges = [exchange] * len(steps)
    found = [simulate(*each) for each in zip(steps, clusters, exchanges)]
    title = _title(options.step or options.published or "", steps[0], exchange, clusters[0])
    print_report([growth_table(title, found)] if published is None else [title, published_table(published, found)])
    for line in _plans(options, steps, clusters, exchanges, found):
        print(line)
    if log is not None:
        print(_compared(log, steps[0], clusters[0], exchanges[0]))
    _write(options, steps[0], clusters, exchange, found, title)
    return 0


def _steps_of_shares(
    parser: OptionsParser[_Options], options: _Options, clusters: Sequence[Cluster]
) -> list[StepTimes]:
    """Return the step of a device for each cluster, with its share of the total batch."""
    if options.batch or options.save or options.log or options.published or str(options.step).endswith(".json"):
        parser.error("--total-batch needs the name of a net, and goes with none of --batch, --save, --log, --published")
    total = int(options.total_batch or 0)
    if uneven := [each.size for each in clusters if total % each.size]:
        parser.error(f"--total-batch: {total} samples cannot be shared evenly by {uneven[0]} devices")
    measured: dict[int, StepTimes] = {}
    for share in dict.fromkeys(total // each.size for each in clusters):
        measured[share] = _step(dataclasses.replace(options, batch=share), None)
    return [measured[total // each.size] for each in clusters]


def _plans(
    options: _Options,
    steps: Sequence[StepTimes],
    clusters: Sequence[Cluster],
    exchanges: Sequence[Exchange],
    found: Sequence[Prediction],
) -> Iterator[str]:
    """Yield lines about what follows from each prediction."""
    if steps[0].memory_bytes:
        sizes = dict.fromkeys((each.samples, each.memory_bytes) for each in steps)
        yield "memory of a device: " + ", ".join(
            f"{nbytes / 2**20:.0f} MiB with {samples} samples" for samples, nbytes in sizes
        )
    for times, cluster, exchange, each in zip(steps, clusters, exchanges, found):
        parts = []
        if cluster.speeds:
            shared = each.with_shares_by_speed(cluster.speeds)
            parts.append(f"{1e3 * shared:.2f} ms a step with shares by speed")
        if options.search and each.size > 1:
            best, where, made = best_exchange(times, cluster, exchange)
            size = f"buckets of {best.bucket_bytes / 2**20:.3g} MiB" if best.bucket_bytes else "no buckets"
            parts.append(f"shortest step {1e3 * made.step:.2f} ms with {size}, {where.algorithm}")
        lost = 0.0
        if options.failures is not None:
            plan = checkpoints(
                cluster.hosts, failures=options.failures, writing=options.checkpoint_time, starting=options.restart_time
            )
            lost = plan.lost
            parts.append(f"a checkpoint every {plan.interval / 60:.3g} min, {lost:.2%} of the time lost")
        if options.epoch_samples is not None:
            hours = options.epoch_samples / each.samples_per_second / 3600 / (1 - lost)
            parts.append(f"an epoch in {60 * hours:.3g} min")
            if options.price is not None:
                parts.append(f"for {hours * cluster.hosts * options.price:.3g}")
        if parts:
            yield f"{cluster.devices} devices on each of {cluster.hosts} hosts: {', '.join(parts)}"


def _compared(log: Measured, times: StepTimes, cluster: Cluster, exchange: Exchange) -> str:
    """Return a line that compares the steps of a run with the prediction for as many devices, on the same links."""
    devices = min(log.devices, cluster.devices)
    hosts = -(-log.devices // devices)
    of_run = dataclasses.replace(cluster, devices=devices, hosts=hosts, speeds=())
    step = simulate(times, of_run, exchange).step * log.samples / (times.samples * log.devices)
    return (
        f"the run: {log.devices} devices, {log.samples} samples, {1e3 * log.step:.2f} ms a step, of which exchange "
        f"{log.exchanging:.0%}; predicted {1e3 * step:.2f} ms ({step / log.step - 1:+.0%})"
    )


def _measure(parser: OptionsParser[_Options], options: _Options) -> int:
    """Measure the link between the processes that mpiexec has started; rank 0 prints and writes it."""
    if options.step or options.published or options.save or options.plot:
        parser.error("--measure measures the link between processes and nothing else; only --json goes with it")
    _check_files(options)
    world = create_world("simulate", 0, 0)
    points = world.run(world.call("the sweep", ""), lambda communicator, _: sweep_allreduce(communicator))
    if world.rank == 0:
        link = fit_link(points, world.size)
        print_report([link_table(points, link, world.size)])
        write_json(options.json, link.to_dict(), announced=True)
    return 0


def _or(convert: Callable[[str], T]) -> Callable[[str], T]:
    """Return a function for ``type=`` of an option; argparse adds the option's name to what ``convert`` refuses.

    A file that is missing is no wrong option: its OSError is passed on.
    """

    def converted(text: str) -> T:
        try:
            return convert(text)
        except NetError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise NetError(f"must be a fraction from 0 to 1, such as 0.02, got {text!r}")
    return value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise NetError(f"must be a number of more than 0, got {text!r}")
    return value


def _duration(text: str) -> float:
    """Return the seconds of a text such as 720h, 10min or 5s."""
    for unit, seconds in (("h", 3600.0), ("min", 60.0)):
        if text.endswith(unit):
            return seconds * _positive(text[: -len(unit)])
    return seconds_of(text)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Measure a training step on one device, and predict it on many devices and hosts: its time, the efficiency, and
    the part of the exchange of gradients that computing does not hide.
    """

    step: str | None = argument(
        "the name of a net of the zoo, or a file with a step (.json) from --save", nargs="?", metavar="NET"
    )
    batch: int | None = option("samples of each device (default: 32)", type=count, group="the step of one device")
    image_size: int | None = image_size_option()
    classes: int = classes_option()
    dtype: str | None = option(
        "how activations are stored (default: float32)", choices=find_engine("ONEDNN").precisions
    )
    threads: int = option("of each device", type=count, default=1)
    runs: int = option("measured steps", type=count, default=5)
    save: str | None = option("write the measured step, which can be given in place of NET", metavar="FILE")
    step_time: float | None = option(
        "predict for a device whose step takes so long, such as 260ms", type=_or(seconds_of), metavar="TIME"
    )
    backward_time: float | None = option(
        "its backward pass (default: in proportion)", type=_or(seconds_of), metavar="TIME"
    )
    devices: tuple[int, ...] | None = option(
        "numbers of devices of each host (default: 1,2,4,8)", type=count, group="devices and links"
    )
    hosts: tuple[int, ...] | None = option("numbers of hosts (default: 1)", type=count)
    link: Link | None = option(
        f"between hosts, such as 2us:100Gbit/s, or a file (default: {_NETWORK})",
        type=_or(read_link),
        metavar="LATENCY:BANDWIDTH",
    )
    local_link: Link | None = option(
        f"between the devices of a host (default: {_LOCAL})", type=_or(read_link), metavar="LATENCY:BANDWIDTH"
    )
    algorithm: str | None = option("of the allreduce (default: hierarchical)", choices=ALGORITHMS)
    reduce_bandwidth: float | None = option(
        "bytes that a device adds per second, such as 5GB/s (default: no time; a measured link includes it)",
        type=_or(bandwidth_of),
        metavar="RATE",
    )
    cores: int | None = option("of each host, for computing and exchanging (default: enough for both)", type=count)
    memory_bandwidth: float | None = option(
        "of each host, read and written, such as 80GB/s (default: enough)", type=_or(bandwidth_of), metavar="RATE"
    )
    host_speeds: tuple[float, ...] = option(
        "how fast the devices of each host compute, 1 as the measured one; also predicts shares by speed",
        type=_or(_positive), default=(), metavar="X",
    )  # fmt: skip
    total_batch: int | None = option(
        "samples of all devices together: NET is measured with each share of it", type=count, metavar="N"
    )
    measure: bool = switch(
        "instead: measure the link between the processes that "
        "mpiexec -n 2 netbuilder-simulate --measure --json link.json has started"
    )
    bucket: int | None = option(
        f"gradients are exchanged together until they have so many bytes; 0: each by itself (default: {_BUCKET})",
        type=size,
        metavar="SIZE",
        group="exchange",
    )
    no_overlap: bool = switch("compute nothing while gradients are exchanged")
    strategy: str = option(
        "what of the gradients is sent, such as half:bfloat16, topk:0.01, powersgd:4 or local_sgd:8 (default: plain)",
        default="plain", metavar="TEXT",
    )  # fmt: skip
    jitter: float = option(
        "standard deviation of a device's step time as a fraction of it; each step waits for the slowest device "
        "(default: 0)",
        type=_or(_fraction),
        default=0.0,
        metavar="X",
    )
    search: bool = switch("find the size of buckets and the algorithm with the shortest step")
    log: str | None = option(
        "compare with a run, by the file of its --metrics, and scale the step to its devices", metavar="FILE"
    )
    epoch_samples: int | None = option(
        "samples of an epoch: predict how long it takes", type=count, metavar="N", group="plans"
    )
    price: float | None = option("of a host for an hour: predict what an epoch costs", type=_or(_positive), metavar="X")
    failures: float | None = option(
        "mean time between two failures of a host, such as 720h: find the best interval of checkpoints",
        type=_or(_duration), metavar="TIME",
    )  # fmt: skip
    checkpoint_time: float = option(
        "for which training stops to write one (default: 5s)", type=_or(_duration), default=5.0, metavar="TIME"
    )
    restart_time: float = option(
        "from a failure to the first new step (default: 60s)", type=_or(_duration), default=60.0, metavar="TIME"
    )
    published: str | None = option(
        "predict for the machines of published figures, "
        "and print both; without NET the step is measured with their net",
        choices=sorted(PUBLISHED),
        group="result",
    )
    json: str | None = option("also write the predictions, with all buckets, as JSON", metavar="FILE")
    plot: str | None = option("also draw efficiency and step time (.png); needs matplotlib", metavar="FILE")


def _check_files(options: _Options) -> None:
    """Raise NetError if a result could not be written, before anything is measured."""
    check_outputs(options, "save", "json", "plot")
    if options.plot:
        check_picture(options.plot)


def _step(options: _Options, published: Published | None) -> StepTimes:
    name = options.step or (published.net if published else "")
    if name.endswith(".json"):
        times = read_step(name)
    else:
        zoo = ZooOptions(
            batch=options.batch or (published.batch if published else 32), image_size=options.image_size,
            classes=options.classes, dtype=options.dtype,
        )  # fmt: skip
        times = measure_step(name, zoo, threads=options.threads, runs=options.runs)
    step, backward = options.step_time, options.backward_time
    if published:
        step, backward = step or published.steps[0][1], backward or published.backward
    return times if step is backward is None else times.scaled(step=step, backward=backward)


def _clusters(options: _Options) -> list[Cluster]:
    local, network = options.local_link or Link.parse(_LOCAL), options.link or Link.parse(_NETWORK)
    algorithm = options.algorithm or "hierarchical"
    return [
        _with_options(Cluster(devices, hosts, local, network, algorithm), options)
        for hosts in options.hosts or [1]
        for devices in options.devices or [1, 2, 4, 8]
    ]


def _with_options(cluster: Cluster, options: _Options) -> Cluster:
    return dataclasses.replace(
        cluster, reduce_bandwidth=options.reduce_bandwidth or math.inf, cores=options.cores, threads=options.threads,
        memory_bandwidth=options.memory_bandwidth, speeds=options.host_speeds,
    )  # fmt: skip


def _exchange(options: _Options, default: Exchange) -> Exchange:
    bucket = options.bucket if options.bucket is not None else default.bucket_bytes
    return dataclasses.replace(
        default, bucket_bytes=bucket, overlap=not options.no_overlap, strategy=Strategy.of(options.strategy),
        jitter=options.jitter,
    )  # fmt: skip


def _title(net: str, times: StepTimes, exchange: Exchange, cluster: Cluster) -> str:
    buckets = f"buckets of {exchange.bucket_bytes / 2**20:.3g} MiB" if exchange.bucket_bytes else "no buckets"
    links = f"{cluster.inside} inside a host" + (f", {cluster.across} between hosts" if cluster.between else "")
    return (
        f"{Path(net).stem}, batch {times.samples} a device, {1e3 * times.seconds:.2f} ms on one; "
        f"{times.gradient_bytes / 1e6:.1f} MB of gradients, {buckets}, {exchange.strategy}"
        f"{'' if exchange.overlap else ', no overlap'}; {cluster.algorithm}, {links}"
    )


def _write(
    options: _Options,
    times: StepTimes,
    clusters: Sequence[Cluster],
    exchange: Exchange,
    found: Sequence[Prediction],
    title: str,
) -> None:
    record = {
        "seconds": times.seconds, "samples": times.samples, "gradient_bytes": times.gradient_bytes,
        "exchange": {**dataclasses.asdict(exchange), "strategy": str(exchange.strategy)},
        "cluster": _finite(dataclasses.asdict(clusters[0])),
        "predictions": [each.to_dict() for each in found],
    }  # fmt: skip
    write_json(options.json, record, announced=True)
    if options.plot:
        draw_growth(options.plot, title, found)
        print(f"written: {options.plot}")


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record in which None stands for infinity, which JSON does not have."""
    return {name: None if value == math.inf else value for name, value in record.items() if name != "devices"}


if __name__ == "__main__":
    sys.exit(main())
