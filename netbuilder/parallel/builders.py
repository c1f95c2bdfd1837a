"""Building of replicas: the user's builders are called once per device, and the blobs they make are grouped."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.blob_devices import may_have_subgraphs
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.devices import Devices
from netbuilder.graph.gradient_shares import is_backward
from netbuilder.graph.net_copy import copy_operators
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.scope import SEPARATOR, DeviceScope, NameScope
from netbuilder.graph.shapes import infer_shapes
from netbuilder.graph.source import definition_of
from netbuilder.model import ModelHelper
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.parallel.loss_scale import LossScale, warn_of_unscaled_losses
from netbuilder.passes.replicate import draw_as
from netbuilder.proto import NetDef, NetError, OperatorDef, ShapeError
from netbuilder.proto.errors import counted

__all__ = [
    "assign_random_replicas",
    "build_replicas",
    "call_per_device",
    "check_losses",
    "group_by_name",
    "initial_shapes",
    "require_scalar_losses",
]


def call_per_device(devices: Devices, function: Callable[[int], Any]) -> list[Any]:
    """Call ``function`` with each replica's number, inside the replica's name and device scopes."""
    results = []
    for replica, (scope, option) in enumerate(zip(devices.scopes, devices.options)):
        with DeviceScope(option), NameScope(scope.rstrip(SEPARATOR)):
            results.append(function(replica))
    return results


def build_replicas(
    model: ModelHelper,
    devices: Devices,
    build_input: Callable[[ModelHelper], Any],
    build_forward: Callable[[ModelHelper, float], Any],
    *,
    trains: bool,
    world_size: int,
    sums_gradients: bool = True,
    vector_losses: bool = False,
) -> list[list[BlobReference]]:
    """Build input and forward pass on each device; return the losses of each replica, none without training.

    The losses are scaled by 1 / ``world_size``, the number of replicas of all processes; with ``sums_gradients`` there
    is a warning for losses that are not.

    Raises:
        ShapeError: a loss is not one number, without ``vector_losses``.
        NetError: the forward builder of a net for training does not return a list of losses, or not the same
            number of losses on each device.
    """
    scale = LossScale(1.0 / world_size)

    def build(replica: int) -> list[BlobReference]:
        start = model.net.op_len
        build_input(model)
        losses = build_forward(model, scale)
        if not trains:
            return []
        check_losses(losses, devices, replica, build_forward)
        if replica == 0 and not vector_losses and not _is_fed(model):
            require_scalar_losses(model, losses)
        if replica == 0 and world_size > 1 and sums_gradients:
            ops = model.net.Proto().op[start:]
            warn_of_unscaled_losses(ops, model.param_init_net.Proto(), losses, scale, world_size)
        return list(losses)

    with _advising_about_gradients(model):
        losses = call_per_device(devices, build)
    for number, of_replica in zip(devices.ids, losses):
        if len(of_replica) != len(losses[0]):
            raise NetError(
                f"forward_pass_builder_fun returned {counted(len(losses[0]), 'loss', 'losses')} on device "
                f"{devices.ids[0]} and "
                f"{len(of_replica)} on device {number}; the builders must make the same net on each device"
            )
    return losses


@contextmanager
def _advising_about_gradients(model: ModelHelper) -> Iterator[None]:
    """Let the error of an optimizer that is built in the block say where it belongs."""
    before = model._gradient_advice
    model._gradient_advice = "Parallelize adds it after this: give the optimizer as optimizer_builder_fun=..."
    try:
        yield
    finally:
        model._gradient_advice = before


def _is_fed(model: ModelHelper) -> bool:
    """Whether the main net reads blobs that the init net does not make, so that no shape follows from them."""
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    return not made.issuperset(undefined_inputs(model.net.Proto().op))


def check_losses(losses: Any, devices: Devices, replica: int, builder: Any) -> None:
    """Raise NetError unless ``losses``, from ``builder``, is a list of references to blobs of the replica."""
    where = definition_of(builder)
    rule = f"forward_pass_builder_fun{f' ({where})' if where else ''} must return a list of losses (BlobReferences)"
    if not isinstance(losses, list):
        raise NetError(f"{rule}; got {losses!r} of type {type(losses).__name__}")
    if not losses:
        raise NetError(f"{rule}; got an empty list: without a loss there is nothing to train")
    for loss in losses:
        if not isinstance(loss, BlobReference):
            raise NetError(f"{rule}; got {loss!r} of type {type(loss).__name__} in it")
        if devices.replica_of(str(loss)) != replica:
            raise NetError(
                f"{rule} under the scope {devices.scopes[replica]!r} of the replica; got {str(loss)!r}: name outputs "
                "of operators by plain strings, which get the scope"
            )


def require_scalar_losses(
    model: ModelHelper, losses: Sequence[BlobReference], specs: Mapping[str, TensorSpec] | None = None
) -> None:
    """Raise ShapeError for a loss that is not one number: its gradient would depend on the number of devices.

    Args:
        model: model with the forward pass, and possibly a backward pass after it.
        losses: those of one replica. A loss whose shape cannot be inferred is checked when its gradient is computed.
        specs: known shapes and types of that replica's inputs.
    """
    whole = model.net.Proto()
    forward = itertools.takewhile(lambda index: not _is_of_gradient(whole.op[index]), range(len(whole.op)))
    found = infer_shapes([model.param_init_net, copy_operators(whole, whole.name, forward)], specs)
    for loss in losses:
        spec = found.spec(loss)
        if spec is not None and spec.size != 1:
            raise ShapeError(
                f"model {model.name!r}: the loss {str(loss)!r} has shape {spec.shape}, and must be one number, a mean "
                "over samples, so that its gradient does not depend on the number of devices; return "
                "model.net.AveragedLoss(loss, ...) of it"
            )


def _is_of_gradient(op: OperatorDef) -> bool:
    return is_backward(op) or any(argument.name == "of_scalar_loss" for argument in op.arg)


def group_by_name(
    what: str, blobs: Sequence[Any], devices: Devices, shapes: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the names, without scope, that blobs of all replicas share, in the order of the first replica.

    Args:
        what: the kind of blobs, for errors.
        blobs: full names of the blobs of all replicas.
        devices: devices of the replicas.
        shapes: full name -> shape, if known.

    Raises:
        NetError: a blob is not under the scope of a replica, is missing on some device, or differs in shape.
    """
    having: dict[str, list[int]] = {}
    for blob in map(str, blobs):
        replica = devices.replica_of(blob)
        if replica is None:
            raise NetError(
                f"{what} {blob!r} was created by the builders, but not under the scope of a replica "
                f"({', '.join(devices.scopes)}); name it by a plain string, which gets the scope, or create it before "
                "Parallelize if all replicas share it"
            )
        having.setdefault(devices.short_name(blob), []).append(replica)
    for name, replicas in having.items():
        if len(replicas) < len(devices):
            present = [devices.ids[replica] for replica in replicas]
            missing = [number for number in devices.ids if number not in present]
            raise NetError(
                f"{what} {name!r} exists on device {_list(present)}, but is missing on device {_list(missing)}; the "
                "builders must make the same net on each device"
            )
        if shapes:
            _check_shapes(what, name, devices, shapes)
    return list(having)


