"""Formulas of allreduces: computed by hand, and against the algorithms run message by message on values."""

import math

import numpy as np
import pytest

from netbuilder.parallel.simulation.allreduce import (
    ALGORITHMS,
    Cluster,
    allgather_seconds,
    allreduce_seconds,
)
from netbuilder.parallel.simulation.links import Link
from netbuilder.proto import ArgumentError

INSIDE, BETWEEN = Link(2e-6, 1e10), Link(3e-5, 1e9)


def test_ring_by_hand():
    # 4 processes: 6 rounds of 10 us and 25 MB / (1 GB/s); three quarters of 100 MB added at 10 GB/s.
    cluster = Cluster(4, 1, Link(10e-6, 1e9), reduce_bandwidth=1e10)
    assert allreduce_seconds(cluster, 100e6) == pytest.approx(6 * 10e-6 + 6 * 0.025 + 0.75 * 0.01)


def test_tree_by_hand():
    # 5 processes: 3 rounds up and 3 down.
    cluster = Cluster(5, 1, Link(10e-6, 1e9), algorithm="tree", reduce_bandwidth=1e9)
    assert allreduce_seconds(cluster, 1e6) == pytest.approx(6 * (10e-6 + 1e-3) + 3 * 1e-3)


def test_halving_by_hand():
    # 8 processes: 3 rounds there and back, with a half, a quarter and an eighth.
    cluster = Cluster(8, 1, Link(10e-6, 1e9), algorithm="halving")
    assert allreduce_seconds(cluster, 8e6) == pytest.approx(6 * 10e-6 + 2 * 7e-3)
    # 6: two of them give all they have to a neighbour first, and 4 are left.
    cluster = Cluster(6, 1, Link(10e-6, 1e9), algorithm="halving", reduce_bandwidth=8e9)
    assert allreduce_seconds(cluster, 8e6) == pytest.approx(4 * 10e-6 + 12e-3 + 0.75e-3 + 2 * (10e-6 + 8e-3) + 1e-3)


def test_hierarchical_by_hand():
    # 8 GPUs with 20 GB/s between them on each of 32 hosts with 50 Gbit/s: the published system.
    cluster = Cluster(8, 32, Link(10e-6, 20e9), Link(20e-6, 6.25e9), "hierarchical")
    inside = 14 * 10e-6 + 2 * 7 / 8 * 100e6 / 20e9
    between = 10 * 20e-6 + 2 * 31 / 32 * 100e6 / 6.25e9
    assert allreduce_seconds(cluster, 100e6) == pytest.approx(inside + between)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_process_exchanges_nothing(algorithm):
    assert allreduce_seconds(Cluster(1, 1, INSIDE, algorithm=algorithm), 1e9) == 0.0


class Machine:
    """Processes with values and clocks, that send one another parts in rounds; those of a host share its link."""

    def __init__(self, cluster, count):
        self.cluster = cluster
        rng = np.random.default_rng(0)
        self.values = rng.integers(-100, 100, (cluster.size, count)).astype(np.float64)
        self.expected = self.values.sum(axis=0)
        self.clocks = [0.0] * cluster.size

    def round(self, messages, add):
        """Deliver (source, target, part of the value) at the same time; a process sends and receives at a time."""
        sent = [(target, part, self.values[source, part].copy()) for source, target, part in messages]
        leaving = {}
        for source, target, part in messages:
            hosts = source // self.cluster.devices, target // self.cluster.devices
            if hosts[0] != hosts[1]:
                leaving[hosts[0]] = leaving.get(hosts[0], 0) + self.values[source, part].nbytes
        ends = dict.fromkeys((end for source, target, _ in messages for end in (source, target)), 0.0)
        began = max(self.clocks[end] for end in ends)
        for source, target, part in messages:
            nbytes = self.values[source, part].nbytes
            host = source // self.cluster.devices
            apart = host != target // self.cluster.devices
            link = self.cluster.across if apart else self.cluster.inside
            took = link.latency + (leaving[host] if apart else nbytes) / link.bandwidth
            for end in (source, target):
                ends[end] = max(ends[end], took)
        for target, part, values in sent:
            if add:
                self.values[target, part] += values
                ends[target] += values.nbytes / self.cluster.reduce_bandwidth
            else:
                self.values[target, part] = values
        for end, took in ends.items():
            self.clocks[end] = began + took

    def seconds(self):
        assert all(np.array_equal(row, self.expected) for row in self.values)
        return max(self.clocks)


