"""Gradient accumulation over micro-batches: gradients are exchanged and applied only after the last one."""

from __future__ import annotations

import dataclasses

import numpy as np

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.memory_budget import clear_stored_budget
from netbuilder.graph.net_copy import copy_operators, join_parts
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.scope import DeviceScope, EmptyNameScope
from netbuilder.model import ModelHelper
from netbuilder.ops.core.random_streams import draws
from netbuilder.optimizers.placement import get_param_device, parameter_devices
from netbuilder.parallel.accumulate_rows import append_rows, flush_rows, is_row_operator, row_buffers
from netbuilder.parallel.step_divisors import forget_divisors, require_divisors
from netbuilder.proto import DeviceOption, NetDef, NetError
from netbuilder.proto.arguments import arguments
from netbuilder.proto.call_checks import checked
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.options import FindNan

__all__ = [
    "accumulate_gradients",
    "clear_sums",
    "created_nets",
    "forget_gradients",
    "net_names",
    "pending_steps",
    "run_iterations",
    "why_micro_batches_differ",
]

_SUFFIX = "_accumulated"
_MICRO, _ROWS, _UPDATE = "_micro_batch", "_rows", "_update"  # suffixes of the main net's name


def accumulate_gradients(model: ModelHelper, record: Replicas) -> Replicas:
    """Append the sums of gradients over micro-batches after the backward pass; return the record with their names.

    Each micro-batch adds each gradient to its sum. The update of the step starts by copying the sum to the gradient
    and resetting the sum to 0. The rows of sparse gradients are collected in buffers instead (``row_buffers``).

    Args:
        model: model with a backward pass, without exchange and update; both nets are extended.
        record: the record of its replicas.

    Raises:
        NetError: a gradient is sparse, and the shape of its table is not known.
    """
    pairs = _pairs(model, record)
    params = [*(param for param, _ in pairs), *map(BlobReference, record.outside)]
    placed = parameter_devices([model.net.Proto(), model.param_init_net.Proto()], params)
    sums: list[tuple[DeviceOption, BlobReference, BlobReference]] = []
    record, buffers = row_buffers(model, record, placed)
    with EmptyNameScope():
        for param, gradient in pairs:
            device = _device_of(gradient, record) or get_param_device(str(param), gradient, placed)
            with DeviceScope(device):
                total = model.param_init_net.ConstantFill([param], gradient + _SUFFIX, value=0.0)
                model.net.Sum([total, gradient], total)
            sums.append((device, total, gradient))
        append_rows(model, buffers)
        for device, total, gradient in sums:
            with DeviceScope(device):
                model.net.Copy(total, gradient)
                model.net.ConstantFill([total], total, value=0.0)
        flush_rows(model, buffers)
    return dataclasses.replace(record, accumulated=tuple(str(total) for _, total, _ in sums))


def _pairs(model: ModelHelper, record: Replicas) -> list[tuple[BlobReference, BlobReference]]:
    """Return (parameter, gradient) for each dense gradient."""
    found: dict[str, str] = {}
    for group in record.gradients:
        if not group.is_sparse:
            for param, gradient in zip(record.blobs(group.parameter), record.devices.copies(group.values)):
                found[gradient] = param
    for param in record.outside:
        whole = model.param_to_grad.get(BlobReference(param))
        if whole is not None and not isinstance(whole, GradientSlice):
            found[str(whole)] = param
    return [(BlobReference(param), BlobReference(gradient)) for gradient, param in found.items()]


def _device_of(gradient: BlobReference, record: Replicas) -> DeviceOption | None:
    replica = record.devices.replica_of(str(gradient))
    return None if replica is None else record.devices.options[replica]


_OF_WHOLE_BATCH = {"SpatialBN": "normalizes with", "ChannelStats": "computes"}


def why_micro_batches_differ(net: NetDef) -> str | None:
    """Return why the gradients of micro-batches do not add up to those of the whole batch; None if they do.

    They do, within rounding, if no operator depends on the other samples of its batch, and none draws random numbers,
    which differ between micro-batches.

    Args:
        net: a training net whose losses are means over the batch.
    """
    for op in net.op:
        in_training = not arguments(op).get("is_test", 0)
        if op.type in _OF_WHOLE_BATCH and in_training and not op.is_gradient_op:
            return f"{op.type} {op.output[0]!r} {_OF_WHOLE_BATCH[op.type]} statistics of the whole batch"
        if draws(op) and in_training:
            return f"{op.type} {op.output[0]!r} draws other random numbers for each micro-batch"
    return None


