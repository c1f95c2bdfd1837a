"""Gradients summed over micro-batches: exchanged and used for an update behind the last one only."""

from __future__ import annotations

from collections.abc import Iterable

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.scope import DeviceScope, EmptyNameScope
from netbuilder.model import ModelHelper
from netbuilder.optimizers.placement import get_param_device, parameter_devices
from netbuilder.parallel.record import Replicas
from netbuilder.proto import DeviceOption, NetDef, NetError
from netbuilder.runtime import Workspace

__all__ = ["accumulate_gradients", "created_nets", "forget_gradients", "net_names", "pending_steps"]

_SUFFIX = "_accumulated"
_MICRO, _UPDATE = "_micro_batch", "_update"  # behind the name of the main net


def accumulate_gradients(model: ModelHelper, record: Replicas) -> tuple[str, ...]:
    """Add the sums of gradients over micro-batches behind the backward pass; return the blobs that hold them.

    In each micro-batch a gradient is added to its sum. The step's second part begins by taking the sum for the
    gradient, and by setting it to 0.

    Args:
        model: with its backward pass, without exchange and update; both nets are added to.
        record: of its replicas.

    Raises:
        NetError: a gradient is sparse.
    """
    pairs = _pairs(model, record)
    placed = parameter_devices([model.net.Proto(), model.param_init_net.Proto()], [param for param, _ in pairs])
    sums: list[tuple[DeviceOption, BlobReference, BlobReference]] = []
    with EmptyNameScope():
        for param, gradient in pairs:
            device = _device_of(gradient, record) or get_param_device(str(param), gradient, placed)
            with DeviceScope(device):
                total = model.param_init_net.ConstantFill([param], gradient + _SUFFIX, value=0.0)
                model.net.Sum([total, gradient], total)
            sums.append((device, total, gradient))
        for device, total, gradient in sums:
            with DeviceScope(device):
                model.net.Copy(total, gradient)
                model.net.ConstantFill([total], total, value=0.0)
    return tuple(str(total) for _, total, _ in sums)


def _pairs(model: ModelHelper, record: Replicas) -> list[tuple[BlobReference, BlobReference]]:
    """Return each gradient with a parameter of its shape."""
    found: dict[str, str] = {}
    for group in record.gradients:
        if group.is_sparse:
            raise _sparse(group.parameter)
        for param, gradient in zip(record.blobs(group.parameter), record.devices.copies(group.values)):
            found[gradient] = param
    for param in record.outside:
        whole = model.param_to_grad.get(BlobReference(param))
        if isinstance(whole, GradientSlice):
            raise _sparse(param)
        if whole is not None:
            found[str(whole)] = param
    return [(BlobReference(param), BlobReference(gradient)) for gradient, param in found.items()]


def _sparse(param: str) -> NetError:
    return NetError(
        f"accumulate_steps: the gradient of {param!r} is sparse, and such are not summed over micro-batches; "
        "leave accumulate_steps out, or make the gradient dense"
    )


def _device_of(gradient: BlobReference, record: Replicas) -> DeviceOption | None:
    replica = record.devices.replica_of(str(gradient))
    return None if replica is None else record.devices.options[replica]


def net_names(name: str, record: Replicas) -> list[str]:
    """Return the names of ``created_nets`` of the main net of that name."""
    return [name] if record.accumulate_steps == 1 else [name + _MICRO, name + _UPDATE]


def created_nets(net: NetDef, record: Replicas) -> list[NetDef]:
    """Return the nets that a workspace creates of a main net: itself, or a micro-batch's part and the update's.

    Raises:
        NetError: the sums that the record names are not in the net.
    """
    if record.accumulate_steps == 1:
        return [net]
    sums = set(record.accumulated)
    last = max((i for i, op in enumerate(net.op) if op.type == "Sum" and sums.intersection(op.output)), default=-1)
    if last < 0:
        raise NetError(f"net {net.name!r}: its record names sums of gradients, {sorted(sums)[:4]}, that it lacks")
    micro_batch, update = net_names(net.name, record)
    return [_part(net, micro_batch, range(last + 1)), _part(net, update, range(last + 1, len(net.op)))]


def _part(net: NetDef, name: str, indices: Iterable[int]) -> NetDef:
    part = NetDef()
    part.CopyFrom(net)
    del part.op[:], part.external_input[:], part.external_output[:]
    part.name = name
    made: set[str] = set()
    read: dict[str, None] = {}
    for index in indices:
        op = net.op[index]
        read.update((blob, None) for blob in op.input if blob not in made)
        made.update(op.output)
        part.op.append(op)
    part.external_input.extend(read)
    return part


def pending_steps(model: ModelHelper, workspace: Workspace) -> int:
    """Return how many micro-batches of the present step have run, which no update has used yet."""
    net = model.net.Proto()
    record = Replicas.load(net)
    name = net.name + _MICRO
    if record.accumulate_steps == 1 or name not in workspace.nets():
        return 0
    return int(workspace.net(name).clock.iteration) % record.accumulate_steps


def forget_gradients(model: ModelHelper, workspace: Workspace) -> None:
    """Begin a step anew: set the sums of gradients to 0, where they are there, and count from the first micro-batch."""
    net = model.net.Proto()
    record = Replicas.load(net)
    pending = pending_steps(model, workspace)
    if pending:
        workspace.net(net.name + _MICRO).clock.iteration -= pending
    for blob in record.accumulated:
        if workspace.has(blob) and not workspace.get(blob).is_empty:
            workspace.feed(blob, workspace.fetch(blob) * 0)