def _check_shapes(what: str, name: str, devices: Devices, shapes: Mapping[str, Any]) -> None:
    found = {scope: shapes[scope + name] for scope in devices.scopes if shapes.get(scope + name) is not None}
    if len({tuple(shape) for shape in found.values()}) > 1:
        raise NetError(
            f"{what} {name!r} has different shapes on the devices: "
            + ", ".join(f"{scope + name} {list(shape)}" for scope, shape in found.items())
            + "; the builders must make the same net on each device"
        )


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def initial_shapes(init_net: NetDef) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the blobs that fills in the init net write."""
    shapes = {}
    for op in init_net.op:
        if op.input:
            continue
        for argument in op.arg:
            if argument.name == "shape":
                shapes[op.output[0]] = tuple(argument.ints)
                break
    return shapes


def assign_random_replicas(net: NetDef, record: Replicas) -> None:
    """Set the random stream and the replica's number of random operators, those in subgraphs included.

    The scope of the replica is removed from the stream, so that the replicas of an operator have the same stream.

    Args:
        net: changed in place.
        record: the record of its replicas.
    """
    for op in net.op:
        if not _may_draw(op.type):
            continue
        local = record.devices.replica_of(op.output[0]) if op.output else None
        if local is not None:
            draw_as(op, record.devices.scopes[local], record.world.first_replica + local)


@functools.cache
def _may_draw(op_type: str) -> bool:
    """Whether operators of a type, or of their subgraphs, can draw random numbers."""
    return may_have_subgraphs(op_type) or is_registered(op_type) and find(op_type).draws
