"""Uneven shares of a batch: how samples are split over replicas and micro-batches, and the weight of each share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.agreement import agree_on_batch, sum_over_processes
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.ops.core.replication import share_sizes
from netbuilder.parallel.step_divisors import StepDivisors, step_divisors
from netbuilder.proto import NetError, ShapeError
from netbuilder.proto.call_checks import checked
from netbuilder.proto.errors import counted
from netbuilder.proto.numbers import check_whole_numbers
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = [
    "SHARE_WEIGHT",
    "WEIGHTED_ONLY",
    "ProcessBatch",
    "Share",
    "count_samples",
    "feed_shares",
    "gather_shares",
    "local_part",
    "local_shares",
    "own_samples",
    "share_sizes",
    "share_weights",
    "split_batch",
    "split_batches",
]

SHARE_WEIGHT = "share_weight"
"""Name of each replica's blob, of shape (1,), that seeds the gradient of its losses: the weight of its share."""

WEIGHTED_ONLY = "a ProcessBatch is for models that Parallelize(..., weighted_shares=True) builds; give whole batches"
"""What is wrong with one for another model."""

Array = np.ndarray[Any, np.dtype[Any]]
Batches = Iterable[Mapping[str, Any]] | Callable[[], Mapping[str, Any] | None]


def local_shares(samples: int, record: Replicas) -> tuple[int, list[int]]:
    """Return the index of this process's first sample in a batch, and the number of samples of each of its replicas."""
    sizes, first = share_sizes(samples, record.world.size), record.world.first_replica
    return sum(sizes[:first]), sizes[first : first + len(record)]


class ProcessBatch(dict[str, Any]):
    """The samples of this process in a batch of all processes, by name of the input.

    ``feed_shares`` and ``prefetch`` take it in place of the whole batch, for a model with ``weighted_shares``: the
    gradient is that of the mean over the samples of all processes.

    Args:
        arrays: name -> array with one sample per row. If they have no rows, this process takes part with weight 0, and
            each array has a sample of zeros. ``accumulate_steps`` splits them as they are; the micro-batches are those
            of one process with all devices if they are chosen by ``own_samples``.
        samples_of_all: number of samples of all processes.
        empty: this process has no sample; ``arrays`` have one that takes its place, with weight 0.

    Raises:
        NetError: there are fewer samples of all processes than of this one.
        ShapeError: the arrays have different numbers of samples, or there is no array.

    >>> part = ProcessBatch({"data": np.zeros((3, 8)), "label": np.zeros(3, int)}, samples_of_all=7)
    >>> part.samples, part.samples_of_all
    (3, 7)
    """

    ended = False  # the source of this process has no more batches, and this takes the place of one

    def __init__(self, arrays: Mapping[str, Any], samples_of_all: int, *, empty: bool = False) -> None:
        if bool(arrays) and all(np.shape(rows)[:1] == (0,) for rows in arrays.values()):
            arrays, empty = _one_sample(arrays), True
        super().__init__(arrays)
        rows = count_samples(self)
        self.samples, self.samples_of_all = 0 if empty else rows, samples_of_all
        if samples_of_all < max(self.samples, 1):
            raise NetError(
                f"ProcessBatch: samples_of_all must be the number of samples of all processes, got {samples_of_all}, "
                f"and this process has {self.samples}"
            )


def own_samples(samples: int, record: Replicas) -> Array:
    """Return which samples of a batch this process's replicas get, in the order in which a ``ProcessBatch`` has them.

    >>> from netbuilder.graph.devices import Devices
    >>> from netbuilder.graph.replicas import World
    >>> from netbuilder.proto import PROTO_CPU
    >>> own_samples(10, Replicas(Devices(PROTO_CPU, (0,)), accumulate_steps=2, world=World(2, 1, 1)))
    array([3, 4, 8, 9])
    """
    found, start = [np.arange(0)], 0
    for size in [samples] if _splits_shares(record) else share_sizes(samples, record.accumulate_steps):
        first, sizes = local_shares(size, record)
        found.append(np.arange(start + first, start + first + sum(sizes)))
        start += size
    return np.concatenate(found)


