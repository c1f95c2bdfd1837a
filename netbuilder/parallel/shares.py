"""Uneven shares of a batch: how samples are split over replicas and micro-batches, and the weight of each share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.ops.core.replication import share_sizes
from netbuilder.parallel.distributed.agreement import sum_over_processes
from netbuilder.proto import NetError, ShapeError
from netbuilder.proto.errors import counted
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = [
    "SHARE_WEIGHT",
    "Share",
    "count_samples",
    "feed_shares",
    "gather_shares",
    "local_part",
    "local_shares",
    "share_sizes",
    "split_batch",
    "split_batches",
]

SHARE_WEIGHT = "share_weight"
"""Name of each replica's blob, of shape (1,), that seeds the gradient of its losses: the weight of its share."""

Array = np.ndarray[Any, np.dtype[Any]]
Batches = Iterable[Mapping[str, Any]] | Callable[[], Mapping[str, Any] | None]


def local_shares(samples: int, record: Replicas) -> tuple[int, list[int]]:
    """Return the index of this process's first sample in a batch, and the number of samples of each of its replicas."""
    sizes, first = share_sizes(samples, record.world.size), record.world.first_replica
    return sum(sizes[:first]), sizes[first : first + len(record)]


class Share(dict[str, Any]):
    """The arrays, by name, that this process's replicas are fed in one micro-batch, to be split by ``share_sizes``.

    A replica without samples is fed the first sample of the batch, with weight 0.

    Attributes:
        given: only the samples of the micro-batch.
        samples: their number.
    """

    given: dict[str, Any]
    samples: int


def split_batch(
    batch: Mapping[str, Any], names: Sequence[str], record: Replicas, *, samples_of_all: int | None = None
) -> list[Share]:
    """Split a batch into the micro-batches of a step, and each of these over the replicas of all processes.

    With block-wise updates the batch is split over the replicas first, so that each of them updates its own parameters
    with the same samples for any number of micro-batches.

    The shares of a net for training have ``SHARE_WEIGHT``, a number for each replica: its fraction of the batch,
    times the number of replicas of all processes, because the losses are multiplied by the inverse of that number.

    Args:
        batch: arrays with one sample per row, at least one sample. Each process is given the whole batch.
        names: names of the arrays to split.
        record: the record of the replicas.
        samples_of_all: the number of samples of all processes, if the batch has only those of this one.

    Returns:
        For each micro-batch the share of this process.

    Raises:
        NetError: a name is missing.
        ShapeError: the arrays have different numbers of samples, or none.
    """
    if missing := [name for name in names if name not in batch]:
        raise NetError(f"the batch lacks {missing}; it has {sorted(map(str, batch))}")
    arrays = {name: np.asarray(batch[name]) for name in names}
    total = count_samples(arrays)
    of_process = samples_of_all is not None
    found, start, micro_batches = [], 0, share_sizes(total, record.accumulate_steps)
    if record.block is not None and record.accumulate_steps > 1:
        rows = _rows_by_replica(total, len(record) if of_process else record.world.size, record.accumulate_steps)
        arrays = {name: array[np.concatenate(rows)] for name, array in arrays.items()}
        micro_batches = [len(indices) for indices in rows]
    for size in micro_batches:
        sizes = 0, share_sizes(size, len(record))
        part = slice(start, start + size)
        found.append(
            _share(
                batch,
                arrays,
                part,
                samples_of_all or total,
                record,
                sizes if of_process else local_shares(size, record),
            )
        )
        start += size
    return found


def _rows_by_replica(total: int, replicas: int, steps: int) -> list[np.ndarray[Any, np.dtype[np.intp]]]:
    """Return the indices of the samples of each micro-batch if each replica splits its own share into micro-batches."""
    shares = [np.array_split(share, steps) for share in np.array_split(np.arange(total), replicas)]
    return [np.concatenate([share[step] for share in shares]) for step in range(steps)]


def count_samples(arrays: Mapping[str, Any]) -> int:
    """Return the number of samples of arrays with one sample per row.

    Raises:
        ShapeError: the arrays have different numbers of samples, or none.
    """
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    counts = {name: shape[0] if shape else 0 for name, shape in shapes.items()}
    if len(set(counts.values())) > 1:
        raise ShapeError(f"all inputs that are split must have the same number of samples, got {counts}")
    total = next(iter(counts.values()))
    if total < 1:
        raise ShapeError(f"the batch must have at least one sample, got {counts}")
    return total


def _share(
    batch: Mapping[str, Any],
    arrays: Mapping[str, Array],
    part: slice,
    total: int,
    record: Replicas,
    assigned: tuple[int, list[int]],
) -> Share:
    """Return the share of a part of a batch; ``assigned`` is what ``local_shares`` returns for it."""
    first, sizes = assigned
    share, own = Share(), {name: array[part][first : first + sum(sizes)] for name, array in arrays.items()}
    for name, rows in own.items():
        empty = sizes.count(0)
        share[name] = np.concatenate([rows, np.repeat(arrays[name][:1], empty, axis=0)]) if empty else rows
    if record.trains:
        share[SHARE_WEIGHT] = np.array([size * record.world.size / total for size in sizes], np.float32)
    whole = record.accumulate_steps == 1 and record.world.size == len(record)
    share.given = dict(batch) if whole else own
    share.samples = sum(sizes)
    return share


