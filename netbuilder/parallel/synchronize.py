"""Copies of the first replica's blobs to the other replicas: after initialization, after a load, or on request."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.common_worlds import (
    WORLD_MAKERS,
    barrier_maker,
    barrier_net,
    create_worlds,
    makers_of,
    process_link,
    reassign_worlds,
)
from netbuilder.graph.blob import blob_name
from netbuilder.graph.devices import Devices
from netbuilder.graph.net import Net
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.shapes import infer_shapes
from netbuilder.graph.source import user_source
from netbuilder.model import ModelHelper
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.parallel.block_exchange import in_flight, set_in_flight, settle
from netbuilder.parallel.block_update import global_from_first
from netbuilder.parallel.owned_updates import owned_state
from netbuilder.parallel.same_state import made_equal
from netbuilder.passes.processes import broadcast_over_processes
from netbuilder.passes.reductions import broadcast
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.proto.call_checks import checked
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = [
    "AddBlobSync",
    "FinalizeAfterCheckpoint",
    "Synchronize",
    "initialized_names",
    "initialized_outside",
    "known_names",
    "require_initialized",
]


_WITHOUT_TENSOR_OUTPUT = WORLD_MAKERS | frozenset(
    {
        "CreateBlobsQueue",
        "CreateCounter",
        "CreateDB",
        "CreateMutex",
        "CreateRebatchingQueue",
        "FileStoreHandlerCreate",
        "RedisStoreHandlerCreate",
    }
)


def initialized_names(init_net: NetDef, devices: Devices) -> list[str]:
    """Return the names, without scope, of the tensors that the init net fills for each replica, in order."""
    made = dict.fromkeys(blob for op in init_net.op if op.type not in _WITHOUT_TENSOR_OUTPUT for blob in op.output)
    names = [devices.short_name(blob) for blob in made if devices.replica_of(blob) == 0]
    return [name for name in names if all(blob in made for blob in devices.copies(name))]


def initialized_outside(init_net: NetDef, devices: Devices) -> list[str]:
    """Return the tensors of numbers outside the replicas that the init net fills, in order."""
    made = dict.fromkeys(blob for op in init_net.op if op.type not in _WITHOUT_TENSOR_OUTPUT for blob in op.output)
    outside = [blob for blob in made if devices.replica_of(blob) is None]
    known = infer_shapes([init_net]) if outside else None
    return [blob for blob in outside if known is None or _may_be_numbers(known.spec(blob))]


def _may_be_numbers(spec: TensorSpec | None) -> bool:
    return spec is None or not spec.dtype.hasobject


def require_initialized(model: ModelHelper, record: Replicas) -> None:
    """Raise NetError if the init net does not initialize all parameters of the replicas."""
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    params = [blob for name in (*record.parameters, *record.computed) for blob in dict.fromkeys(record.blobs(name))]
    if missing := [blob for blob in params if blob not in made]:
        raise NetError(
            f"model {model.name!r}: the init net does not initialize the parameters {missing}; let param_init_net fill "
            "them, or create tables that all replicas use before Parallelize"
        )


@checked()
def FinalizeAfterCheckpoint(
    model: ModelHelper,
    blobs: Iterable[Any] | None = None,
    cpu_mode: bool = False,
    *,
    workspace: Workspace | None = None,
) -> None:
    """Copy the first replica's blobs to the other replicas, for example after loading a checkpoint into the first.

    With several processes these are the blobs of the first replica of rank 0, and blobs outside the replicas are copied
    to the other processes, too; all processes call it, with the same blobs. With block-wise updates, the parameters are
    copied to the global parameters as well. If parameters are copied, residuals of the exchange between processes are
    set to zero, as they belong to other parameters, and the update of a block that is in flight is dropped. It may be
    called any number of times.

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
    names, outside = _to_copy(model, record, blobs)
    workspace = workspace or default.workspace()
    sources = [*(record.devices.scopes[0] + name for name in names), *outside]
    if missing := [blob for blob in sources if not workspace.has(blob)]:
        raise BlobError(f"blobs {missing} are not in the workspace; run the init net, or load them, first")
    settle(model, workspace)
    net = _sync_net(model, record, names, outside, user_source())
    net.op.extend(global_from_first(record, names))
    net.name = f"{model.net.Name()}_checkpoint_sync"
    if record.world.common:
        create_worlds(makers_of(model.param_init_net.Proto(), record.world), workspace)
        whole = Net(net)
        reassign_worlds(whole, record.world.common)
        net = whole.Proto()
    workspace.run_net_once(net)
    made_equal(record, (*names, *outside), workspace)
    if set(record.parameters).intersection(names) or set(record.outside).intersection(outside):
        for residual in filter(workspace.has, (*record.residuals, *record.block_residuals)):
            workspace.feed(residual, np.zeros_like(workspace.fetch(residual)))
        if in_flight(record, workspace):
            set_in_flight(record, False, workspace)


