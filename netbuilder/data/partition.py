"""Arrays of samples partitioned among the processes that train together."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from netbuilder.proto import NetError, ShapeError

__all__ = ["data_partition"]

Array = np.ndarray[Any, np.dtype[Any]]

_RULES = ("drop", "strict", "repeat")


def data_partition(x: Array, y: Array, rank: int, world_size: int, *, remainder: str = "drop") -> tuple[Array, Array]:
    """Return the samples of one rank: a contiguous part of ``x`` and ``y``, equally long on every rank.

    Args:
        x, y: arrays with samples along the first axis, as many of each, n.
        rank: from 0 on, of the process.
        world_size: number of processes.
        remainder: what to do with the n modulo ``world_size`` samples that are left over. "drop": ignore them, each
            part has floor(n / world_size) samples; "strict": raise an error if there are any; "repeat": use all
            samples, each part has ceil(n / world_size), and the last parts are filled up with the first samples.

    Returns:
        Parts of ``x`` and ``y``; views, unless samples are repeated.

    Raises:
        NetError: (a ValueError) the rank is out of range, there are fewer samples than ranks (which "repeat" allows),
            or samples are left over with "strict".
        ShapeError: ``x`` and ``y`` differ in the number of samples.

    >>> [data_partition(np.arange(5), np.arange(5), rank, 2)[0].tolist() for rank in (0, 1)]
    [[0, 1], [2, 3]]
    >>> [data_partition(np.arange(5), np.arange(5), rank, 2, remainder="repeat")[0].tolist() for rank in (0, 1)]
    [[0, 1, 2], [3, 4, 0]]
    """
    rank, world_size = operator.index(rank), operator.index(world_size)
    if world_size < 1 or not 0 <= rank < world_size:
        raise NetError(f"data_partition: rank must be in [0, world_size), got {rank} of {world_size}")
    if remainder not in _RULES:
        raise NetError(f"data_partition: remainder must be one of {list(_RULES)}, got {remainder!r}")
    if len(x) != len(y):
        raise ShapeError(f"data_partition: x and y must have the same number of samples, got {len(x)} and {len(y)}")
    count, over = len(x), len(x) % world_size
    if not count or remainder != "repeat" and count < world_size:
        raise NetError(
            f"data_partition: {count} samples are too few for {world_size} ranks; use fewer ranks"
            + ("" if not count else ", or remainder='repeat'")
        )
    if over and remainder == "strict":
        raise NetError(
            f"data_partition: {count} samples cannot be split evenly over {world_size} ranks, {over} are left over; "
            "give remainder='drop' to ignore them, or 'repeat' to fill up the last parts"
        )
    each = -(-count // world_size) if remainder == "repeat" else count // world_size
    begin = rank * each
    if begin + each <= count:
        return x[begin : begin + each], y[begin : begin + each]
    places = np.arange(begin, begin + each) % count
    return x[places], y[places]
