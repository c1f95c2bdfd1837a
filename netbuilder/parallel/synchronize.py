"""Copies of the first replica's blobs to the other replicas: after initialization, after a load, or on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from netbuilder._renamed import moved_names
from netbuilder.graph.blob import blob_name
from netbuilder.graph.devices import Devices
from netbuilder.graph.net import Net
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.source import user_source
from netbuilder.model import ModelHelper
from netbuilder.parallel.block_update import global_from_first
from netbuilder.passes.reductions import broadcast
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = [
    "AddBlobSync",
    "FinalizeAfterCheckpoint",
    "Synchronize",
    "initialized_names",
    "known_names",
    "require_initialized",
]

__getattr__ = moved_names(
    __name__,
    {"initialised_names": ":initialized_names", "require_initialised": ":require_initialized"},
)

_WITHOUT_TENSOR_OUTPUT = frozenset(
    {
        "CreateBlobsQueue",
        "CreateCommonWorld",
        "CreateCounter",
        "CreateDB",
        "CreateMutex",
        "CreateRebatchingQueue",
    }
)


def initialized_names(init_net: NetDef, devices: Devices) -> list[str]:
    """Return the names, without scope, of the tensors that the init net fills for each replica, in order."""
    made = dict.fromkeys(blob for op in init_net.op if op.type not in _WITHOUT_TENSOR_OUTPUT for blob in op.output)
    names = [devices.short_name(blob) for blob in made if devices.replica_of(blob) == 0]
    return [name for name in names if all(blob in made for blob in devices.copies(name))]


def require_initialized(model: ModelHelper, record: Replicas) -> None:
    """Raise NetError if the init net does not initialize all parameters of the replicas."""
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    params = [blob for name in (*record.parameters, *record.computed) for blob in dict.fromkeys(record.blobs(name))]
    if missing := [blob for blob in params if blob not in made]:
        raise NetError(
            f"model {model.name!r}: the init net does not initialize the parameters {missing}; let param_init_net fill "
            "them, or create tables that all replicas use before Parallelize"
        )


def FinalizeAfterCheckpoint(
    model: ModelHelper,
    blobs: Iterable[Any] | None = None,
    cpu_mode: bool = False,
    *,
    workspace: Workspace | None = None,
) -> None:
    """Copy the first replica's blobs to the other replicas, for example after loading a checkpoint into the first.

    With block-wise updates, its parameters are copied to the global parameters too. It may be called any number of
    times.

    Args:
        model: made by ``Parallelize``.
        blobs: strings or references, with or without a replica's scope; None: all that the init net fills.
        cpu_mode: ignored; Caffe2's scripts pass it, but the record of the model has the devices.
        workspace: workspace of the blobs; None: the current default one.

    Raises:
        NetError: the model is not data-parallel.
        BlobError: the replicas have no blob of this name, or it has no value yet.
    """
    record = Replicas.load(model.net.Proto())
    names = known_names(model, record, blobs)
    workspace = workspace or default.workspace()
    sources = [record.devices.scopes[0] + name for name in names]
    if missing := [blob for blob in sources if not workspace.has(blob)]:
        raise BlobError(f"blobs {missing} are not in the workspace; run the init net, or load them, first")
    net = _sync_net(record, names, user_source())
    net.op.extend(global_from_first(record, names))
    net.name = f"{model.net.Name()}_checkpoint_sync"
    workspace.run_net_once(net)


def AddBlobSync(model: ModelHelper, blobs: Iterable[Any], net: Net | None = None) -> None:
    """Append operators that copy the first replica's blobs to the other replicas.

    Args:
        model: made by ``Parallelize``.
        blobs: strings or references, with or without a replica's scope.
        net: net to append to; None: the model's main net.

    Raises:
        BlobError: the replicas have no blob of that name.
    """
    record = Replicas.load(model.net.Proto())
    names = known_names(model, record, blobs)
    (model.net if net is None else net).extend_ops(_sync_net(record, names, user_source()).op)


def Synchronize(model: ModelHelper, timeout_sec: float = 300) -> None:
    """Wait for all hosts. Models run on one host only in this version, so there is nothing to wait for.

    Raises:
        NetError: the model is not data-parallel, or ``timeout_sec`` is not positive.
    """
    Replicas.load(model.net.Proto())
    if not isinstance(timeout_sec, (int, float)) or not timeout_sec > 0:
        raise NetError(f"Synchronize: timeout_sec must be a positive number of seconds, got {timeout_sec!r}")


def known_names(model: ModelHelper, record: Replicas, blobs: Iterable[Any] | None) -> list[str]:
    """Return the short names of blobs that each replica has; None: of all that the init net fills.

    Raises:
        BlobError: the replicas have no blob of this name.
        TypeError: ``blobs`` is a single string.
    """
    init_net, main = model.param_init_net.Proto(), model.net.Proto()
    if blobs is None:
        return [name for name in initialized_names(init_net, record.devices) if name not in _shared(record)]
    if isinstance(blobs, (str, bytes)):
        raise TypeError(f"blobs must be a list of strings or references, got the single string {blobs!r}")
    names = set(record.parameters).union(record.computed)
    made = (blob for net in (init_net, main) for op in net.op for blob in op.output)
    devices = record.devices
    names.update(devices.short_name(blob) for blob in (*made, *main.external_input) if devices.replica_of(blob) == 0)
    found = record.short_names(map(blob_name, blobs), names)
    return [name for name in dict.fromkeys(found) if name not in _shared(record)]


def _shared(record: Replicas) -> Sequence[str]:
    return record.parameters if record.shared else ()


def _sync_net(record: Replicas, names: Sequence[str], debug_info: str) -> NetDef:
    return broadcast([record.devices.copies(name) for name in names], record.devices, debug_info=debug_info)