def split_batches(source: Batches, names: Sequence[str], record: Replicas) -> Iterator[Share]:
    """Yield the shares (see ``split_batch``) of each batch of a source (see ``Prefetch``)."""
    return _each(source, lambda batch: split_batch(batch, names, record))


def local_part(source: Batches, names: Sequence[str], record: Replicas, *, even: bool) -> Iterator[dict[str, Any]]:
    """Yield this process's part of each batch of a source, whose batches are for all processes.

    Args:
        source: see ``Prefetch``.
        names: the arrays that are split.
        record: the record of the replicas.
        even: raise if the number of samples is not a multiple of the number of replicas.
    """

    def cut(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        own, size = dict(batch), record.world.size
        for name in set(names) & batch.keys():  # Prefetch raises for missing ones
            array = np.asarray(batch[name])
            samples = array.shape[0] if array.ndim else 0
            if samples < size or even and samples % size:
                raise ShapeError(
                    f"{name!r} of shape {array.shape} has {counted(samples, 'sample')}, which cannot be split "
                    f"{'evenly ' if even else ''}over the {size} replicas of all processes; give "
                    f"{'a multiple of' if even else 'at least'} {size}"
                )
            first, sizes = local_shares(samples, record)
            own[name] = array[first : first + sum(sizes)]
        return [own]

    return _each(source, cut)


def _each(source: Batches, cut: Callable[[Mapping[str, Any]], Iterable[Any]]) -> Iterator[Any]:
    """Yield the items that ``cut`` returns for each batch of a source."""
    batches = iter(source, None) if callable(source) else iter(source)
    try:
        for batch in batches:
            if batch is None:
                return
            if not isinstance(batch, Mapping):
                raise NetError(f"a batch must be a mapping of names to arrays, got {type(batch).__name__}")
            yield from cut(batch)
    finally:
        if hasattr(batches, "close"):
            batches.close()


def feed_shares(
    model: ModelHelper, batch: Mapping[str, Any], *, of_process: bool = False, workspace: Workspace | None = None
) -> Iterator[dict[str, Any]]:
    """Feed a batch of any size to the replicas of a model, one micro-batch after another.

    Shares differ by one sample at most, and their weights make the gradient that of the mean over the whole batch.

    Args:
        model: made by ``Parallelize(..., weighted_shares=True)``, or with ``accumulate_steps``.
        batch: name of an input, without the replicas' scopes -> array with one sample per row, at least one. With
            several processes each is given the whole batch, and feeds its part.
        of_process: the batch has only the samples of this process, which may be more or fewer than those of another:
            the processes exchange their numbers, so all of them call this equally often.
        workspace: workspace to feed; None: the current default one.

    Yields:
        The samples of each micro-batch, after feeding them, so that the net can be run. Without ``accumulate_steps``
        there is one micro-batch.

    Raises:
        NetError: the model is not data-parallel, or supports only even shares.
        ShapeError: the inputs have different numbers of samples, or none.
    """
    record = _weighted(model)
    workspace = workspace or default.workspace()
    devices = record.devices
    named = {devices.short_name(str(name)): value for name, value in batch.items()}
    of_all = None
    if of_process and record.world.size > len(record):
        of_all = sum_over_processes(model, record, count_samples(named), workspace=workspace)
    for share in split_batch(named, list(named), record, samples_of_all=of_all):
        ends = np.cumsum(share_sizes(max(share.samples, len(devices)), len(devices)))
        for name, array in share.items():
            split = ends if name != SHARE_WEIGHT else np.arange(1, len(devices) + 1)
            for blob, part in zip(devices.copies(name), np.split(array, split[:-1])):
                workspace.feed(blob, part)
        yield share.given


def gather_shares(model: ModelHelper, blob: str, samples: int, *, workspace: Workspace | None = None) -> Array:
    """Return the rows that this process's replicas computed for one batch, without padding, in the order of the batch.

    Args:
        model: made by ``Parallelize``.
        blob: name without the replicas' scopes of a blob with one row per sample.
        samples: number of samples of the batch.
        workspace: workspace to read; None: the current default one.

    Raises:
        NetError: the model is not data-parallel.
        ShapeError: a replica has fewer rows than its share.
    """
    record = Replicas.load(model.net.Proto())
    workspace = workspace or default.workspace()
    parts = []
    copies = record.devices.copies(record.devices.short_name(str(blob)))
    for name, size in zip(copies, local_shares(samples, record)[1]):
        if not size:
            continue
        rows = np.asarray(workspace.fetch(name))
        if rows.ndim == 0 or len(rows) < size:
            raise ShapeError(
                f"blob {name!r} of shape {rows.shape} must have a row for each of {counted(size, 'sample')}"
            )
        parts.append(rows[:size])
    return np.concatenate(parts)


def _weighted(model: ModelHelper) -> Replicas:
    record = Replicas.load(model.net.Proto())
    if not record.weighted_shares:
        raise NetError(
            f"model {model.name!r} supports only batches that are split evenly; build it by Parallelize(..., "
            "weighted_shares=True)"
        )
    return record