class Share(dict[str, Any]):
    """The arrays, by name, that this process's replicas are fed in one micro-batch, to be split by ``share_sizes``.

    A replica without samples is fed the first sample of the batch, with weight 0.

    Attributes:
        given: only the samples of the micro-batch.
        own: those of this process's replicas.
        sizes: the number of samples of each replica.
        samples: their number.
        samples_of_step: of all micro-batches of the step.
        samples_of_all: of the batch, for all processes.
        ended: the source of this process has no more batches.
    """

    given: dict[str, Any]
    own: dict[str, Any]
    sizes: list[int]
    samples: int
    samples_of_step: int
    samples_of_all: int
    ended: bool


class OwnPart(dict[str, Any]):
    """The part of a batch that the replicas of this process have.

    Attributes:
        samples_of_all: number of samples of the batch.
    """

    samples_of_all: int


def split_batch(
    batch: Mapping[str, Any], names: Sequence[str], record: Replicas, divisors: StepDivisors | None = None
) -> list[Share]:
    """Split a batch into the micro-batches of a step, and each of these over the replicas of all processes.

    With block-wise updates the batch is split over the replicas first, so that each of them updates its own parameters
    with the same samples for any number of micro-batches.

    The shares of a net for training have ``SHARE_WEIGHT``, a number for each replica: its fraction of the batch,
    times the number of replicas of all processes, because the losses are multiplied by the inverse of that number.

    Args:
        batch: arrays with one sample per row, at least one sample. Each process is given the whole batch, or a
            ``ProcessBatch``.
        names: names of the arrays to split.
        record: the record of the replicas.
        divisors: of the means that the micro-batches of a step have in common; the shares get them.

    Returns:
        For each micro-batch the share of this process.

    Raises:
        NetError: a name is missing.
        ShapeError: the arrays have different numbers of samples, or none.
    """
    if missing := [name for name in names if name not in batch]:
        raise NetError(f"the batch lacks {missing}; it has {sorted(map(str, batch))}")
    arrays = {name: np.asarray(batch[name]) for name in names}
    samples = total = count_samples(arrays)
    own = isinstance(batch, ProcessBatch)
    if isinstance(batch, ProcessBatch):
        samples, total = batch.samples, batch.samples_of_all
    found, start, micro_batches = [], 0, share_sizes(samples, record.accumulate_steps)
    if _splits_shares(record) and samples:
        rows = _rows_by_replica(samples, len(record) if own else record.world.size, record.accumulate_steps)
        arrays = {name: array[np.concatenate(rows)] for name, array in arrays.items()}
        micro_batches = [len(indices) for indices in rows]
    for size in micro_batches:
        sizes = (0, share_sizes(size, len(record))) if own else local_shares(size, record)
        found.append(_share(batch, arrays, slice(start, start + size), total, record, sizes))
        start += size
    for share in found:
        share.ended = isinstance(batch, ProcessBatch) and batch.ended
        share.samples_of_step = sum(each.samples for each in found)
    if divisors is not None:
        totals = divisors.of_step(found)
        for share in found:
            share.update(totals)
    return found


def _splits_shares(record: Replicas) -> bool:
    """Whether each replica splits its own share of a batch into micro-batches."""
    return record.block is not None and record.accumulate_steps > 1


def _rows_by_replica(total: int, replicas: int, steps: int) -> list[np.ndarray[Any, np.dtype[np.intp]]]:
    """Return the indices of the samples of each micro-batch if each replica splits its own share into micro-batches."""
    shares = [np.array_split(share, steps) for share in np.array_split(np.arange(total), replicas)]
    return [np.concatenate([share[step] for share in shares]) for step in range(steps)]


