"""The benchmark of processes: sizes of gradients, what is judged, real processes that take turns, predictions."""

import dataclasses
import re

import pytest

from netbuilder.distributed import Rendezvous
from netbuilder.distributed.worlds.session import HEADER_BYTES
from netbuilder.parallel.simulation.allreduce import Cluster
from netbuilder.parallel.simulation.links import Link
from netbuilder.parallel.simulation.simulate import Exchange, simulate
from netbuilder.parallel.simulation.step_times import StepTimes, TimedWork
from netbuilder.proto import ArgumentError, DeviceError
from netbuilder.tools import benchmark
from netbuilder.tools.bench import exchange, processes, works
from netbuilder.tools.bench.exchange import (
    Exchanges,
    Load,
    exchange_lines,
    gradient_sizes,
    judged,
    predicted_lines,
)
from netbuilder.tools.bench.ours import Training
from netbuilder.tools.bench.pairs import Way, compare
from netbuilder.tools.bench.processes import exchange_worker, ranks_worker
from netbuilder.tools.bench.work import TASKS, Task, Work

SMALL = Work("mlp", 4, threads=1, size=6, classes=5, bucket=1 << 10)
OPTIONS = Exchanges(Task(SMALL, 1, 1, SMALL), [2], pairs=2, steps=3)


@pytest.fixture(autouse=True)
def _idle(monkeypatch):
    monkeypatch.setattr(exchange, "busy_share", lambda: 0.0)
    monkeypatch.setattr(exchange, "core_count", lambda: 4)


@pytest.mark.slow
def test_the_gradients_of_resnet50_are_those_that_are_published():
    sizes = gradient_sizes(TASKS["resnet50"].work)
    # 25,557,032 parameters, as torchvision's has; those of the FC layer come first, the first convolution's last.
    assert sum(sizes) == 4 * 25_557_032 and len(sizes) == 161
    assert sorted(sizes[:2]) == [4 * 1000, 4 * 2048 * 1000] and sizes[-1] == 4 * 64 * 3 * 49


def test_the_load_is_part_of_the_result(monkeypatch):
    shares = iter([0.25, 0.5])
    monkeypatch.setattr(exchange, "busy_share", lambda: next(shares))
    load = Load()
    load.end()
    assert load.free == 2
    line = judged("text", {}, holds=False, rule="at least 0.9", ranks=2, load=load)
    assert line.text == "text; other work used 25% of 4 cores before, 50% after; MISSED: at least 0.9"
    assert not line.good and line.record["judged"] and line.record["load_after"] == 0.5
    assert judged("text", {}, holds=True, rule="", ranks=2, load=load).good


def test_too_few_free_cores_are_not_judged(monkeypatch):
    monkeypatch.setattr(exchange, "busy_share", lambda: 0.5)
    line = judged("text", {}, holds=False, rule="at least 0.9", ranks=4, load=Load())
    assert line.good and not line.record["judged"]
    assert line.text.endswith("; NOT JUDGED: 2.0 free cores for 4 ranks")


@pytest.mark.slow
def test_two_processes_sum_in_every_way():
    pytest.importorskip("mpi4py")
    with exchange_worker([4096, 8, 2 << 20], 4096, 2) as worker:
        sides = [Way(worker, name) for name in ("netbuilder", "whole", "buckets")]
        result = compare(*sides, pairs=2, steps=2)
    assert len(result.ours) == 2 and min(result.ours) > 0 and len(result.peers) == 2


@pytest.mark.slow
def test_two_processes_train_and_measure_their_link():
    pytest.importorskip("mpi4py")
    with ranks_worker(dataclasses.replace(SMALL, bucket=0), 2, warmup=1) as worker:
        assert worker.info["buckets"] == 8  # one for each gradient
        assert len(worker.run(2)) == 2 and 0 < worker.loss < 5
        (point,) = worker.ask(sweep=[1024])["points"]
    assert point[0] == 1024 and point[1] > 0


def test_a_batch_that_processes_cannot_share():
    with pytest.raises(ArgumentError, match="a batch of 4 cannot be split evenly over 3 devices"):
        Training(SMALL, Rendezvous(3, 0))


