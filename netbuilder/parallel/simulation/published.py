"""Published figures of data-parallel training, to compare predictions with."""

from __future__ import annotations

from netbuilder.parallel.simulation.allreduce import Cluster
from netbuilder.parallel.simulation.links import Link
from netbuilder.parallel.simulation.simulate import Exchange
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["PUBLISHED", "Published"]


@dataclass(frozen=True)
class Published:
    """Training that others measured.

    Args:
        source: where the figures are from.
        net: name of the net in our zoo.
        batch: samples of each device.
        devices: of each host.
        backward: seconds of the backward pass on one device.
        gradient_bytes: of all gradients, in float32.
        between: the link of a host; the source has its bandwidth, the latency is an assumption.
        inside: the link between the devices of a host; both numbers are assumptions.
        steps: (number of devices, seconds of a step), the first of them on one host.
        exchange: how gradients are exchanged there.
    """

    source: str
    net: str
    batch: int
    devices: int
    backward: float
    gradient_bytes: float
    between: Link
    inside: Link
    steps: tuple[tuple[int, float], ...]
    exchange: Exchange

    def cluster(self, size: int) -> Cluster:
        """Return so many devices on hosts as in the source."""
        devices = min(size, self.devices)
        return Cluster(devices, max(1, size // self.devices), self.inside, self.between, "hierarchical")

    def efficiency(self, seconds: float) -> float:
        """Return the efficiency of a step, relative to the first published one."""
        return self.steps[0][1] / seconds


PUBLISHED = {
    "goyal2017": Published(
        source="Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, 2017, arXiv:1706.02677, "
        "sections 4 and 5.5: Caffe2, 8 P100 a server with NVLink, 50 Gbit/s Ethernet",
        net="resnet50",
        batch=32,
        devices=8,
        backward=0.12,
        gradient_bytes=100e6,
        between=Link(20e-6, 6.25e9),
        inside=Link(10e-6, 20e9),
        steps=((8, 0.26), (256, 0.29)),
        exchange=Exchange(bucket_bytes=0),  # each gradient by itself, as soon as it is ready
    )
}
"""Name -> published figures."""
