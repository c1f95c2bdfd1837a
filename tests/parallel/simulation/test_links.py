"""Links: their texts and records, and what a sweep of allreduces says about one."""

import json

import numpy as np
import pytest

from netbuilder.parallel.simulation.allreduce import Cluster, allreduce_seconds
from netbuilder.parallel.simulation.links import Link, bandwidth_of, seconds_of
from netbuilder.parallel.simulation.sweep import SIZES, fit_link, sweep_allreduce
from netbuilder.proto import ArgumentError


@pytest.mark.parametrize(
    "text, latency, bandwidth",
    [
        ("20us:50Gbit/s", 20e-6, 6.25e9),
        (" 1.5 ms : 12 GB/s ", 1.5e-3, 12e9),
        ("0s:1MiB/s", 0.0, 2.0**20),
        ("200ns:100b/s", 200e-9, 12.5),
        ("1e-3s:2.5e2kB/s", 1e-3, 2.5e5),
    ],
)
def test_texts(text, latency, bandwidth):
    link = Link.parse(text)
    assert link.latency == pytest.approx(latency, rel=1e-12)
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-12)


@pytest.mark.parametrize(
    "text, match",
    [
        ("50Gbit/s", "LATENCY:BANDWIDTH, such as 20us:50Gbit/s, got '50Gbit/s'"),
        ("20:50Gbit/s", "a time must be a number of s, ms, us or ns, such as 20us, got '20'"),
        ("-1us:50Gbit/s", "a time must be a number"),
        ("nanus:50Gbit/s", "a time must be a number"),
        ("1us:50G", "a bandwidth must be a number of bit/s or B/s, such as 50Gbit/s or 12GB/s, got '50G'"),
        ("1us:0GB/s", "a bandwidth must be a number"),
        ("1us:1e999GB/s", "a bandwidth must be a number"),
    ],
)
def test_texts_that_are_refused(text, match):
    with pytest.raises(ArgumentError, match=match):
        Link.parse(text)


def test_units():
    assert [seconds_of(text) for text in ("3s", "3ms", "3us", "3ns")] == pytest.approx([3, 3e-3, 3e-6, 3e-9])
    assert bandwidth_of("8Mbit/s") == bandwidth_of("1MB/s") == 1e6


@pytest.mark.parametrize(
    "arguments, match",
    [
        ((-1e-6, 1e9), "latency must be 0 or more seconds, got -1e-06"),
        ((float("nan"), 1e9), "latency must be 0 or more"),
        ((0.0, 0.0), "more than 0 bytes per second, got 0.0"),
        ((0.0, 1.0, ((10.0, -1.0),)), "more than 0 bytes per second, got -1.0"),
        ((0.0, 1.0, ((10.0, 1.0), (10.0, 1.0))), r"positive and ascending, got \[10.0, 10.0\]"),
        ((0.0, 1.0, ((0.0, 1.0),)), "positive and ascending"),
    ],
)
def test_links_that_are_refused(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        Link(*arguments)


def test_the_curve_is_interpolated_over_the_logarithm_of_the_size():
    link = Link(0.0, 7.0, ((100.0, 10.0), (10_000.0, 30.0)))
    assert [link.bandwidth_at(n) for n in (0, 1, 100, 1000, 10_000, 1e9)] == pytest.approx([10, 10, 10, 20, 30, 30])
    assert Link(0.0, 7.0).bandwidth_at(1e6) == 7.0


def test_records():
    link = Link(1e-6, 2e9, ((1024.0, 5e9), (2048.0, 2e9)))
    assert Link.from_dict(json.loads(json.dumps(link.to_dict()))) == link
    assert str(link) == "1 us, 2 to 5 GB/s by size" and str(Link(2e-5, 6.25e9)) == "20 us, 6.25 GB/s"
    for record in ({}, {"latency": 1}, {"latency": 0, "bandwidth": "x"}, {"latency": 0, "bandwidth": 1, "curve": [3]}):
        with pytest.raises(ArgumentError, match="a link's record needs 'latency' and 'bandwidth'"):
            Link.from_dict(record)


class Simulated:
    """A world whose clock goes on by a formula's time in each allreduce."""

    def __init__(self, cluster):
        self.cluster, self.size, self.now, self.calls = cluster, cluster.size, 0.0, []

    def allreduce(self, array):
        assert array.dtype == np.float32
        self.calls.append(array.nbytes)
        self.now += allreduce_seconds(self.cluster, array.nbytes)

    def barrier(self):
        self.now += 1.0  # must not be counted

    def clock(self):
        return self.now


@pytest.mark.parametrize("processes", [2, 3, 4, 16])
def test_a_sweep_finds_the_link_it_was_measured_on(processes):
    world = Simulated(Cluster(processes, 1, Link(5e-6, 2e9)))
    points = sweep_allreduce(world, repeats=3, clock=world.clock)
    assert [size for size, _ in points] == list(SIZES)
    found = fit_link(points, processes)
    again = Cluster(processes, 1, found)
    # The smallest value takes its bandwidth's time, too, which counts as latency.
    assert found.latency == pytest.approx(5e-6 + 1024 / processes / 2e9, rel=1e-6)
    for size, seconds in points:
        assert allreduce_seconds(again, size) == pytest.approx(seconds, rel=0.05)
    for nbytes in (3e5, 1e7, 5e8):
        assert allreduce_seconds(again, nbytes) == pytest.approx(allreduce_seconds(world.cluster, nbytes), rel=0.02)


def test_a_sweep_in_the_memory_of_a_host_is_a_curve():
    cluster = Cluster(2, 1, Link(1e-6, 1e9, ((65536.0, 4e9), (2.0**20, 3e9), (2.0**27, 6e8))))
    world = Simulated(cluster)
    found = fit_link(sweep_allreduce(world, repeats=1, clock=world.clock), 2)
    for nbytes in (2.0**16, 2.0**20, 2.0**23, 2.0**27):
        assert found.bandwidth_at(nbytes) == pytest.approx(cluster.inside.bandwidth_at(nbytes), rel=0.02)


def test_sums_of_small_values_are_repeated():
    world = Simulated(Cluster(2, 1, Link(1e-6, 1e9)))
    sweep_allreduce(world, [1024, 1 << 19, 1 << 24], repeats=3, clock=world.clock)
    assert [world.calls.count(size) for size in (1024, 1 << 19, 1 << 24)] == [1 + 3 * 50, 1 + 3 * 2, 1 + 3]


def test_a_single_size_is_enough():
    link = fit_link([(1 << 20, 1e-3)], 2)
    assert link.latency == 0 and allreduce_seconds(Cluster(2, 1, link), 1 << 20) == pytest.approx(1e-3)
    assert allreduce_seconds(Cluster(2, 1, fit_link([(1024, 1e-5)], 2)), 1024) <= 2e-5


def test_what_a_sweep_refuses():
    with pytest.raises(ArgumentError, match="between two processes or more; run it by mpiexec -n 2"):
        sweep_allreduce(Simulated(Cluster(1, 1, Link(0, 1))))
    world = Simulated(Cluster(2, 1, Link(0, 1)))
    with pytest.raises(ArgumentError, match=r"sizes of a sweep must be 4 or more bytes, got \[2\]"):
        sweep_allreduce(world, [2])
    for points, processes in (([], 2), ([(1024, 0.0)], 2), ([(1024, 1.0)], 1)):
        with pytest.raises(ArgumentError, match="with positive times"):
            fit_link(points, processes)
