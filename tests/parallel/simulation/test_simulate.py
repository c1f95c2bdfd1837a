"""The predicted step: computed by hand, and against a simulation that goes on in small ticks of time."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbuilder.distributed import DiLoCo, HalfPrecision, LocalSGD, Plain, PowerSGD, Threshold, TopK
from netbuilder.parallel.simulation.allreduce import ALGORITHMS, Cluster, allreduce_seconds
from netbuilder.parallel.simulation.links import Link
from netbuilder.parallel.simulation.planning import BUCKETS, best_exchange, checkpoints
from netbuilder.parallel.simulation.published import PUBLISHED
from netbuilder.parallel.simulation.simulate import Exchange, make_buckets, simulate, slowest_of
from netbuilder.parallel.simulation.step_times import StepTimes, TimedWork
from netbuilder.passes.processes import buckets
from netbuilder.proto import ArgumentError, NetDef
from netbuilder.proto.arguments import make_op

MB = 1_000_000
LINK = Link(0.0, MB)  # two processes exchange 1 MB in a second
EACH = Exchange(bucket_bytes=0)


def step(*rows, **options):
    """Rows: (seconds, name of the gradient that is then ready, its MB), or (seconds, gradients that it needs)."""
    work = []
    for i, row in enumerate(rows):
        seconds, *rest = row
        ready = ((rest[0], rest[1] * MB),) if len(rest) == 2 else ()
        needs = frozenset(rest[0]) if len(rest) == 1 else frozenset()
        work.append(TimedWork(f"call {i}", float(seconds), ready=ready, needs=needs))
    return StepTimes(tuple(work), **options)


# Forward 3 s; the gradients c, b, a after 2, 2 and 1 s more; an update of each, 1 s.
STEP = step((3,), (2, "c", 1), (2, "b", 4), (1, "a", 1), (1, "c"), (1, "b"), (1, "a"), samples=10)


def test_one_device_takes_the_time_of_its_calls():
    found = simulate(STEP, Cluster(1, 1, LINK))
    assert (found.step, found.exposed, found.efficiency, found.exchange, found.buckets) == (11, 0, 1, 0, ())
    assert found.samples_per_second == pytest.approx(10 / 11)


def test_each_gradient_by_itself():
    found = simulate(STEP, Cluster(2, 1, LINK), EACH)
    # c is exchanged from 5 to 6, b from 7 to 11, a from 11 to 12; updates from 8, 11 and 12 to 13.
    assert [(b.ready, b.began, b.ended) for b in found.buckets] == [(5, 5, 6), (7, 7, 11), (8, 11, 12)]
    assert (found.step, found.compute, found.exposed, found.exchange) == (13, 11, 2, 6)
    assert found.efficiency == pytest.approx(11 / 13) and found.samples_per_second == pytest.approx(20 / 13)


def test_one_bucket_for_all():
    found = simulate(STEP, Cluster(2, 1, LINK), Exchange(bucket_bytes=100 * MB))
    assert [b.gradients for b in found.buckets] == [("c", "b", "a")]
    assert found.step == 8 + 6 + 3


def test_without_overlap_nothing_is_hidden():
    found = simulate(STEP, Cluster(2, 1, LINK), Exchange(bucket_bytes=0, overlap=False))
    assert found.step == 11 + 6 and found.exposed == found.exchange == 6


def test_without_a_core_for_the_exchange_nothing_is_gained():
    # Two lanes of one device on one core: each at half its speed while both work.
    found = simulate(STEP, Cluster(2, 1, LINK, cores=2), EACH)
    # c: 5 to 7 during 1 s of b's call, which ends at 8; b: a's call takes 2 s meanwhile, c's update 2 s, and from 12 on
    # nothing computes: 2 of 4 s are left. a is exchanged during the update of b.
    assert [(b.began, b.ended) for b in found.buckets] == [(5, 7), (8, 14), (14, 16)]
    assert found.step == 17 and found.compute == 11


def test_a_core_for_each_exchange_is_enough():
    free = simulate(STEP, Cluster(2, 1, LINK), EACH)
    assert simulate(STEP, Cluster(2, 1, LINK, cores=4), EACH) == free
    assert simulate(STEP, Cluster(2, 1, LINK, cores=3), EACH).step > free.step


def test_more_devices_than_cores():
    found = simulate(STEP, Cluster(4, 1, LINK, cores=2), Exchange(bucket_bytes=100 * MB))
    # Computing takes twice its time, and so does the exchange: 6 rounds of a quarter of 6 MB.
    assert found.compute == 22 and found.step == pytest.approx(2 * (11 + 9))


def test_devices_share_the_bandwidth_of_the_memory():
    work = (TimedWork("reads", 1.0, nbytes=6e9), TimedWork("computes", 1.0, nbytes=1e9), TimedWork("cached", 1.0, 9e10))
    times = StepTimes(work, copy_bandwidth=8e9)
    found = simulate(times, Cluster(2, 1, LINK, memory_bandwidth=10e9))
    assert found.compute == pytest.approx(12 / 10 + 1 + 16 / 10)
    assert simulate(times, Cluster(1, 1, LINK, memory_bandwidth=10e9)).compute == 3


def test_what_is_rounded_is_copied_there_and_back():
    times = StepTimes((TimedWork("backward", 1.0, ready=(("a", 100_000), ("b", 4_800_000), ("c", 100_000))),),
                      copy_bandwidth=float(MB))  # fmt: skip
    cluster = Cluster(2, 1, LINK)
    assert simulate(times, cluster, Exchange(bucket_bytes=100 * MB)).exchange == pytest.approx(5)  # in place
    half = simulate(times, cluster, Exchange(bucket_bytes=100 * MB, strategy=HalfPrecision("bfloat16")))
    assert half.exchange == pytest.approx(2.5 + 3 * 5.0)  # 4 bytes read and 2 written, and back


def test_a_bucket_is_exchanged_by_one_allreduce():
    times = StepTimes((TimedWork("backward", 1.0, ready=(("a", 300), ("b", 4 * MB), ("c", 200), ("d", 2 * MB))),))
    cluster = Cluster(4, 1, Link(1.0, 1e9))
    (bucket,) = make_buckets(times.gradients, 100 * MB)
    found = simulate(times, cluster, Exchange(bucket_bytes=100 * MB))
    assert found.exchange == pytest.approx(6 + 1.5 * bucket.nbytes / 1e9)
    half = simulate(times, cluster, Exchange(bucket_bytes=100 * MB, strategy=HalfPrecision()))
    assert half.exchange == pytest.approx(6 + 0.75 * bucket.nbytes / 1e9)


def test_algorithms():
    cluster = Cluster(2, 3, Link(1e-3, 1e9), Link(5e-3, 1e8), "hierarchical", reduce_bandwidth=1e9)
    exchange = Exchange(bucket_bytes=0, strategy=HalfPrecision())
    found = simulate(dataclasses.replace(STEP, copy_bandwidth=None), cluster, exchange)
    expected = sum(allreduce_seconds(cluster, size) for size in (MB // 2, 2 * MB, MB // 2))
    assert found.exchange == pytest.approx(expected)
    assert (found.size, found.samples) == (6, 60)


@pytest.mark.parametrize("strategy", [Plain(), HalfPrecision(), TopK(0.1), PowerSGD(2)], ids=str)
def test_only_barriers_have_headers(strategy):
    cluster = Cluster(2, 1, Link(1.0, float(MB)))
    found = [
        simulate(STEP, cluster, Exchange(bucket_bytes=0, header_bytes=each, barriers=1, strategy=strategy))
        for each in (0, 16)
    ]
    assert found[1].exchange - found[0].exchange == pytest.approx(allreduce_seconds(cluster, 16))


def test_strategies():
    cluster, shapes = Cluster(4, 1, Link(1.0, 1e9)), {"c": (500, 500), "b": (1000, 1000)}
    times = dataclasses.replace(STEP, shapes=shapes)
    whole = Exchange(bucket_bytes=100 * MB)
    for strategy, want in (
        (TopK(0.1), 3 * (1 + 0.2 * 6 * MB / 1e9) + 1.5 * MB * 7e-9),
        (PowerSGD(2), 2 * (6 + 1.5 * 2 * (2 * (500 + 500 + 1000 + 1000) + MB / 4) / 1e9) + 1.5 * MB * 4e-9),
        (LocalSGD(8), (6 + 1.5 * 6 * MB / 1e9) / 8),
        (DiLoCo(8, bits=8), 3 * (1 + 1.5 * MB / 1e9) / 8),
    ):
        found = simulate(times, cluster, dataclasses.replace(whole, strategy=strategy))
        assert found.exchange == pytest.approx(want), strategy
    assert found.step == pytest.approx(11 + found.exchange)
    assert found.exposed == pytest.approx(found.exchange)
    for iterations, overlap in ((8, 1), (40, 30)):  # a step of computing hides 11 s of it
        overlapped = dataclasses.replace(whole, strategy=DiLoCo(iterations, bits=8, overlap=overlap))
        found = simulate(times, cluster, overlapped)
        assert found.exchange == pytest.approx(3 * (1 + 1.5 * MB / 1e9) / iterations)
        assert found.step == pytest.approx(11)


def test_statistics_and_barriers_are_hidden_by_nothing():
    cluster = Cluster(1, 4, LINK, Link(1.0, float(MB)), "tree")
    plain, more = (simulate(STEP, cluster, each) for each in (EACH, Exchange(0, statistics_bytes=3 * MB, barriers=1)))
    assert more.step - plain.step == pytest.approx(sum(allreduce_seconds(cluster, each) for each in (8, 3 * MB)))
    assert more.exchange - plain.exchange == pytest.approx(more.step - plain.step)


def test_hosts_of_different_speed():
    fast = Link(0.0, math.inf)
    found = simulate(STEP, Cluster(1, 2, fast, speeds=(1.0, 0.5)), EACH)
    assert found.step == 22 and found.with_shares_by_speed((1.0, 0.5)) == pytest.approx(22 * 2 * 0.5 / 1.5)


def test_the_best_exchange():
    cluster = Cluster(1, 8, LINK, Link(0.5, 10.0 * MB))
    exchange, where, found = best_exchange(STEP, cluster, Exchange())
    every = [simulate(STEP, dataclasses.replace(cluster, algorithm=name), Exchange(size)).step
             for name in ALGORITHMS for size in BUCKETS]  # fmt: skip
    assert found.step == min(every) < max(every)
    assert found == simulate(STEP, where, exchange)


def test_checkpoints():
    found = checkpoints(4, failures=4 * 3600.0, writing=2.0, starting=30.0)
    for interval in (0.8 * found.interval, 1.25 * found.interval):
        assert 2.0 / interval + (interval / 2 + 30) / 3600 > found.lost
    assert found.interval == pytest.approx(120)
    for options in ({"failures": 0.0, "writing": 1.0}, {"failures": 9.0, "writing": -1.0}):
        with pytest.raises(ArgumentError, match="must be more than 0 s"):
            checkpoints(4, **options)
    with pytest.raises(ArgumentError, match="100 hosts fail every 36 s, so that a job that stops 20 s"):
        checkpoints(100, failures=3600.0, writing=20.0)


def test_the_slowest_of_many():
    rng = np.random.default_rng(0)
    for count in (1, 2, 8, 64):
        drawn = rng.standard_normal((20_000, count)).max(axis=1)
        assert slowest_of(count) == pytest.approx(drawn.mean(), abs=4 / math.sqrt(20_000))
    assert slowest_of(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    found = simulate(STEP, Cluster(2, 1, Link(0, math.inf)), Exchange(jitter=0.1))
    assert found.step == pytest.approx(11 * (1 + 0.1 / math.sqrt(math.pi)))
    assert simulate(STEP, Cluster(1, 1, LINK), Exchange(jitter=0.1)).step == 11


def by_ticks(times, seconds, buckets, rates, *, overlap, tick):
    """Both lanes in small ticks: what works, works at a rate; nothing else is known in advance."""
    work, calls, sent = list(times.work), 0, 0
    left_call, left_bucket = None, None
    made, done, now = set(), set(), 0.0
    while calls < len(work) or sent < len(buckets):
        if left_bucket is None and sent < len(buckets) and set(buckets[sent]) <= made:
            left_bucket = seconds[sent]
        stopped = left_bucket is not None and not overlap
        if left_call is None and calls < len(work) and not stopped and set(work[calls].needs) <= done:
            left_call = work[calls].seconds
        both = left_call is not None and left_bucket is not None
        moved = tick * rates[both]
        if left_call is not None:
            left_call -= moved
            if left_call <= 1e-9:
                made |= {name for name, _ in work[calls].ready}
                left_call, calls = None, calls + 1
        if left_bucket is not None:
            left_bucket -= moved
            if left_bucket <= 1e-9:
                done |= set(buckets[sent])
                left_bucket, sent = None, sent + 1
        now += tick
    return now


@st.composite
def steps(draw):
    count = draw(st.integers(1, 6))
    rows = [(draw(st.integers(0, 4)),)]
    rows += [(draw(st.integers(0, 4)), f"g{i}", draw(st.integers(0, 5))) for i in range(count)]
    order = draw(st.permutations(range(count)))
    rows += [(draw(st.integers(0, 2)), (f"g{i}",)) for i in order]
    return step(*rows)


@settings(max_examples=60, deadline=None)
@given(times=steps(), bucket=st.integers(0, 8), overlap=st.booleans(), cores=st.sampled_from([None, 2, 3, 4]))
def test_the_events_are_those_of_small_ticks(times, bucket, overlap, cores):
    exchange = Exchange(bucket_bytes=bucket * MB, overlap=overlap)
    found = simulate(times, Cluster(2, 1, LINK, cores=cores), exchange)
    sent = [each.gradients for each in found.buckets]
    seconds = [each.nbytes / MB for each in found.buckets]
    both = 1.0 if cores is None else min(1.0, cores / 4)
    tick = 1 / 32
    slow = by_ticks(times, seconds, sent, {False: 1.0, True: both}, overlap=overlap, tick=tick)
    assert found.step == pytest.approx(slow, abs=2 * tick * (len(times.work) + len(sent) + 1))
    assert found.step >= max(times.seconds, sum(seconds)) - 1e-9
    assert found.step <= times.seconds + sum(seconds) + 1e-9


@given(sizes=st.lists(st.integers(0, 50), max_size=30), limit=st.integers(0, 100))
def test_buckets_are_those_of_parallelize(sizes, limit):
    gradients = [(f"g{i}", size) for i, size in enumerate(sizes)]
    net = NetDef(op=[make_op("Copy", ["x"], [name]) for name, _ in gradients])
    made = buckets(net, [(name,) for name, _ in gradients], dict(gradients), limit)
    found = [tuple(name for (name,) in groups) for _, groups in made]
    assert found == [bucket.gradients for bucket in make_buckets(gradients, limit)]


def test_records():
    full = dataclasses.replace(STEP, statistics_bytes=7, memory_bytes=9, shapes={"c": (2, 3)})
    for times in (STEP, full):
        assert StepTimes.from_dict(json.loads(json.dumps(times.to_dict()))) == times
    found = simulate(STEP, Cluster(2, 2, LINK), EACH).to_dict()
    assert json.loads(json.dumps(found)) == {**found, "buckets": json.loads(json.dumps(found["buckets"]))}
    assert found["size"] == 4 and found["efficiency"] == pytest.approx(11 / found["step"])
    for record in ([], {}, {"work": [{}]}, {"work": [{"name": "a", "seconds": "?"}]}):
        with pytest.raises(ArgumentError, match="step times: a record needs 'work'"):
            StepTimes.from_dict(record)


def test_another_device():
    fast = STEP.scaled(step=5.5)
    assert [work.seconds for work in fast.work] == pytest.approx([work.seconds / 2 for work in STEP.work])
    uneven = STEP.scaled(step=11, backward=10)  # of 5 s, from the first gradient to the last
    assert [work.seconds for work in uneven.work] == pytest.approx([0.5, 4, 4, 2, 1 / 6, 1 / 6, 1 / 6])
    for options in ({"step": 0.0}, {"step": 1.0, "backward": 2.0}, {"backward": -1.0}):
        with pytest.raises(ArgumentError, match="its backward pass no longer"):
            STEP.scaled(**options)


@pytest.mark.parametrize(
    "work, match",
    [
        ([TimedWork("a", -1.0)], "'a' must take 0 or more seconds, got -1.0"),
        ([TimedWork("a", math.nan)], "'a' must take 0 or more seconds"),
        ([TimedWork("a", 1.0, needs=frozenset("g"))], "'a' needs the gradient 'g' before it is ready"),
        ([TimedWork("a", 1.0, ready=(("g", 4), ("g", 4)))], "gradient 'g' must become ready once"),
        ([TimedWork("a", 1.0, ready=(("g", -4),))], "with 0 or more bytes, got -4 bytes in 'a'"),
    ],
)
def test_steps_that_are_refused(work, match):
    with pytest.raises(ArgumentError, match=match):
        StepTimes(tuple(work))


@pytest.mark.parametrize(
    "options, match",
    [
        ({"bucket_bytes": -1}, "bucket_bytes must be 0 or more, got -1"),
        ({"header_bytes": -1}, "header_bytes must be 0 or more"),
        ({"jitter": math.inf}, "jitter must be 0 or more, got inf"),
        (
            {"strategy": Threshold(0.1)},
            "strategy 'threshold:0.1' cannot be simulated; plain, half, topk, powersgd, local",
        ),
    ],
)
def test_exchanges_that_are_refused(options, match):
    with pytest.raises(ArgumentError, match=match):
        Exchange(**options)


def test_published_figures():
    goyal = PUBLISHED["goyal2017"]
    assert [goyal.efficiency(seconds) for _, seconds in goyal.steps] == pytest.approx([1, 0.9], abs=0.01)
    assert [(goyal.cluster(n).devices, goyal.cluster(n).hosts) for n in (1, 8, 256)] == [(1, 1), (8, 1), (8, 32)]
    # The paper's estimate: the exchange sends and receives twice the gradients' bytes during the backward pass.
    times = step((0.14,), *((0.0012, f"g{i}", 1) for i in range(100))).scaled(backward=0.12)
    found = simulate(times, goyal.cluster(256), goyal.exchange)
    rate = 2 * goyal.gradient_bytes / goyal.backward
    assert rate * 8 == pytest.approx(12.8e9, rel=0.05) and rate < goyal.between.bandwidth
    assert found.exchange < goyal.backward and found.efficiency > 0.95
    assert dataclasses.replace(goyal, devices=4).cluster(256).hosts == 64