@checked()
def AddBlobSync(model: ModelHelper, blobs: Iterable[Any], net: Net | None = None) -> None:
    """Append operators that copy the first replica's blobs to the other replicas, of all processes.

    Args:
        model: made by ``Parallelize``.
        blobs: strings or references, with or without a replica's scope.
        net: net to append to; None: the model's main net.

    Raises:
        BlobError: the replicas have no blob of that name.
    """
    record = Replicas.load(model.net.Proto())
    names, outside = _to_copy(model, record, blobs)
    net = model.net if net is None else net
    net.extend_ops(_sync_net(model, record, names, outside, user_source()).op)
    if record.world.common:
        reassign_worlds(net, record.world.common)


@checked()
def Synchronize(model: ModelHelper, timeout_sec: float = 300, *, workspace: Workspace | None = None) -> None:
    """Wait until all processes that train a model call it; with one process there is nothing to wait for.

    Args:
        model: made by ``Parallelize``; its init net has run.
        timeout_sec: how long the others may take, in seconds.
        workspace: workspace to use; None: the current default one.

    Raises:
        NetError: the model is not data-parallel, or ``timeout_sec`` is not positive.
        DistributedError: another process did not come in time.
    """
    record = Replicas.load(model.net.Proto())
    if isinstance(timeout_sec, bool) or not isinstance(timeout_sec, (int, float)) or not timeout_sec > 0:
        raise NetError(f"Synchronize: timeout_sec must be a positive number of seconds, got {timeout_sec!r}")
    if record.world.common:
        workspace, init_net = workspace or default.workspace(), model.param_init_net.Proto()
        maker = barrier_maker(init_net, record.world, timeout_sec)
        create_worlds([maker], workspace)
        world = dataclasses.replace(record.world, barrier=maker.output[0])
        workspace.run_net_once(barrier_net(model.net.Name(), world))


def _to_copy(model: ModelHelper, record: Replicas, blobs: Iterable[Any] | None) -> tuple[list[str], list[str]]:
    """Return the short names of blobs that each replica has, and, for several processes, blobs outside of them."""
    if not record.world.common:
        return known_names(model, record, blobs), []
    filled = initialized_outside(model.param_init_net.Proto(), record.devices)
    alone = {*record.residuals, *owned_state(model.param_init_net.Proto()), *record.rows_of_sharded}
    outside = dict.fromkeys(blob for blob in (*record.outside, *filled) if blob not in alone)
    if blobs is None:
        return known_names(model, record, None), list(outside)
    given = list(dict.fromkeys(map(blob_name, blobs)))
    whole = {name for blob in alone for name in (blob, record.devices.short_name(blob))}
    if apart := [name for name in given if name in whole]:
        raise BlobError(
            f"model {model.name!r}: {apart} cannot be copied, as each process has its own: rows of tables, the "
            "optimizer's state of its parameters, or residuals; load a checkpoint in all processes by load_checkpoint"
        )
    inside = known_names(model, record, [name for name in given if name not in outside])
    return inside, [name for name in given if name in outside]


def known_names(model: ModelHelper, record: Replicas, blobs: Iterable[Any] | None) -> list[str]:
    """Return the short names of blobs that each replica has; None: of all that the init net fills.

    Raises:
        BlobError: the replicas have no blob of this name.
    """
    init_net, main = model.param_init_net.Proto(), model.net.Proto()
    if blobs is None:
        alone = map(record.devices.short_name, (*record.residuals, *owned_state(init_net)))
        own = {*_shared(record), *alone}
        return [name for name in initialized_names(init_net, record.devices) if name not in own]
    names = set(record.parameters).union(record.computed)
    made = (blob for net in (init_net, main) for op in net.op for blob in op.output)
    devices = record.devices
    names.update(devices.short_name(blob) for blob in (*made, *main.external_input) if devices.replica_of(blob) == 0)
    found = record.short_names(map(blob_name, blobs), names)
    return [name for name in dict.fromkeys(found) if name not in _shared(record)]


def _shared(record: Replicas) -> Sequence[str]:
    return record.parameters if record.shared else ()


def _sync_net(
    model: ModelHelper, record: Replicas, names: Sequence[str], outside: Sequence[str], debug_info: str
) -> NetDef:
    groups: list[Sequence[str]] = [record.devices.copies(name) for name in names]
    link = process_link(record, [model.param_init_net.Proto(), model.net.Proto()], debug_info=debug_info)
    if link is None:
        return broadcast(groups, record.devices, debug_info=debug_info)
    return broadcast_over_processes([*groups, *((blob,) for blob in outside)], link)
