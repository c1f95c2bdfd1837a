"""The size of buckets that is chosen from measurements: also where other work of the machine has disturbed some."""

import dataclasses

import numpy as np
import pytest

from netbuilder.parallel.simulation.allreduce import Cluster, allreduce_seconds
from netbuilder.parallel.simulation.links import Link
from netbuilder.parallel.simulation.planning import BUCKETS, choose_buckets
from netbuilder.parallel.simulation.simulate import Exchange, simulate
from netbuilder.parallel.simulation.step_times import StepTimes, TimedWork

SIZES = (1 << 10, 1 << 15, 1 << 18, 1 << 20, 1 << 22)
PRESENT = Exchange(bucket_bytes=12 << 20)
LAYERS = 24


def step_of(seconds=0.002, factors=(1.0,) * 2 * LAYERS):
    """A step of layers that have gradients of 1 MiB each, with calls that take longer by factors."""
    forward = [TimedWork(f"f{n}", seconds) for n in range(LAYERS)]
    backward = [TimedWork(f"b{n}", 2 * seconds, ready=((f"g{n}", 1 << 20),)) for n in reversed(range(LAYERS))]
    update = TimedWork("update", 0.0, needs=frozenset(f"g{n}" for n in range(LAYERS)))
    times = [*forward, *backward]
    slower = [dataclasses.replace(each, seconds=each.seconds * factor) for each, factor in zip(times, factors)]
    return StepTimes((*slower, update))


def round_over(link, processes=2, factors=(1.0,) * 5):
    cluster = Cluster(1, processes, link)
    return [(size, factor * allreduce_seconds(cluster, size)) for size, factor in zip(SIZES, factors)]


def choose(steps, rounds, processes=2):
    return choose_buckets(steps, rounds, Cluster(1, processes, Link(0, 1)), PRESENT)


SLOW, FAR, QUICK = Link(1e-5, 1e8), Link(0.05, 1e9), Link(1e-5, 4e9)


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("link", [SLOW, FAR, QUICK], ids=["slow", "far", "quick"])
def test_quiet_measurements_give_the_size_with_the_shortest_step(link, processes):
    found = choose([step_of()] * 3, [round_over(link, processes)] * 5, processes)
    cluster = Cluster(1, processes, link)
    steps = {size: simulate(step_of(), cluster, Exchange(bucket_bytes=size)).step for size in BUCKETS}
    present = simulate(step_of(), cluster, PRESENT).step
    assert steps.get(found.nbytes, present) <= 1.02 * min(*steps.values(), present)
    assert found.refused is None
    assert found.step == pytest.approx(steps.get(found.nbytes, present), rel=0.02)
    assert found.present == pytest.approx(present, rel=0.02)


def test_what_makes_some_times_longer_changes_nothing():
    """Each call and each sum was undisturbed once; means over all would have said something else."""
    quiet = choose([step_of()] * 3, [round_over(SLOW)] * 5)
    rng = np.random.default_rng(2)
    steps = [step_of(factors=1 + 4 * (np.arange(2 * LAYERS) % 3 == n)) for n in range(3)]
    rounds = [round_over(SLOW, factors=1 + rng.uniform(0, 0.3, len(SIZES)) * (n > 0)) for n in range(5)]
    found = choose(steps, rounds)
    assert found.nbytes == quiet.nbytes < PRESENT.bucket_bytes
    assert found.step == pytest.approx(quiet.step)


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("disturbed", [[0, 1], [0, 1, 2], [3, 4], [4]], ids=str)
def test_one_disturbed_round_moves_nothing_where_the_present_size_is_best(disturbed, at):
    factors = np.where(np.isin(range(len(SIZES)), disturbed), 30.0, 1.0)
    rounds = [round_over(QUICK, factors=factors if n == at else (1.0,) * 5) for n in range(5)]
    assert choose([step_of()] * 3, rounds).nbytes == PRESENT.bucket_bytes


def test_measurements_that_contradict_each_other_keep_the_present_size():
    """All rounds are disturbed, each in another way: small sums in some, large ones in others."""
    small, large = (np.where(np.arange(len(SIZES)) < 3, *pair) for pair in ((3000.0, 1.0), (1.0, 30.0)))
    rounds = [round_over(SLOW, factors=factors) for factors in (small, large, small, large, small)]
    found = choose([step_of()] * 3, rounds)
    assert found.nbytes == PRESENT.bucket_bytes
    assert found.refused is not None and found.refused < PRESENT.bucket_bytes
    assert found.step == found.present
