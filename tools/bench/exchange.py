"""The benchmark of processes: the exchange of gradients, training in two processes, and what was predicted for them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from netbuilder.distributed.worlds.session import HEADER_BYTES
from netbuilder.parallel.simulation.allreduce import Cluster
from netbuilder.parallel.simulation.simulate import Exchange, make_buckets, simulate
from netbuilder.parallel.simulation.step_times import StepTimes
from netbuilder.parallel.simulation.sweep import SIZES, fit_link
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.roofline import measure_limits
from netbuilder.tools.bench.machine import busy_share, core_count
from netbuilder.tools.bench.ours import Training
from netbuilder.tools.bench.pairs import Comparison, Way, compare
from netbuilder.tools.bench.processes import ddp_worker, exchange_worker, our_worker, ranks_worker
from netbuilder.tools.bench.report import Line
from netbuilder.tools.bench.work import Task, Work

__all__ = ["Exchanges", "Load", "exchange_lines", "gradient_sizes", "judged", "predicted_lines"]

_OF_RAW, _OF_ONE, _OF_DDP = 0.95, 0.95, 1.2  # least ratios to mpi4py, to one process, to PyTorch
_APART = 0.15  # largest difference of a prediction, as a fraction of what is measured


@dataclass(frozen=True)
class Exchanges:
    """What is measured.

    Args:
        task: the net, with the batch of all processes together, and the size of netbuilder's buckets.
        processes: numbers of them.
        pairs, steps: turns of each side, and steps of each turn.
    """

    task: Task
    processes: Sequence[int]
    pairs: int
    steps: int


class Load:
    """The load of the machine before a measurement, and, from ``end`` on, after it."""

    def __init__(self) -> None:
        self.cores = core_count()
        self.before = busy_share()
        self.after = 0.0

    def end(self) -> None:
        """Measure the load again, when the sides have ended."""
        self.after = busy_share()

    @property
    def free(self) -> float:
        """Number of cores that other work left free all the time."""
        return self.cores * (1 - max(self.before, self.after))

    def __str__(self) -> str:
        return f"other work used {self.before:.0%} of {self.cores} cores before, {self.after:.0%} after"


def judged(text: str, record: dict[str, Any], *, holds: bool, rule: str, ranks: int, load: Load) -> Line:
    """Return the line of a measurement whose rule holds or not.

    With fewer free cores than ranks the result says more about the machine than about the exchange: the line says so,
    and is good.

    Args:
        rule: what should hold.
        ranks: processes, or threads, that need a core each.
    """
    record |= {"load_before": load.before, "load_after": load.after, "free_cores": load.free, "ranks": ranks}
    text = f"{text}; {load}"
    if load.free < ranks - 0.1:  # counting the processes that a system always has
        record["judged"] = False
        return Line(f"{text}; NOT JUDGED: {load.free:.1f} free cores for {ranks} ranks", record)
    record["judged"] = True
    return Line(text if holds else f"{text}; MISSED: {rule}", record, holds)


def gradient_sizes(work: Work) -> list[int]:
    """Return the bytes of a net's gradients in the order in which the backward pass completes them."""
    training = Training(dataclasses.replace(work, batch=1, devices=1))
    op_of = {name: i for i, op in enumerate(training.model.net.Proto().op) if op.is_gradient_op for name in op.output}
    gradients = {str(grad): str(name) for name, grad in training.model.param_to_grad.items()}
    ordered = sorted((grad for grad in gradients if grad in op_of), key=lambda grad: op_of[grad])
    return [4 * int(training.workspace.fetch(gradients[grad]).size) for grad in ordered]


def exchange_lines(options: Exchanges, python: str, modes: Sequence[str]) -> Iterator[Line]:
    """Compare the exchange with mpi4py, and training in two processes with one process and with PyTorch.

    Args:
        python: an interpreter that has PyTorch.
        modes: how PyTorch runs, see ``Work.mode``.
    """
    sizes = gradient_sizes(options.task.work)
    for count in options.processes:
        yield _against_mpi4py(options, sizes, count)
    yield from _two_processes(options, python, modes)


def _against_mpi4py(options: Exchanges, sizes: Sequence[int], count: int) -> Line:
    load = Load()
    with exchange_worker(sizes, options.task.work.bucket, count) as worker:
        ours, *peers = (Way(worker, name) for name in ("netbuilder", "whole", "buckets"))
        result = compare(ours, *peers, pairs=options.pairs, steps=options.steps)
    load.end()
    times = [1e3 * statistics.median(each) for each in (result.ours, *result.peers)]
    buckets = len(make_buckets([(str(i), size) for i, size in enumerate(sizes)], options.task.work.bucket))
    low, high = result.spread
    text = (
        f"exchange over {count} processes, {len(sizes)} gradients of {options.task.work.net}, "
        f"{sum(sizes) / 2**20:.1f} MiB, {buckets} buckets, {len(result.ours)} pairs: netbuilder {times[0]:.1f} ms, "
        f"mpi4py {times[1]:.1f} ms in one Allreduce, {times[2]:.1f} ms in {buckets}; {result.ratio:.2f} of the rate of "
        f"the faster (pairs {low:.2f} to {high:.2f})"
    )
    record = _record("exchange", options, count, ["netbuilder", "mpi4py whole", "mpi4py buckets"], result)
    rule = f"at least {_OF_RAW} of mpi4py"
    return judged(text, record, holds=result.ratio >= _OF_RAW, rule=rule, ranks=count, load=load)


