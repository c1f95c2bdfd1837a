"""How a subgraph runs on several devices at the same time: a share of the batch on each, with merged outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Distributed", "Merged", "Replication", "share_sizes"]

_MOST = 1_000_000  # shares, of all devices and micro-batches


def share_sizes(samples: int, shares: int) -> list[int]:
    """Return the number of samples of each share: equal, except that the first ones may have one more.

    Raises:
        ArgumentError: there are no shares, or more than a million, or the number of samples is negative.

    >>> share_sizes(7, 3), share_sizes(2, 3)
    ([3, 2, 2], [1, 1, 0])
    """
    if samples < 0 or not 1 <= shares <= _MOST:
        raise ArgumentError(
            f"share_sizes: samples must not be negative, and shares must be 1 to {_MOST:,}; got samples={samples:,} "
            f"and shares={shares:,}"
        )
    base, more = divmod(samples, shares)
    return [base + (number < more) for number in range(shares)]


@dataclass(frozen=True)
class Distributed:
    """How the devices get an input of a subgraph.

    Args:
        outer: the blob outside.
        inner: its name in the subgraph.
        mode: "split": rows along axis 0, in the order of the devices; "whole": all devices read the blob outside;
            "scaled": the blob outside times the fraction of the batch that the device has; "updated": the first device
            works on the blob outside, each other one on a copy of its own.
        rows: for "split", the number of rows of each device.
    """

    outer: str
    inner: str
    mode: Literal["split", "whole", "scaled", "updated"]
    rows: Sequence[int] = ()


@dataclass(frozen=True)
class Merged:
    """How an output is made of the results of all devices.

    Args:
        outer: the blob outside.
        inner: the name of the result in the subgraph.
        mode: "concat": the rows of all devices; "sum"; "mean": the sum of the results, each times the fraction of the
            batch that its device has; "updated": the blob that the first device has changed (see ``Distributed``).
        rows: for "concat", the blob outside that gets the number of rows of each device.
    """

    outer: str
    inner: str
    mode: Literal["concat", "sum", "mean", "updated"]
    rows: str = ""


@dataclass(frozen=True)
class Replication:
    """The devices that run a subgraph, and what comes and goes.

    Args:
        device_type: PROTO_CPU or PROTO_CUDA.
        devices: the devices in use, one for each share.
        shares: the number of samples of each.
        inputs, outputs: of the subgraph.
        kept: further blobs of the subgraph, whose values on all devices are read when it has run.
        use_nccl: sum by NCCL's operators.
        combine_spatial_bn: batch normalizations use the statistics of the whole batch.
    """

    device_type: int
    devices: tuple[int, ...]
    shares: tuple[int, ...]
    inputs: Sequence[Distributed]
    outputs: Sequence[Merged]
    kept: Sequence[str] = ()
    use_nccl: bool = False
    combine_spatial_bn: bool = False