def count_samples(arrays: Mapping[str, Any], *, least: int = 1) -> int:
    """Return the number of samples of arrays with one sample per row.

    Raises:
        ShapeError: the arrays have different numbers of samples, or fewer than ``least``.
    """
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    counts = {name: shape[0] if shape else 0 for name, shape in shapes.items()}
    if len(set(counts.values())) > 1:
        raise ShapeError(f"all inputs that are split must have the same number of samples, got {counts}")
    total = next(iter(counts.values()), 0)
    if total < least:
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
    if record.reads_weights:
        share[SHARE_WEIGHT] = _weights(sizes, total, record)
    whole = record.accumulate_steps == 1 and record.world.size == len(record)
    share.given = dict(batch) if whole else own
    share.samples, share.samples_of_all, share.sizes = sum(sizes), total, sizes
    share.own = own
    return share


def share_weights(samples: int, total: int, record: Replicas) -> Array:
    """Return the weight of each replica of this process, which share so many samples of ``total`` in the step."""
    return _weights(share_sizes(samples, len(record)), total, record)


def _weights(sizes: Sequence[int], total: int, record: Replicas) -> Array:
    if not record.trains:  # each process evaluates its own samples
        return np.array([size * len(record) / max(sum(sizes), 1) for size in sizes], np.float32)
    return np.array([size * record.world.size / total for size in sizes], np.float32)


def split_batches(
    source: Batches, names: Sequence[str], record: Replicas, divisors: StepDivisors | None = None
) -> Iterator[Share]:
    """Yield the shares (see ``split_batch``) of each batch of a source (see ``Prefetch``)."""
    return _each(source, lambda batch: split_batch(batch, names, record, divisors))


def local_part(source: Batches, names: Sequence[str], record: Replicas, *, even: bool) -> Iterator[OwnPart]:
    """Yield this process's part of each batch of a source, whose batches are for all processes.

    Args:
        source: see ``Prefetch``.
        names: the arrays that are split.
        record: the record of the replicas.
        even: raise if the number of samples is not a multiple of the number of replicas.
    """

    def cut(batch: Mapping[str, Any]) -> list[OwnPart]:
        own, size = OwnPart(batch), record.world.size
        if isinstance(batch, ProcessBatch):
            raise NetError(WEIGHTED_ONLY)
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
            own[name], own.samples_of_all = array[first : first + sum(sizes)], samples
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
            several processes each is given the whole batch, and feeds its part, or a ``ProcessBatch``.
        of_process: the batch has only the samples of this process, which may be more or fewer than those of another:
            the processes exchange their numbers, so all of them call this equally often. One that has no samples left
            gives arrays of 0 rows, and takes part with weight 0.
        workspace: workspace to feed; None: the current default one.

    Yields:
        The samples of each micro-batch, after feeding them, so that the net can be run. Without ``accumulate_steps``
        there is one micro-batch.

    Raises:
        NetError: the model is not data-parallel, or its shares have no weights.
        ShapeError: the inputs have different numbers of samples, or none.
    """
    record = _weighted(model)
    workspace = workspace or default.workspace()
    devices = record.devices
    named = {devices.short_name(str(name)): value for name, value in batch.items()}
    given: Mapping[str, Any] = named
    if isinstance(batch, ProcessBatch):
        given = ProcessBatch(named, batch.samples_of_all, empty=not batch.samples)
    elif of_process and record.world.size > len(record):
        samples = sum_over_processes(model, record, count_samples(named, least=0), workspace=workspace)
        given = ProcessBatch(named, samples)
    for share in split_batch(given, list(named), record, step_divisors(model, record)):
        ends = np.cumsum(share_sizes(max(share.samples, len(devices)), len(devices)))
        for name, array in share.items():
            split = ends if name in named else np.arange(1, len(devices) + 1)
            for blob, part in zip(devices.copies(name), np.split(array, split[:-1])):
                workspace.feed(blob, part)
        agree_on_batch(record, share.samples_of_all, workspace)
        yield share.given


def _one_sample(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return one sample of zeros for arrays without rows: it takes the place of samples, with weight 0."""
    return {name: np.zeros((1, *np.shape(rows)[1:]), np.asarray(rows).dtype) for name, rows in batch.items()}


@checked()
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
    check_whole_numbers("gather_shares", 1, samples=samples)
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
            f"feed_shares is for models whose shares have weights, which model {model.name!r} does not have: build it "
            "by Parallelize(..., weighted_shares=True), or feed each replica an equal part of the batch"
        )
    return record