def run_ring(machine, members=None, *, whole=True):
    members = members or list(range(machine.cluster.size))
    p, n = len(members), machine.values.shape[1]
    part = [slice(i * n // p, (i + 1) * n // p) for i in range(p)]
    for k in range(p - 1):
        yield [(members[i], members[(i + 1) % p], part[(i - k) % p]) for i in range(p)], True
    if whole:
        for k in range(p - 1):
            yield [(members[i], members[(i + 1) % p], part[(i + 1 - k) % p]) for i in range(p)], False


def tree_rounds(members):
    """The binomial tree's rounds, up to the first member."""
    stride, rounds = 1, []
    while stride < len(members):
        rounds.append([(members[i + stride], members[i]) for i in range(0, len(members) - stride, 2 * stride)])
        stride *= 2
    return rounds


def run_tree(machine):
    d, every = machine.cluster.devices, slice(None)
    hosts = [tree_rounds(list(range(h * d, (h + 1) * d))) for h in range(machine.cluster.hosts)]
    up = [sum(rounds, []) for rounds in zip(*hosts)] + tree_rounds(list(range(0, machine.cluster.size, d)))
    for messages in up:
        yield [(source, target, every) for source, target in messages], True
    for messages in reversed(up):
        yield [(target, source, every) for source, target in messages], False


def run_halving(machine):
    """Powers of two: exchange halves with ever more distant processes, and back."""
    p, n = machine.cluster.size, machine.values.shape[1]
    parts = [(0, n)] * p
    steps = []
    distance = 1
    while distance < p:
        halves = [((a, (a + b) // 2), ((a + b) // 2, b)) for a, b in parts]
        keep = [halves[i][1 if i & distance else 0] for i in range(p)]
        yield [(i, i ^ distance, slice(*keep[i ^ distance])) for i in range(p)], True
        steps.append(distance)
        parts, distance = keep, 2 * distance
    for distance in reversed(steps):
        yield [(i, i ^ distance, slice(*parts[i])) for i in range(p)], False
        parts = [(min(parts[i][0], parts[i ^ distance][0]), max(parts[i][1], parts[i ^ distance][1]))
                 for i in range(p)]  # fmt: skip


def run_blocks(machine):
    """Each block of a power of two halves; sums go from smaller blocks to larger ones, and results back."""
    p, n = machine.cluster.size, machine.values.shape[1]
    sizes = [1 << k for k in reversed(range(p.bit_length())) if p >> k & 1]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    down, parts = {}, {}
    for start, size in zip(starts, sizes):
        own, distance = {start + i: (0, n) for i in range(size)}, 1
        while distance < size:
            keep = {r: ((a + b) // 2, b) if (r - start) & distance else (a, (a + b) // 2) for r, (a, b) in own.items()}
            other = {r: start + ((r - start) ^ distance) for r in own}
            yield [(r, other[r], slice(*keep[other[r]])) for r in own], True
            down.setdefault(start, []).append(other)
            own, distance = keep, 2 * distance
        parts.update(own)
    chain = []
    for small, large in reversed([*zip(range(1, len(sizes)), range(len(sizes)))]):
        ratio = sizes[large] // sizes[small]
        pairs = [
            [r for r in range(starts[large], starts[large] + sizes[large]) if a <= parts[r][0] < b]
            for a, b in (parts[q] for q in range(starts[small], starts[small] + sizes[small]))
        ]
        for k in range(ratio):
            messages = [(starts[small] + q, to[k], slice(*parts[to[k]])) for q, to in enumerate(pairs)]
            yield messages, True
            chain.append([(target, source, part) for source, target, part in messages])
    for messages in reversed(chain):
        yield messages, False
    for others in reversed(down.values()):
        own = {r: part for r, part in parts.items() if r in others[0]}
        for other in reversed(others):
            yield [(r, other[r], slice(*own[r])) for r in own], False
            own = {r: (min(own[r][0], own[other[r]][0]), max(own[r][1], own[other[r]][1])) for r in own}


def run_hierarchical(machine):
    """A ring's first half inside each host, halving over the hosts for each part, the ring's second half."""
    d, h = machine.cluster.devices, machine.cluster.hosts
    hosts = [list(run_ring(machine, list(range(k * d, (k + 1) * d)))) for k in range(h)]
    rounds = [(sum((messages for messages, _ in each), []), each[0][1]) for each in zip(*hosts)]
    yield from rounds[: d - 1]
    n, distance, steps = machine.values.shape[1], 1, []
    parts = {k * d + i: (j * n // d, (j + 1) * n // d) for k in range(h) for i in range(d) for j in [(i + 1) % d]}
    while distance < h:
        keep = {r: ((a + b) // 2, b) if r // d & distance else (a, (a + b) // 2) for r, (a, b) in parts.items()}
        other = {r: (r // d ^ distance) * d + r % d for r in parts}
        yield [(r, other[r], slice(*keep[other[r]])) for r in parts], True
        steps.append(other)
        parts, distance = keep, 2 * distance
    for other in reversed(steps):
        yield [(r, other[r], slice(*parts[r])) for r in parts], False
        parts = {r: (min(parts[r][0], parts[other[r]][0]), max(parts[r][1], parts[other[r]][1])) for r in parts}
    yield from rounds[d - 1 :]


RUNS = {
    "ring": run_ring,
    "tree": run_tree,
    "halving": run_halving,
    "blocks": run_blocks,
    "hierarchical": run_hierarchical,
}
POWERS = [(2, 1), (4, 1), (8, 1), (1, 2), (1, 8), (2, 2), (4, 2), (2, 4), (8, 4)]


@pytest.mark.parametrize(
    "algorithm, devices, hosts",
    [(name, d, h) for name in ALGORITHMS for d, h in POWERS if name != "blocks" or 1 in (d, h)]
    + [("blocks", d, h) for d, h in [(3, 1), (6, 1), (7, 1), (1, 12), (1, 13)]]
    + [(name, d, h) for name in ("ring", "tree") for d, h in [(3, 1), (5, 1), (1, 3), (3, 2), (2, 3), (6, 5)]]
    + [("hierarchical", 3, 2), ("hierarchical", 5, 4)],
)
def test_the_algorithms_run_message_by_message(algorithm, devices, hosts):
    cluster = Cluster(devices, hosts, INSIDE, BETWEEN, algorithm, reduce_bandwidth=5e9)
    machine = Machine(cluster, 960 * math.lcm(devices, 8))
    for messages, add in RUNS[algorithm](machine):
        machine.round(messages, add)
    nbytes = machine.values.shape[1] * 8
    assert allreduce_seconds(cluster, nbytes) == pytest.approx(machine.seconds(), rel=1e-9)


def test_few_links_between_hosts_are_used_once_by_all_their_devices():
    one, many = (Cluster(d, 4, Link(0, math.inf), Link(0, 1e9), "hierarchical") for d in (1, 8))
    assert allreduce_seconds(one, 1e9) == pytest.approx(allreduce_seconds(many, 1e9))


def test_an_allgather_by_hand():
    cluster = Cluster(2, 5, Link(1e-6, 1e10), Link(1e-5, 1e9))
    assert allgather_seconds(cluster, 1e6) == pytest.approx(9 * (1e-5 + 1e-3))
    assert allgather_seconds(Cluster(1, 1, INSIDE), 1e6) == 0


def test_twelve_hosts_are_no_slower_than_by_a_ring_and_its_extra_messages():
    halving, blocks, ring = (Cluster(1, 12, INSIDE, BETWEEN, name) for name in ("halving", "blocks", "ring"))
    assert allreduce_seconds(blocks, 1e8) < 0.65 * allreduce_seconds(halving, 1e8)
    assert allreduce_seconds(blocks, 1e8) < 1.25 * allreduce_seconds(ring, 1e8)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"speeds": (1.0,)}, "speeds must be a number of more than 0 for each of the 2 hosts"),
        ({"speeds": (1.0, 0.0)}, "speeds must be a number of more than 0 for each of the 2 hosts"),
        ({"devices": 0}, "devices must be more than 0, got 0"),
        ({"hosts": -1}, "hosts must be more than 0, got -1"),
        ({"cores": 0}, "cores must be more than 0, got 0"),
        ({"threads": 0}, "threads must be more than 0"),
        ({"reduce_bandwidth": 0.0}, "reduce_bandwidth must be more than 0"),
        ({"memory_bandwidth": float("nan")}, "memory_bandwidth must be more than 0, got nan"),
        ({"algorithm": "star"}, "unknown algorithm 'star' of the allreduce; known are ring, tree, halving, blocks"),
    ],
)
def test_clusters_that_are_refused(options, match):
    with pytest.raises(ArgumentError, match=match):
        Cluster(**{"devices": 2, "hosts": 2, "inside": INSIDE, **options})
