"""Uneven shares of a batch: how samples are dealt out over replicas and micro-batches, and what each share weighs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.model import ModelHelper
from netbuilder.parallel.record import Replicas
from netbuilder.passes.devices import Devices
from netbuilder.proto import NetError, ShapeError
from netbuilder.runtime import Workspace, default

__all__ = ["SHARE_WEIGHT", "Share", "deal", "dealt", "feed_shares", "gather_shares", "share_sizes"]

SHARE_WEIGHT = "share_weight"
"""The blob of each replica, shape (1,), that the gradient of its losses begins with."""

Array = np.ndarray[Any, np.dtype[Any]]
Batches = Iterable[Mapping[str, Any]] | Callable[[], Mapping[str, Any] | None]


def share_sizes(samples: int, shares: int) -> list[int]:
    """Return how many samples each share gets: as many as one another, the first ones one more.

    >>> share_sizes(7, 3), share_sizes(2, 3)
    ([3, 2, 2], [1, 1, 0])
    """
    base, more = divmod(samples, shares)
    return [base + (number < more) for number in range(shares)]


class Share(dict[str, Any]):
    """What the replicas are fed of one micro-batch: arrays by name, to be split over them by ``share_sizes``.

    A replica without samples gets the first sample of the batch, which weighs nothing.

    Attributes:
        given: the samples of the micro-batch alone.
        samples: how many.
    """

    given: dict[str, Any]
    samples: int


def deal(batch: Mapping[str, Any], names: Sequence[str], devices: Devices, steps: int, *, weights: bool) -> list[Share]:
    """Deal a batch out over so many micro-batches, and each over the replicas.

    Args:
        batch: arrays, a sample in each row; one sample at least.
        names: those wanted.
        devices: of the replicas.
        steps: micro-batches that make a step.
        weights: whether to add ``SHARE_WEIGHT``, a number for each replica: its samples' share of the batch, times the
            number of replicas, because the losses are multiplied by its inverse.

    Raises:
        NetError: a name is missing.
        ShapeError: the arrays differ in their numbers of samples, or there is none.
    """
    if missing := [name for name in names if name not in batch]:
        raise NetError(f"the batch lacks {missing}; it has {sorted(map(str, batch))}")
    arrays = {name: np.asarray(batch[name]) for name in names}
    counts = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise ShapeError(f"inputs that are split need as many samples as one another, got {counts}")
    total = next(iter(counts.values()))
    if total < 1:
        raise ShapeError(f"a batch needs one sample or more to be shared, got {counts}")
    found, start = [], 0
    for size in share_sizes(total, steps):
        end = start + size
        found.append(_share(batch, arrays, slice(start, end), total, devices, weights, steps == 1))
        start = end
    return found


def _share(
    batch: Mapping[str, Any],
    arrays: Mapping[str, Array],
    part: slice,
    total: int,
    devices: Devices,
    weights: bool,
    whole: bool,
) -> Share:
    samples, count = part.stop - part.start, len(devices)
    share = Share()
    for name, array in arrays.items():
        rows = array[part]
        if samples < count:
            rows = np.concatenate([rows, np.repeat(array[:1], count - samples, axis=0)])
        share[name] = rows
    if weights:
        share[SHARE_WEIGHT] = np.array([size * count / total for size in share_sizes(samples, count)], np.float32)
    share.given = dict(batch) if whole else {name: array[part] for name, array in arrays.items()}
    share.samples = samples
    return share


def dealt(source: Batches, names: Sequence[str], record: Replicas) -> Iterator[Share]:
    """Yield the shares of each batch of a source (see ``Prefetch``)."""
    batches = iter(source, None) if callable(source) else iter(source)
    try:
        for batch in batches:
            if batch is None:
                return
            if not isinstance(batch, Mapping):
                raise NetError(f"a batch must be a mapping from names to arrays, got {type(batch).__name__}")
            yield from deal(batch, names, record.devices, record.accumulate_steps, weights=record.trains)
    finally:
        if hasattr(batches, "close"):
            batches.close()


def feed_shares(
    model: ModelHelper, batch: Mapping[str, Any], *, workspace: Workspace | None = None
) -> Iterator[dict[str, Any]]:
    """Feed a batch of any size to the replicas of a model, one micro-batch after another.

    Shares differ by one sample at most, and their weights make the gradient that of the mean over the whole batch.

    Args:
        model: made by ``Parallelize(..., weighted_shares=True)``, or with ``accumulate_steps``.
        batch: arrays by the names of the inputs, without the replicas' scopes, a sample in each row, 1 or more.
        workspace: where; None: the current default one.

    Yields:
        The samples of each micro-batch, when they are fed: run the net then. Without ``accumulate_steps`` there is one.

    Raises:
        NetError: the model is not data-parallel, or takes even shares alone.
        ShapeError: the inputs differ in their numbers of samples, or there is none.
    """
    record = _weighted(model)
    workspace = workspace or default.workspace()
    devices = record.devices
    named = {devices.short_name(str(name)): value for name, value in batch.items()}
    for share in deal(named, list(named), devices, record.accumulate_steps, weights=record.trains):
        ends = np.cumsum(share_sizes(max(share.samples, len(devices)), len(devices)))
        for name, array in share.items():
            split = ends if name != SHARE_WEIGHT else np.arange(1, len(devices) + 1)
            for blob, part in zip(devices.copies(name), np.split(array, split[:-1])):
                workspace.feed(blob, part)
        yield share.given


def gather_shares(model: ModelHelper, blob: str, samples: int, *, workspace: Workspace | None = None) -> Array:
    """Return the rows that the replicas computed of one batch, each sample's once, in the order of the batch.

    Args:
        model: made by ``Parallelize``.
        blob: name without the replicas' scopes; a row for each sample.
        samples: how many the batch has.
        workspace: where; None: the current default one.

    Raises:
        NetError: the model is not data-parallel.
        ShapeError: a replica has fewer rows than its share.
    """
    devices = Replicas.load(model.net.Proto()).devices
    workspace = workspace or default.workspace()
    parts = []
    for name, size in zip(devices.copies(devices.short_name(str(blob))), share_sizes(samples, len(devices))):
        if not size:
            continue
        rows = np.asarray(workspace.fetch(name))
        if rows.ndim == 0 or len(rows) < size:
            raise ShapeError(f"blob {name!r} of shape {rows.shape} must hold a row for each of {size} samples")
        parts.append(rows[:size])
    return np.concatenate(parts)


def _weighted(model: ModelHelper) -> Replicas:
    record = Replicas.load(model.net.Proto())
    if not record.weighted_shares:
        raise NetError(
            f"model {model.name!r} takes even shares alone; build it by Parallelize(..., weighted_shares=True)"
        )
    return record
