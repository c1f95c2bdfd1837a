"""The backward pass of all replicas, and the exchange of their gradients and computed parameters."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.graph.batch_norm_exchange import combined_statistics
from netbuilder.graph.blob import BlobReference, GradientSlice, gathered_name, gradient_name, seed_name
from netbuilder.graph.devices import Devices
from netbuilder.graph.gradients import as_references
from netbuilder.graph.replicas import GradientGroup, Replicas, gradient_group
from netbuilder.graph.scope import DeviceScope, EmptyNameScope
from netbuilder.model import ModelHelper
from netbuilder.passes.reductions import (
    PeerAccess,
    allreduce,
    broadcast,
    by_readiness,
    gather_sparse,
    nccl_allreduce,
    nccl_broadcast,
)
from netbuilder.passes.replicate import replicated_backward
from netbuilder.proto import NetDef, NetError

__all__ = ["add_backward_pass", "broadcast_computed", "exchange_gradients", "gathered_gradients", "group_gradients"]


def add_backward_pass(
    model: ModelHelper,
    devices: Devices,
    losses: Sequence[Sequence[BlobReference]],
    *,
    seed: float = 1.0,
    weights: Sequence[BlobReference] = (),
    scales: Sequence[BlobReference] = (),
    vector_losses: bool = False,
) -> None:
    """Differentiate the losses of all replicas together, each seeded with a constant on the replica's device.

    If an operator reads a loss, the seed is only one term of the loss's gradient, so it gets another name.

    Args:
        model: model with the forward pass of all replicas.
        devices: devices of the replicas.
        losses: for each replica its losses.
        seed: the constant.
        weights, scales: for each replica a blob of one number by which the constant is multiplied; empty: none.
        vector_losses: losses may have several numbers. Otherwise their shapes are checked when the net runs.
    """
    checked: dict[str, Any] = {} if vector_losses else {"of_scalar_loss": True}
    seeds: dict[BlobReference, BlobReference] = {}
    read = {blob for op in model.net.Proto().op for blob in op.input} if len(losses[0]) > 1 else ()
    with EmptyNameScope():
        for replica, (option, of_replica) in enumerate(zip(devices.options, losses)):
            with DeviceScope(option):
                for loss in of_replica:
                    name = seed_name(loss) if str(loss) in read else gradient_name(loss)
                    seeds[loss] = model.net.ConstantFill([loss], name, value=seed, **checked)
                    for factors in filter(None, (weights, scales)):
                        model.net.WeightedSum([seeds[loss], factors[replica]], name)
    found = None
    if len(devices) > 1:
        given = {str(loss): str(gradient) for loss, gradient in seeds.items()}
        with contextlib.suppress(NetError):  # raised by the pass over all replicas, with the index in the net
            found = replicated_backward(model.net.Proto().op, given, devices)
    if found is None:
        model.AddGradientOperators(seeds)
    else:
        model.extend_backward(found[0], as_references(found[1]))


def group_gradients(
    parameters: Sequence[str], gradients: Mapping[BlobReference, Any], devices: Devices
) -> list[GradientGroup]:
    """Return the gradients grouped by parameter, in the order of the parameters; some may have no gradient.

    Raises:
        NetError: the replicas disagree about whether a parameter has a gradient, or of which kind.
    """
    groups = []
    for name in parameters:
        found = [gradients.get(BlobReference(blob)) for blob in devices.copies(name)]
        if all(gradient is None for gradient in found):
            continue
        _check_indices(name, found, devices)
        having = [number for number, gradient in zip(devices.ids, found) if gradient is not None]
        if len(having) < len(devices):
            missing = [number for number in devices.ids if number not in having]
            raise NetError(
                f"parameter {name!r} has a gradient on devices {having}, but none on devices {missing}; the builders "
                "must make the same net on each device"
            )
        kinds = list(dict.fromkeys(gradient_group(name, gradient, devices) for gradient in found))
        if len(kinds) > 1:
            raise NetError(
                f"parameter {name!r}: its gradient has different names on the replicas: {', '.join(map(str, kinds))}; "
                "the builders must make the same net on each device"
            )
        groups.append(kinds[0])
    return groups


def _check_indices(name: str, gradients: Sequence[Any], devices: Devices) -> None:
    """Raise if indices are outside the replicas: the allgather would count them once for each replica."""
    for gradient in gradients:
        if isinstance(gradient, GradientSlice) and devices.replica_of(str(gradient.indices)) is None:
            raise NetError(
                f"parameter {name!r}: its rows are looked up by {str(gradient.indices)!r}, which is not under the "
                f"scope of a replica ({', '.join(devices.scopes)}); give each replica its own indices (Copy), or "
                "create the table before Parallelize"
            )


def gathered_gradients(model: ModelHelper, record: Replicas) -> Replicas:
    """Return the record with the names of sparse gradients after the allgather, which the model gets, too."""
    own_values = record.devices.is_cpu
    groups = tuple(
        GradientGroup(
            group.parameter, gathered_name(group.values) if own_values else group.values, gathered_name(group.indices)
        )
        if group.is_sparse
        else group
        for group in record.gradients
    )
    for group in groups:
        if group.is_sparse:
            for scope, blob in zip(record.devices.scopes, dict.fromkeys(record.blobs(group.parameter))):
                pair = BlobReference(scope + group.indices), BlobReference(scope + group.values)
                model.param_to_grad[BlobReference(blob)] = GradientSlice(*pair)
    return dataclasses.replace(record, gradients=groups)


def broadcast_computed(record: Replicas, main: NetDef, *, use_nccl: bool, debug_info: str) -> NetDef:
    """Return the operators that copy the first replica's computed parameters to the others.

    With NCCL without those that all replicas compute from the same sums; the copies are Caffe2's, and NCCL's calls
    would divide the work of the GPUs.
    """
    equal = combined_statistics(main) if use_nccl else ()
    groups = [group for group in map(record.devices.copies, record.computed) if group[0] not in equal]
    make = nccl_broadcast if use_nccl else broadcast
    return make(groups, record.devices, debug_info=debug_info)


def exchange_gradients(
    record: Replicas, main: NetDef, *, use_nccl: bool, peer_access: PeerAccess | None, hand_back: bool, debug_info: str
) -> list[NetDef]:
    """Return the operators that sum the replicas' gradients on each replica, or without ``hand_back`` on the first.

    Sparse gradients are concatenated instead. The order is the reverse of the parameters', because the gradients of
    the last parameters are ready first; NCCL's operators, which wait for one another, have the order in which the main
    net has the gradients ready.
    """
    devices = record.devices
    nets: list[NetDef] = []
    dense: list[tuple[str, ...]] = []
    joined: set[str] = set()

    def flush() -> None:
        if dense and use_nccl:
            ordered = [group for _, group in by_readiness(main, dense)]
            nets.append(nccl_allreduce(ordered, devices, debug_info=debug_info))
        elif dense:
            sums = allreduce(dense, devices, peer_access=peer_access, hand_back=hand_back, debug_info=debug_info)
            nets.append(sums)
        dense.clear()

    for group in reversed(record.gradients):
        if not group.is_sparse:
            dense.append(devices.copies(group.values))
            continue
        flush()
        pair = devices.copies(group.indices), devices.copies(group.values)
        joins = gather_sparse([pair], devices, hand_back=hand_back, debug_info=debug_info, joined=joined)
        nets.append(joins)
    flush()
    return nets