class Sides:
    """Workers that take the times that they are told to."""

    def __init__(self, seconds, answer=None):
        self.seconds, self.answer, self.info = seconds, answer, {"version": "1", "mode": "eager"}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def run(self, steps, **more):
        return [self.seconds[more["way"]] if more else self.seconds] * steps

    def ask(self, **command):
        return self.answer


def test_the_lines_of_an_exchange(monkeypatch):
    ways = {"netbuilder": 0.010, "whole": 0.011, "buckets": 0.008}
    monkeypatch.setattr(exchange, "exchange_worker", lambda sizes, bucket, count: Sides(ways))
    monkeypatch.setattr(exchange, "ranks_worker", lambda work, count, warmup: Sides(0.1))
    monkeypatch.setattr(exchange, "our_worker", lambda work, warmup: Sides(0.096 if work.threads == 2 else 9))
    monkeypatch.setattr(exchange, "ddp_worker", lambda work, python, count, warmup: Sides(0.15))
    raw, one, ddp = exchange_lines(OPTIONS, "python", ["eager"])
    assert "exchange over 2 processes, 8 gradients of mlp" in raw.text
    assert re.search(r"netbuilder 10.0 ms, mpi4py 11.0 ms in one Allreduce, 8.0 ms in \d; 0.80 of the rate", raw.text)
    assert not raw.good and raw.text.endswith("MISSED: at least 0.95 of mpi4py")
    assert one.good and "2 processes x 1 thread 100.0 ms, 1 process x 2 threads 96.0 ms; 0.96 x" in one.text
    assert ddp.good and "torch 1 DistributedDataParallel with gloo, eager 150.0 ms; 1.50 x" in ddp.text
    assert one.record["sides"] == ["2 processes x 1 thread", "1 process x 2 threads"]


def test_predictions_beside_measurements(monkeypatch):
    step = StepTimes((TimedWork("backward", 0.02, ready=(("g", 4_000_000),)), TimedWork("update", 0.01)))
    link, buckets = Link(1e-5, 1e9), Exchange(1 << 10, header_bytes=HEADER_BYTES)

    def found(count):
        return simulate(step, Cluster(count, 1, link, cores=4), buckets).step

    times = {1: found(1), 2: 1.1 * found(2), 4: 1.3 * found(4)}
    monkeypatch.setattr(exchange, "ranks_worker", lambda work, count, warmup: Sides(times[count], {"points": [[8, 1]]}))
    monkeypatch.setattr(exchange, "fit_link", lambda points, count: link)
    monkeypatch.setattr(StepTimes, "of", lambda *arguments, **options: step)
    limits = dataclasses.make_dataclass("Limits", ["copy_bandwidth"])(1e12)
    monkeypatch.setattr(exchange, "measure_limits", lambda threads: limits)
    monkeypatch.setattr(exchange, "profile", lambda *arguments, **options: None)
    one, two, four = predicted_lines(dataclasses.replace(OPTIONS, processes=[1, 2, 4]))
    assert one.good and "in each of 1 process, 2 pairs: predicted 30.0 ms, measured 30.0 ms, +0.0 %" in one.text
    assert "GB/s" not in one.text and "one process alone 30.0 ms; 10 us, 1 GB/s" in two.text
    assert two.good and two.record["ratio"] == pytest.approx(1 / 1.1)
    assert not four.good and four.text.endswith("MISSED: at most 15% apart")


def test_options(monkeypatch):
    asked = []
    for name in ("exchange_lines", "predicted_lines"):
        monkeypatch.setattr(works, name, lambda given, *peers: iter([asked.append(given)][:0]))
    given = ["--peer-python=python", "--mode=eager"]
    assert benchmark.main(["exchange", "--processes", "2", "--bucket", "1MiB", *given]) == 0
    assert benchmark.main(["exchange-predicted", "--batch", "8", *given]) == 0
    assert benchmark.main(["exchange", *given]) == 0
    assert [tuple(each.processes) for each in asked] == [(2,), (1, 2, 4), (2, 4)]
    assert (asked[0].task.work.bucket, asked[0].task.work.net, asked[1].task.work.batch) == (1 << 20, "resnet50", 8)
    monkeypatch.setattr(processes, "require_compiler", lambda environment: (_ for _ in ()).throw(DeviceError("no g++")))
    with pytest.raises(DeviceError, match="no g"):
        processes.ddp_worker(dataclasses.replace(SMALL, mode="compile"), "python", 2, warmup=1)
