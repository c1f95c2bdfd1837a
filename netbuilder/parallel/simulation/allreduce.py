"""Times of an allreduce over the processes of a cluster, by the alpha-beta model, for each algorithm."""

from __future__ import annotations

import math

from netbuilder.parallel.simulation.links import Link
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ALGORITHMS", "Cluster", "allgather_seconds", "allreduce_seconds"]

ALGORITHMS = ("ring", "tree", "halving", "blocks", "hierarchical")
"""Names of the algorithms, see ``allreduce_seconds``."""


@dataclass(frozen=True)
class Cluster:
    """Hosts with the same number of devices; each device has a process of its own, or its own lane of one.

    Args:
        devices: of each host.
        hosts: number of hosts.
        inside: the link between two devices of a host.
        between: the link of a host to the others, which its devices share; None: as inside.
        algorithm: of the allreduce, one of ``ALGORITHMS``.
        reduce_bandwidth: bytes of a value that a process adds to another one per second; inf: it takes no time, or
            the bandwidths of the links include it, as those that are measured by allreduces do.
        cores: of each host; None: computing and exchanging do not compete for them, as with devices that compute by
            themselves.
        threads: that compute, for each device.
        memory_bandwidth: of each host, bytes read and written per second; None: enough for all devices at a time.
        speeds: how fast the devices of each host compute, 1 as in the measured step; () all so.

    Raises:
        ArgumentError: a number is not positive, or there is no such algorithm.
    """

    devices: int
    hosts: int
    inside: Link
    between: Link | None = None
    algorithm: str = "ring"
    reduce_bandwidth: float = math.inf
    cores: int | None = None
    threads: int = 1
    memory_bandwidth: float | None = None
    speeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("devices", "hosts", "reduce_bandwidth", "cores", "threads", "memory_bandwidth"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ArgumentError(f"cluster: {name} must be more than 0, got {value}")
        if self.speeds and (len(self.speeds) != self.hosts or not min(self.speeds) > 0):
            raise ArgumentError(
                f"cluster: speeds must be a number of more than 0 for each of the {self.hosts} hosts, got "
                f"{list(self.speeds)}"
            )
        if self.algorithm not in ALGORITHMS:
            raise ArgumentError(
                f"cluster: unknown algorithm {self.algorithm!r} of the allreduce; known are {', '.join(ALGORITHMS)}"
            )

    @property
    def size(self) -> int:
        """Number of devices of all hosts."""
        return self.devices * self.hosts

    @property
    def across(self) -> Link:
        """The link between hosts."""
        return self.between or self.inside


def allreduce_seconds(cluster: Cluster, nbytes: float) -> float:
    """Return the seconds of an allreduce of a value of so many bytes.

    With p processes, n bytes, the latency a and bandwidth B of a link, and c seconds for each byte that is added:

    - "ring": 2 (p - 1) a + 2 (p - 1)/p n/B + (p - 1)/p n c. The ring goes through the devices of one host after the
      other, so each of its 2 (p - 1) rounds takes as long as its slowest link.
      Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal of
      Parallel and Distributed Computing 69 (2), 2009.
    - "tree": ceil(log2 p) (2 a + 2 n/B + n c): sums go up a binomial tree, results down, inside the hosts and then
      between their first devices.
    - "halving": 2 log2(p) a + 2 (p - 1)/p n/B + (p - 1)/p n c: the values are halved from round to round between ever
      more distant devices, and doubled on the way back. Where p is not a power of two, as many devices as exceed it
      first give their values to a neighbour and get the result in the end: 2 a + 2 n/B + n c more. The devices of a
      host share its link.
      Source of both: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
      International Journal of High Performance Computing Applications 19 (1), 2005.
    - "blocks": "halving" for any p, in blocks of the powers of two that add up to p. Each block halves by itself; then
      the sums of the smallest block go to the next larger one, and so on, and results come back the same way. With two
      blocks, of which the smaller one has q devices and the larger one r times as many, that is the time of "halving"
      in the larger one and 2 (n/q/B + r a) + n/q/r c. Source: Rabenseifner and Traff, "More efficient reduction
      algorithms for non-power-of-two number of processors in message-passing parallel systems", EuroPVM/MPI 2004, LNCS
      3241.
    - "hierarchical": a ring inside each host leaves every device with the sum of one part, "blocks" over the hosts
      sums these parts on the shared link of each host, and a ring inside each host distributes them:
      2 (d - 1) a + 2 (d - 1)/d n/B + (d - 1)/d n c inside, for d devices, and "blocks" of n bytes between the hosts.
      Source: Goyal et al., "Accurate, large minibatch SGD", 2017, arXiv:1706.02677, section 4.
    """
    if cluster.size == 1:
        return 0.0
    inside, between, adding = cluster.inside, cluster.across, nbytes / cluster.reduce_bandwidth
    if cluster.algorithm == "ring":
        slowest = [inside] * (cluster.devices > 1) + [between] * (cluster.hosts > 1)
        rounds, part = 2 * (cluster.size - 1), nbytes / cluster.size
        transfer = max(link.latency + part / link.bandwidth_at(nbytes) for link in slowest)
        return rounds * transfer + (cluster.size - 1) / cluster.size * adding
    if cluster.algorithm == "tree":
        return _tree(cluster.devices, inside, nbytes, adding) + _tree(cluster.hosts, between, nbytes, adding)
    of = {"halving": (_halving, _halving), "blocks": (_blocks, _blocks), "hierarchical": (_ring, _blocks)}
    within, over = of[cluster.algorithm]
    # Each device sums its part over the hosts: adding takes a share, but the parts of a host share its link.
    return within(cluster.devices, inside, nbytes, adding) + over(
        cluster.hosts, between, nbytes, adding / cluster.devices
    )


def allgather_seconds(cluster: Cluster, nbytes: float) -> float:
    """Return the seconds of a ring that gives so many bytes of each device to all: p - 1 rounds of the slowest link."""
    if cluster.size == 1:
        return 0.0
    links = [cluster.inside] * (cluster.devices > 1) + [cluster.across] * (cluster.hosts > 1)
    return (cluster.size - 1) * max(link.latency + nbytes / link.bandwidth_at(nbytes) for link in links)


def _ring(p: int, link: Link, nbytes: float, adding: float) -> float:
    share = (p - 1) / p
    return 2 * (p - 1) * link.latency + 2 * share * nbytes / link.bandwidth_at(nbytes) + share * adding


def _tree(p: int, link: Link, nbytes: float, adding: float) -> float:
    rounds = (p - 1).bit_length()
    return rounds * (2 * (link.latency + nbytes / link.bandwidth_at(nbytes)) + adding)


def _halving(p: int, link: Link, nbytes: float, adding: float) -> float:
    rounds = p.bit_length() - 1
    share = 1 - 0.5**rounds
    seconds = 2 * rounds * link.latency + 2 * share * nbytes / link.bandwidth_at(nbytes) + share * adding
    if p > 1 << rounds:
        seconds += 2 * (link.latency + nbytes / link.bandwidth_at(nbytes)) + adding
    return seconds


def _blocks(p: int, link: Link, nbytes: float, adding: float) -> float:
    sizes = [1 << k for k in reversed(range(p.bit_length())) if p >> k & 1]
    transfer = nbytes / link.bandwidth_at(nbytes)

    def gather(size: int) -> float:
        return (size.bit_length() - 1) * link.latency + (1 - 1 / size) * transfer

    moves = [larger // size * (link.latency + transfer / larger) for larger, size in zip(sizes, sizes[1:])]
    done = gather(sizes[-1]) + (1 - 1 / sizes[-1]) * adding
    for larger, move in reversed([*zip(sizes, moves)]):
        done = max(gather(larger) + (1 - 1 / larger) * adding, done) + move + adding / larger
    ends = []
    for size, move in zip(sizes, [*moves, 0.0]):
        done += move  # a block sends its results on, and then gathers its own
        ends.append(done + gather(size))
    return max(ends)
