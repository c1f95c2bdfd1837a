"""Model parallelism within data parallelism: activations of replicas, and what computes them, on other GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from netbuilder.caffe2.device_copies import InjectCrossDeviceCopies
from netbuilder.caffe2.missing import names_of
from netbuilder.graph.blob import gradient_name
from netbuilder.graph.devices import Devices
from netbuilder.model import ModelHelper
from netbuilder.parallel import stripBlobName
from netbuilder.proto import PROTO_CUDA, NetError, OperatorDef
from netbuilder.proto.suggestions import did_you_mean

__all__ = ["GetActivationBlobs", "ShiftActivationDevices", "log"]

log = logging.getLogger("netbuilder")

__getattr__ = names_of(__name__)


def _devices_of(model: ModelHelper) -> Devices:
    if "_device_type" not in vars(model):
        raise NetError(f"model {model.name!r} has no replicas: call Parallelize first")
    return Devices(model._device_type, tuple(model._devices))


def GetActivationBlobs(model: ModelHelper) -> list[str]:
    """Return the activations of a parallel model, in the order of the net, without the prefix of a device.

    They are the blobs of the first replica that operators write and read, whose gradients are read, too.

    Raises:
        NetError: the model has no replicas.
    """
    scope, ops = _devices_of(model).scopes[0], model.net.Proto().op
    read = {blob for op in ops for blob in op.input}
    excluded = {str(parameter) for parameter in model.GetParams("")}
    excluded |= {gradient_name(blob) for op in ops for blob in (*op.input, *op.output)}
    found = (
        stripBlobName(blob)
        for op in ops
        for blob in op.output
        if blob.startswith(scope) and blob in read and gradient_name(blob) in read and blob not in excluded
    )
    return list(dict.fromkeys(found))


def ShiftActivationDevices(model: ModelHelper, activations: Iterable[str], shifts: Mapping[int, int]) -> None:
    """Move activations of replicas to other GPUs, with the operators and parameters that they need, and add copies.

    An operator runs on the GPU of the last activation among its inputs and outputs, an update where its parameter is.
    The nets of the model become copies with operators that copy blobs between GPUs. Use it after ``Parallelize``, to
    train models that are too large for one GPU.

    Args:
        model: a parallel model on GPUs.
        activations: without the prefix of a device, see ``GetActivationBlobs``.
        shifts: for GPUs of replicas, the GPU that takes over the activations.

    Raises:
        NetError: the model has no replicas on GPUs; a GPU of ``shifts`` has no replica, or also takes over others'
            activations; or an activation does not exist.
    """
    devices, names = _devices_of(model), list(map(str, activations))
    known = GetActivationBlobs(model)
    if devices.device_type != PROTO_CUDA:
        raise NetError(f"ShiftActivationDevices: model {model.name!r} must have its replicas on GPUs, not on {devices}")
    if wrong := sorted(set(shifts) - set(devices.ids)):
        raise NetError(f"ShiftActivationDevices: shifts from GPUs {wrong}, but the replicas are on {devices}")
    if both := sorted(set(shifts) & set(shifts.values())):
        raise NetError(f"ShiftActivationDevices: GPUs {both} must not both give and take activations, got {shifts}")
    if missing := sorted(set(names) - set(known)):
        hint = did_you_mean(missing[0], known)
        raise NetError(f"ShiftActivationDevices: model {model.name!r} has no activations {missing}{hint}")
    for source, target in shifts.items():
        log.info("Shifting %d activations from GPU %d to GPU %d", len(names), source, target)
        _shift(model, devices.scopes[devices.ids.index(source)], names, known, source, target)
    model.param_init_net, places = InjectCrossDeviceCopies(model.param_init_net)
    model.net, _ = InjectCrossDeviceCopies(model.net, places)


def _shift(
    model: ModelHelper, scope: str, moved: Iterable[str], activations: Iterable[str], source: int, target: int
) -> None:
    """Set the GPU of each operator of a replica, and of the fills of its blobs."""
    fixed = {scope + name: source for name in activations} | {scope + name: target for name in moved}
    places: dict[str, int] = dict(fixed)
    for op in model.net.Proto().op:
        if op.device_option.device_type == PROTO_CUDA and op.device_option.device_id == source:
            op.device_option.device_id = _place(op, fixed, places, source)
            for blob in (*op.input, *op.output):
                if blob.startswith(scope):
                    places.setdefault(blob, op.device_option.device_id)
    for op in model.param_init_net.Proto().op:
        if op.device_option.device_type == PROTO_CUDA and op.output and op.output[0] in places:
            op.device_option.device_id = places[op.output[0]]


def _place(op: OperatorDef, fixed: Mapping[str, int], places: Mapping[str, int], default: int) -> int:
    """Return an operator's GPU: that of what it overwrites, of its last activation, or of its first known blob.

    An update of a parameter therefore runs where the parameter is: elsewhere it would change a copy.
    """
    blobs = [*op.input, *op.output]
    overwritten = [places[blob] for blob in op.output if blob in op.input and blob in places]
    own = [fixed[blob] for blob in blobs if blob in fixed]
    known = [places[blob] for blob in blobs if blob in places]
    return (overwritten[-1:] or own[-1:] or known[:1] or [default])[0]