def _two_processes(options: Exchanges, python: str, modes: Sequence[str]) -> Iterator[Line]:
    task, load = options.task, Load()
    single, double = (dataclasses.replace(task.work, threads=threads) for threads in (1, 2))
    with ExitStack() as stack:
        ours = stack.enter_context(ranks_worker(single, 2, warmup=task.warmup))
        one = stack.enter_context(our_worker(double, warmup=task.warmup))
        peers = [
            stack.enter_context(ddp_worker(dataclasses.replace(single, mode=mode), python, 2, warmup=task.warmup))
            for mode in modes
        ]
        names = [
            f"torch {peer.info['version']} DistributedDataParallel with gloo, {peer.info['mode']}" for peer in peers
        ]
        result = compare(ours, one, *peers, pairs=options.pairs, steps=options.steps)
    load.end()
    whole = Comparison(result.ours, result.peers[:1])
    yield _steps_line(options, ["1 process x 2 threads"], whole, _OF_ONE, load)
    if peers:
        yield _steps_line(options, names, Comparison(result.ours, result.peers[1:]), _OF_DDP, load)


def _steps_line(options: Exchanges, names: Sequence[str], result: Comparison, least: float, load: Load) -> Line:
    work, (low, high) = options.task.work, result.spread
    sides = ["2 processes x 1 thread", *names]
    each = ", ".join(
        f"{name} {1e3 * statistics.median(times):.1f} ms" for name, times in zip(sides, (result.ours, *result.peers))
    )
    text = (
        f"{work.net}, batch {work.batch} over all processes, {len(result.ours)} pairs: {each}; {result.ratio:.2f} x as "
        f"fast as {names[result.best]} (pairs {low:.2f} to {high:.2f})"
    )
    record = _record("processes", options, 2, sides, result)
    return judged(text, record, holds=result.ratio >= least, rule=f"at least {least} x", ranks=2, load=load)


def _record(kind: str, options: Exchanges, count: int, sides: Sequence[str], result: Comparison) -> dict[str, Any]:
    return {
        "kind": kind, "work": dataclasses.asdict(options.task.work), "processes": count,
        "sides": list(sides),
        "seconds": [list(times) for times in (result.ours, *result.peers)], "ratio": result.ratio,
        "spread": list(result.spread),
    }  # fmt: skip


def predicted_lines(options: Exchanges) -> Iterator[Line]:
    """Predict the step time of several processes from the calls of one, and measure it.

    Each process has one thread, and the batch of ``options.task``. One process is measured in turn with them, and the
    link by allreduces between these processes.
    """
    work = dataclasses.replace(options.task.work, threads=1)
    training = Training(work)
    training.measure_choices()
    one, host = measure_limits(1), measure_limits(core_count()).copy_bandwidth

    def measure_step() -> StepTimes:
        found = profile(
            training.workspace, training.model.net.Name(), runs=options.steps, warmup=1, limits={"CPU": one}
        )
        gradients = {str(gradient) for gradient in training.model.param_to_grad.values()}
        return StepTimes.of(found, gradients, samples=work.batch)

    for count in options.processes:
        yield _predicted(options, measure_step, work, host, count)


def _predicted(
    options: Exchanges, measure_step: Callable[[], StepTimes], work: Work, bandwidth: float, count: int
) -> Line:
    load, exchange = Load(), Exchange(options.task.work.bucket, header_bytes=HEADER_BYTES)
    predicted, measured, alone = list[float](), list[float](), list[float]()
    whole = dataclasses.replace(work, batch=count * work.batch)
    with ranks_worker(whole, count, warmup=options.task.warmup) as ranks:
        points = ranks.ask(sweep=SIZES)["points"] if count > 1 else [(1024, 1e-6)]
        link = fit_link([(size, seconds) for size, seconds in points], max(count, 2))
        cluster = Cluster(count, 1, link, cores=core_count(), memory_bandwidth=bandwidth)
        for _ in range(options.pairs):
            found = simulate(measure_step(), cluster, exchange)
            predicted.append(found.step)
            alone.append(found.alone)
            measured.append(statistics.median(ranks.run(options.steps)))
    load.end()
    ratio = statistics.median(predicted) / statistics.median(measured)
    text = (
        f"{work.net}, batch {work.batch} in each of {count} process{'es' if count > 1 else ''}, {options.pairs} pairs: "
        f"predicted {1e3 * statistics.median(predicted):.1f} ms, measured {1e3 * statistics.median(measured):.1f} ms, "
        f"{100 * (ratio - 1):+.1f} %; one process alone {1e3 * statistics.median(alone):.1f} ms"
        f"{f'; {link}' if count > 1 else ''}"
    )
    record = {
        "kind": "predicted", "work": dataclasses.asdict(work), "processes": count,
        "predicted": predicted, "measured": measured, "alone": alone, "link": link.to_dict(), "ratio": ratio,
        "memory_bandwidth": bandwidth,
    }  # fmt: skip
    holds, rule = abs(ratio - 1) <= _APART, f"at most {_APART:.0%} apart"
    return judged(text, record, holds=holds, rule=rule, ranks=count, load=load)