def net_names(name: str, record: Replicas) -> list[str]:
    """Return the names of the ``created_nets`` of the main net ``name``."""
    if record.accumulate_steps == 1:
        return [name]
    return [name + part for part in ((_MICRO, _ROWS, _UPDATE) if record.accumulated_rows else (_MICRO, _UPDATE))]


def created_nets(net: NetDef, record: Replicas) -> list[NetDef]:
    """Return the nets that a workspace creates for a main net: the net itself, or its micro-batch and update parts.

    The operators that append the rows of sparse gradients are a part of their own, because their shapes differ between
    micro-batches, and plans are compiled for fixed shapes.

    Raises:
        NetError: the net lacks blobs that the record names.
    """
    if record.accumulate_steps == 1:
        return [net]
    sums = set(record.accumulated)
    rows = [i for i, op in enumerate(net.op) if is_row_operator(op, record.accumulated_rows)]
    last = max((i for i, op in enumerate(net.op) if op.type == "Sum" and sums.intersection(op.output)), default=-1)
    if last < 0 and sums or not rows and record.accumulated_rows:
        names = sorted((*record.accumulated, *record.accumulated_rows))
        raise NetError(
            f"net {net.name!r}: its record names the sums of gradients {names[:4]}, but no operator writes them; use "
            "the net as Parallelize made it"
        )
    ends = [rows[0], rows[-1] + 1] if rows else [last + 1]
    bounds = zip([0, *ends], [*ends, len(net.op)])
    parts = [copy_operators(net, name, range(*bound)) for name, bound in zip(net_names(net.name, record), bounds)]
    for part in parts[1:]:
        clear_stored_budget(part)  # an update has nothing to compute again
    join_parts(net, parts)
    return parts


def run_iterations(
    name: str, record: Replicas, count: int, *, workspace: Workspace, wait: bool = True, find_nan: FindNan = False
) -> None:
    """Run ``count`` micro-batches by the created nets of the main net ``name``, and the update after each K-th one.

    Without ``accumulate_steps`` they are iterations of the main net.
    """
    if record.accumulate_steps == 1:
        workspace.run_net(name, count, wait=wait, find_nan=find_nan)
        return
    *micro_batch, update = net_names(name, record)
    for _ in range(count):
        if record.step_divisors and workspace.net(micro_batch[0]).clock.iteration % record.accumulate_steps == 0:
            require_divisors(record, workspace)
        for part in micro_batch:
            workspace.run_net(part, wait=wait, find_nan=find_nan)
        if workspace.net(micro_batch[0]).clock.iteration % record.accumulate_steps == 0:
            workspace.run_net(update, wait=wait, find_nan=find_nan)
            forget_divisors(record, workspace)


@checked()
def pending_steps(model: ModelHelper, workspace: Workspace) -> int:
    """Return how many micro-batches have run since the last update."""
    net = model.net.Proto()
    record = Replicas.load(net)
    name = net.name + _MICRO
    if record.accumulate_steps == 1 or name not in workspace.nets():
        return 0
    return int(workspace.net(name).clock.iteration) % record.accumulate_steps


@checked()
def forget_gradients(model: ModelHelper, workspace: Workspace) -> None:
    """Restart the current step: set the existing sums of gradients to 0 and count from the first micro-batch.

    The collected rows of sparse gradients are dropped, and residuals of the exchange between processes are set to 0.
    """
    net = model.net.Proto()
    record = Replicas.load(net)
    pending = pending_steps(model, workspace)
    if pending:
        workspace.net(net.name + _MICRO).clock.iteration -= pending
    clear_sums(record, workspace)


def clear_sums(record: Replicas, workspace: Workspace) -> None:
    """Set the existing sums of gradients to 0, drop collected rows, and set residuals of the exchange to 0."""
    for blob in (*record.accumulated, *record.residuals):
        if workspace.has(blob) and not workspace.get(blob).is_empty:
            workspace.feed(blob, np.zeros_like(workspace.fetch(blob)))
    for blob in record.accumulated_rows:
        if workspace.has(blob) and not workspace.get(blob).is_empty:
            workspace.feed(blob, workspace.fetch(blob)[:0])
