"""Input of data-parallel nets: batches prefetched and split over the replicas, losses read as means over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from netbuilder.model import ModelHelper
from netbuilder.parallel.record import Replicas
from netbuilder.runtime import LossReader, Prefetch, Workspace, default
from netbuilder.runtime.prefetch import Source

__all__ = ["loss_reader", "prefetch"]


def prefetch(
    model: ModelHelper,
    source: Source,
    *,
    blobs: Iterable[str],
    depth: int = 2,
    dtypes: Mapping[str, Any] | None = None,
    even: bool = True,
    workspace: Workspace | None = None,
) -> Prefetch:
    """Return a Prefetch that splits each batch over the replicas of a model, on their devices.

    Args:
        model: made by ``Parallelize``.
        source: whole batches, see ``Prefetch``.
        blobs: names of the inputs, without the replicas' scopes.
        depth, dtypes, even: see ``Prefetch``.
        workspace: where; None: the current default one.

    Raises:
        NetError: the model is not data-parallel, or an argument is out of range.
    """
    devices = Replicas.load(model.net.Proto()).devices
    names = {devices.short_name(str(blob)): devices.copies(devices.short_name(str(blob))) for blob in blobs}
    return Prefetch(
        workspace or default.workspace(),
        source,
        blobs=names,
        depth=depth,
        devices=devices.options,
        dtypes=dtypes,
        even=even,
    )


def loss_reader(model: ModelHelper, blobs: Iterable[str], *, workspace: Workspace | None = None) -> LossReader:
    """Return a LossReader that tells the means over the replicas of a model.

    Args:
        model: made by ``Parallelize``.
        blobs: names of the losses and measures, without the replicas' scopes.
        workspace: where; None: the current default one.

    Raises:
        NetError: the model is not data-parallel, or no blob is named.
    """
    devices = Replicas.load(model.net.Proto()).devices
    names = {devices.short_name(str(blob)): devices.copies(devices.short_name(str(blob))) for blob in blobs}
    return LossReader(workspace or default.workspace(), names)
