"""Copies of parameters: one for all replicas, or one in each, with equal initial values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.blob_devices import blob_devices
from netbuilder.graph.devices import Devices
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.ops.core.renaming import rename_in_subgraphs
from netbuilder.parallel.builders import call_per_device
from netbuilder.parallel.owned_updates import owned_state
from netbuilder.parallel.request import Request, link_of
from netbuilder.parallel.synchronize import initialized_names, initialized_outside
from netbuilder.passes.processes import ProcessLink, broadcast_over_processes
from netbuilder.passes.reductions import allreduce, broadcast
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.depth import deep_nets

__all__ = ["share_parameters", "synchronize_initial_values"]


def synchronize_initial_values(model: ModelHelper, request: Request, record: Replicas) -> None:
    """Append copies of the first replica's blobs to the init net, and the operators of ``post_sync``."""
    init_net = model.param_init_net.Proto()
    link = link_of(model, request, record)
    owned = {*owned_state(init_net), *record.rows_of_sharded}
    names = initialized_names(init_net, record.devices) if len(record) > 1 or link is not None else []
    names = [name for name in names if record.devices.scopes[0] + name not in owned]
    groups = [record.devices.copies(name) for name in names]
    if request.options.average_initial_parameters and request.world_size > 1:
        _average_initial_parameters(model, request, record, link)
    if link is None:
        init_net.MergeFrom(broadcast(groups, record.devices, debug_info=request.debug_info))
    else:
        groups += [(blob,) for blob in initialized_outside(init_net, record.devices) if blob not in owned]
        init_net.MergeFrom(broadcast_over_processes(groups, link))
    if request.post_sync is not None:
        post_sync = request.post_sync
        call_per_device(record.devices, lambda replica: post_sync(model))


def _average_initial_parameters(
    model: ModelHelper, request: Request, record: Replicas, link: ProcessLink | None
) -> None:
    """Append to the init net what makes each parameter of the first replica the mean over all replicas."""
    init_net, devices = model.param_init_net.Proto(), record.devices
    groups = [] if record.shared else [record.blobs(name) for name in record.parameters]
    filled = initialized_outside(init_net, devices) if link is not None else []
    alone = [name for name in record.outside if name in filled and name not in record.rows_of_sharded]
    if link is not None and link.over_gpus:
        init_net.op.extend(link.allreduce_over_gpus(groups))
        summed = alone
    else:
        options: dict[str, Any] = {"peer_access": request.peer_access, "debug_info": request.debug_info}
        init_net.MergeFrom(allreduce(groups, devices, hand_back=False, **options))
        summed = [*(group[0] for group in groups), *alone]
    if link is not None and summed:
        init_net.op.extend(link.allreduce(summed))
    terms = dict.fromkeys((group[0] for group in groups), record.world.size)
    terms |= dict.fromkeys(alone, record.world.size // len(record))
    places = blob_devices([init_net])
    for blob, count in terms.items():
        op = make_op("Scale", [blob], [blob], device_option=places[blob], scale=1.0 / count)
        op.debug_info = request.debug_info
        init_net.op.append(op)


def share_parameters(model: ModelHelper, parameters: Sequence[str], devices: Devices) -> None:
    """Let all replicas, on the CPU, read the first one's parameters, and remove those of the others.

    Each replica keeps its own computed parameters.
    """
    first, *others = devices.scopes
    renaming = {scope + name: first + name for scope in others for name in parameters}
    main, init_net = model.net.Proto(), model.param_init_net.Proto()
    for op in main.op:
        for slot, blob in enumerate(op.input):
            if blob in renaming:
                op.input[slot] = renaming[blob]
        rename_in_subgraphs(op, renaming)
    main.external_input[:] = [blob for blob in main.external_input if blob not in renaming]
    _remove_initializers(init_net, renaming)
    for params in (model.params, model.weights, model.biases):
        params[:] = [param for param in params if str(param) not in renaming]
    for name in renaming:
        model.param_to_grad.pop(BlobReference(name), None)


def _remove_initializers(net: NetDef, removed: Collection[str]) -> None:
    remaining = [op for op in net.op if not op.output or any(blob not in removed for blob in op.output)]
    if len(remaining) < len(net.op):
        shorter = NetDef()
        shorter.CopyFrom(net)
        del shorter.op[:]
        with deep_nets():
            shorter.op.extend(remaining)
        net.CopyFrom(shorter)
