"""Input of data-parallel nets: batches are prefetched and split over the replicas, losses read as means over them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from netbuilder.distributed.agreement import agree_on_batch
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.shares import (
    SHARE_WEIGHT,
    WEIGHTED_ONLY,
    OwnPart,
    Share,
    local_part,
    share_weights,
    split_batches,
)
from netbuilder.parallel.step_divisors import step_divisors
from netbuilder.parallel.unequal_steps import Agreement, ProcessBatches
from netbuilder.proto import NetError
from netbuilder.proto.call_checks import checked
from netbuilder.proto.errors import counted
from netbuilder.runtime import LossReader, Prefetch, Workspace
from netbuilder.runtime.execute import default
from netbuilder.runtime.input.prefetch import Source

__all__ = ["loss_reader", "prefetch"]

_log = logging.getLogger("netbuilder.input")


@checked()
def prefetch(
    model: ModelHelper,
    source: Source,
    *,
    blobs: Iterable[str],
    depth: int = 2,
    dtypes: Mapping[str, Any] | None = None,
    even: bool | None = None,
    look: bool = True,
    workspace: Workspace | None = None,
) -> Prefetch:
    """Return a Prefetch that splits each batch over the replicas of a model, on their devices; the log says how.

    If the model has ``weighted_shares``, a batch may have any positive number of samples: the replicas' shares differ
    by one sample at most and may be empty, and their weights are fed in each step. With ``accumulate_steps`` each batch
    of the source gives ``accumulate_steps`` micro-batches, one for each iteration of the loop.

    Args:
        model: made by ``Parallelize``.
        source: whole batches (of all processes), see ``Prefetch``; with ``weighted_shares`` each may be a
            ``ProcessBatch``, or the source what ``process_batches`` returns: then the loop, whose thread runs the net,
            agrees with the other processes in each step.
        blobs: names of the inputs, without the replicas' scopes.
        depth, dtypes, look: see ``Prefetch``.
        even: whether all parts must have the same size; None: yes, unless the model has ``weighted_shares``.
        workspace: workspace to feed; None: the current default one.

    Raises:
        NetError: the model is not data-parallel, or an argument is out of range.
    """
    record = Replicas.load(model.net.Proto())
    devices = record.devices
    names = {devices.short_name(str(blob)): devices.copies(devices.short_name(str(blob))) for blob in blobs}
    workspace = workspace or default.workspace()
    common: dict[str, Any] = {"depth": depth, "devices": devices.options, "dtypes": dtypes, "look": look}
    if isinstance(source, ProcessBatches) and (even or not record.weighted_shares):
        raise NetError(WEIGHTED_ONLY)
    _log.info(_split_text(model, record, list(names), own=isinstance(source, ProcessBatches)))
    if not record.weighted_shares or even:
        if record.world.size > len(record):
            source = local_part(source, list(names), record, even=even is not False)
            return _LocalPrefetch(workspace, source, record, blobs=names, even=even is not False, **common)
        return Prefetch(workspace, source, blobs=names, even=even is not False, **common)
    inputs, divisors = list(names), step_divisors(model, record)
    names.update({name: devices.copies(name) for name in record.step_divisors})
    if isinstance(source, ProcessBatches):
        shares = split_batches(source.own(), inputs, record, divisors)
        return _AgreedPrefetch(workspace, shares, source.agreement, record, blobs=names, even=False, **common)
    if record.reads_weights:
        names[SHARE_WEIGHT] = devices.copies(SHARE_WEIGHT)
    shares = split_batches(source, inputs, record, divisors)
    return _SharedPrefetch(workspace, shares, record, blobs=names, even=False, **common)


def _split_text(model: ModelHelper, record: Replicas, names: Sequence[str], *, own: bool) -> str:
    """Return what each replica of this process sees of a batch."""
    world, count = record.world, len(record)
    text = f"model {model.name!r}: batches of {', '.join(map(repr, names))}"
    if world.size == count:
        return f"{text} are split in order over {record.devices}"
    where = f"rank {world.rank} of {world.size // count}"
    if own:
        return f"{text} are the own ones of {where}, and are split in order over its {counted(count, 'replica')}"
    last = world.first_replica + count - 1
    mine = f"replica {last}" if count == 1 else f"replicas {world.first_replica} to {last}"
    return f"{text} are those of all processes, split in order over {world.size} replicas; {where} has {mine}"


class _LocalPrefetch(Prefetch):
    """Prefetched parts of batches; before a step, the processes compare how many samples its batch has for all.

    Args:
        workspace, source, options: see ``Prefetch``.
        record: the record of the replicas.
    """

    def __init__(self, workspace: Workspace, source: Source, record: Replicas, **options: Any) -> None:
        super().__init__(workspace, source, **options)
        self._record = record

    def __next__(self) -> Mapping[str, Any]:
        part = super().__next__()
        agree_on_batch(self._record, cast("OwnPart | Share", part).samples_of_all, self._workspace)
        return part

    def close(self, timeout: float = 10.0) -> None:
        agree_on_batch(self._record, None, self._workspace)
        super().close(timeout)


class _SharedPrefetch(_LocalPrefetch):
    """Prefetched shares; the loop gets the samples of the source, without the padding of empty shares."""

    _same_length = False  # there is one weight per replica, not per sample

    def __next__(self) -> Mapping[str, Any]:
        return cast(Share, super().__next__()).given


class _AgreedPrefetch(Prefetch):
    """Prefetched shares of this process's own samples; the loop learns the number of all, and feeds the weights.

    Args:
        workspace, shares, options: see ``Prefetch``.
        agreement: of the processes, at the first micro-batch of each step.
        record: the record of the replicas.
    """

    def __init__(
        self, workspace: Workspace, shares: Source, agreement: Agreement, record: Replicas, **options: Any
    ) -> None:
        super().__init__(workspace, shares, **options)
        self._agreement, self._record = agreement, record
        self._micro_batch = self._total = 0

    def __next__(self) -> Mapping[str, Any]:
        if self._closing:
            raise StopIteration
        share = cast("Share | None", self._agreement.next(super().__next__))
        if self._micro_batch == 0:
            self._total = self._agreement.total(None if share is None or share.ended else share.samples_of_step)
        self._micro_batch = (self._micro_batch + 1) % self._record.accumulate_steps
        if share is None or not self._total:
            self.close()
            raise StopIteration
        if self._record.reads_weights:
            weights = share_weights(share.samples, self._total, self._record)
            for blob, weight in zip(self._record.devices.copies(SHARE_WEIGHT), np.split(weights, len(weights))):
                self._workspace.feed(blob, weight)
        return share.given


@checked()
def loss_reader(model: ModelHelper, blobs: Iterable[str], *, workspace: Workspace | None = None) -> LossReader:
    """Return a LossReader of means over the replicas of a model, weighted by their shares of the batch.

    Args:
        model: made by ``Parallelize``.
        blobs: names of the losses and metrics, without the replicas' scopes.
        workspace: workspace to read; None: the current default one.

    Raises:
        NetError: the model is not data-parallel, or ``blobs`` is empty.
    """
    record = Replicas.load(model.net.Proto())
    devices = record.devices
    names = {devices.short_name(str(blob)): devices.copies(devices.short_name(str(blob))) for blob in blobs}
    weights = devices.copies(SHARE_WEIGHT) if record.weighted_shares and record.reads_weights else None
    return LossReader(workspace or default.workspace(), names, weights=weights)
