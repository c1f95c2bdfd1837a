"""The record of replicas of any net: stored by Parallelize, or inferred from the operators' devices."""

from __future__ import annotations

from collections import Counter

from netbuilder.graph.blob import device_prefix
from netbuilder.graph.blob_devices import operator_device
from netbuilder.graph.device_faults import CROSSING
from netbuilder.graph.devices import Devices
from netbuilder.graph.replicas import Replicas, has_record
from netbuilder.graph.scope import SEPARATOR
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef, NetError
from netbuilder.proto.call_checks import checked

__all__ = ["replicas_of"]


@checked()
def replicas_of(net: NetDef) -> Replicas:
    """Return the record of a data-parallel net; without one, infer the replicas from the operators' devices.

    A net that Caffe2 stored has no record. Its replicas are the devices whose operators write blobs under the device's
    scope ("gpu_3/"); parameters, gradients and losses remain unknown.

    Raises:
        NetError: there is no such operator, or one writes into the scope of another replica.
    """
    if has_record(net):
        return Replicas.load(net)
    writers: Counter[tuple[int, int]] = Counter()
    for op in net.op:
        device = operator_device(op, net)
        if device.device_type in (PROTO_CPU, PROTO_CUDA):
            scope = device_prefix(device.device_type, device.device_id) + SEPARATOR
            writers[device.device_type, device.device_id] += sum(blob.startswith(scope) for blob in op.output)
    found = sorted(device for device, count in writers.items() if count)
    if not found:
        raise NetError(
            f"net {net.name!r} has no record of replicas, and none of its operators writes a blob under the scope of "
            "its device (gpu_0/ or cpu_0/, for example), so its replicas cannot be identified"
        )
    kind = found[-1][0]  # a net for GPUs has operators on the host as well
    devices = Devices(kind, tuple(number for device_type, number in found if device_type == kind))
    _refuse_mixed_scopes(net, devices)
    return Replicas(devices)


def _refuse_mixed_scopes(net: NetDef, devices: Devices) -> None:
    for index, op in enumerate(net.op):
        device = operator_device(op, net)
        if device.device_type != devices.device_type or op.type in CROSSING:
            continue
        for blob in op.output:
            replica = devices.replica_of(blob)
            if replica is not None and devices.ids[replica] != device.device_id:
                raise NetError(
                    f"net {net.name!r} has no record of replicas, and its operators' devices contradict its scopes: "
                    f"operator {index} {op.type} runs on device {device.device_id} and writes {blob!r}"
                )
