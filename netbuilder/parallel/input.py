"""Input of data-parallel nets: batches prefetched and split over the replicas, losses read as means over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.shares import SHARE_WEIGHT, Share, dealt, own_part
from netbuilder.runtime import LossReader, Prefetch, Workspace
from netbuilder.runtime.execute import default
from netbuilder.runtime.input.prefetch import Source

__all__ = ["loss_reader", "prefetch"]


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
    """Return a Prefetch that splits each batch over the replicas of a model, on their devices.

    A batch of a model with ``weighted_shares`` may have any number of samples from 1 on: their shares differ by one at
    most, a replica may have none, and each step feeds what the shares weigh. With ``accumulate_steps`` a batch of the
    source makes so many steps of the loop, one for each micro-batch; each gets its own samples.

    Args:
        model: made by ``Parallelize``.
        source: whole batches (of all processes), see ``Prefetch``.
        blobs: names of the inputs, without the replicas' scopes.
        depth, dtypes, look: see ``Prefetch``.
        even: whether all parts have to be of the same size; None: yes, unless the model has ``weighted_shares``.
        workspace: where; None: the current default one.

    Raises:
        NetError: the model is not data-parallel, or an argument is out of range.
    """
    record = Replicas.load(model.net.Proto())
    devices = record.devices
    names = {devices.short_name(str(blob)): devices.copies(devices.short_name(str(blob))) for blob in blobs}
    workspace = workspace or default.workspace()
    common: dict[str, Any] = {"depth": depth, "devices": devices.options, "dtypes": dtypes, "look": look}
    if not record.weighted_shares or even:
        if record.world.size > len(record):
            source = own_part(source, list(names), record, even=even is not False)
        return Prefetch(workspace, source, blobs=names, even=even is not False, **common)
    wanted = list(names)
    if record.trains:
        names[SHARE_WEIGHT] = devices.copies(SHARE_WEIGHT)
    return _SharedPrefetch(workspace, dealt(source, wanted, record), blobs=names, even=False, **common)


class _SharedPrefetch(Prefetch):
    """Prefetched shares; the loop gets the samples as the source gave them, without what fills empty shares."""

    _alike = False  # the weights are as many as the replicas

    def __next__(self) -> Mapping[str, Any]:
        return cast(Share, super().__next__()).given


def loss_reader(model: ModelHelper, blobs: Iterable[str], *, workspace: Workspace | None = None) -> LossReader:
    """Return a LossReader that tells the means over the replicas of a model, weighted as their shares of the batch are.

    Args:
        model: made by ``Parallelize``.
        blobs: names of the losses and measures, without the replicas' scopes.
        workspace: where; None: the current default one.

    Raises:
        NetError: the model is not data-parallel, or no blob is named.
    """
    record = Replicas.load(model.net.Proto())
    devices = record.devices
    names = {devices.short_name(str(blob)): devices.copies(devices.short_name(str(blob))) for blob in blobs}
    weights = devices.copies(SHARE_WEIGHT) if record.weighted_shares and record.trains else None
    return LossReader(workspace or default.workspace(), names, weights=weights)
