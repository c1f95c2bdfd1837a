"""Insertion of copies between devices where an operator reads a blob of another device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any

from netbuilder.graph import BlobReference, DeviceScope, Net
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceOption, NetDef, NetError, OperatorDef, UsageError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.netbuilder_pb2 import PROTO_HIP

__all__ = [
    "InferOpBlobDevices",
    "InferOpBlobDevicesAsDict",
    "InferOpDeviceAsBlobDevices",
    "InjectCrossDeviceCopies",
    "InjectDeviceCopiesAmongNets",
    "InjectDeviceCopiesAmongNetsWithoutB2D",
    "RemapEntry",
    "copy_func_between_devices",
    "update_placeholder_op_output",
]

_GPUS = (PROTO_CUDA, PROTO_HIP)

Devices = MutableMapping[str, DeviceOption]

# Indices of inputs (or outputs) in host memory although the operator runs on a GPU, in addition to those that the
# operator's class names.
_INPUTS_ON_HOST = {"CopyCPUToGPU": (0,), "CopyFromCPUInput": (0,)}
_OUTPUTS_ON_HOST = {"Concat": (1,), "CopyGPUToCPU": (0,), "CopyOnDeviceLike": (), "DepthConcat": (1,)}


@dataclass(frozen=True, eq=False)
class RemapEntry:
    """A blob and a device that has a copy of it; key of the copies made so far."""

    blob: str
    device: DeviceOption

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemapEntry) and self.blob == other.blob and self.device == other.device

    def __hash__(self) -> int:
        return hash((self.blob, self.device.SerializeToString(deterministic=True)))


def InferOpBlobDevices(op: OperatorDef) -> tuple[list[DeviceOption], list[DeviceOption]]:
    """Return the devices of an operator's inputs and outputs.

    Raises:
        NetError: the operator is unknown or invalid.
    """
    device, host = _option(op), DeviceOption(node_name=op.device_option.node_name)
    if not host.node_name:
        host.ClearField("node_name")
    if device.device_type not in _GPUS:
        return [device] * len(op.input), [device] * len(op.output)
    decoded = decode(find(op.type), op)
    inputs = [
        host if decoded.input_location(i) == "host" or i in _INPUTS_ON_HOST.get(op.type, ()) else device
        for i in range(len(op.input))
    ]
    on_host = range(len(op.output)) if decoded.outputs_on_host else ()
    outputs = [host if i in _OUTPUTS_ON_HOST.get(op.type, on_host) else device for i in range(len(op.output))]
    return inputs, outputs


def InferOpDeviceAsBlobDevices(op: OperatorDef) -> tuple[list[DeviceOption], list[DeviceOption]]:
    """Return the operator's own device for each input and each output."""
    device = _option(op)
    return [device] * len(op.input), [device] * len(op.output)


def InferOpBlobDevicesAsDict(op: OperatorDef) -> tuple[dict[str, DeviceOption], dict[str, DeviceOption]]:
    """Return ``InferOpBlobDevices`` by the names of the blobs."""
    inputs, outputs = InferOpBlobDevices(op)
    return dict(zip(op.input, inputs)), dict(zip(op.output, outputs))


def copy_func_between_devices(src: DeviceOption, dst: DeviceOption) -> Callable[..., BlobReference] | None:
    """Return a function that adds a copy to a net, called with net, blob and the new name; None if no copy is needed.

    Raises:
        NetError: one of the devices is neither a CPU nor a GPU.
    """
    if unknown := [d.device_type for d in (src, dst) if d.device_type not in (PROTO_CPU, *_GPUS)]:
        raise NetError(f"device types {unknown}: blobs can be copied only between CPUs (0) and GPUs (1)")
    from_gpu, to_gpu = src.device_type in _GPUS, dst.device_type in _GPUS
    if from_gpu and to_gpu:
        return None if src.device_id == dst.device_id else _adder("Copy", dst)
    if from_gpu:
        return _adder("CopyGPUToCPU", src)
    return _adder("CopyCPUToGPU", dst) if to_gpu else None


def _adder(op_type: str, device: DeviceOption) -> Callable[..., BlobReference]:
    def add(net: Net, *args: Any, **kwargs: Any) -> BlobReference:
        with DeviceScope(device):
            made: BlobReference = getattr(net, op_type)(*args, **kwargs)
        return made

    return add


def update_placeholder_op_output(op: OperatorDef, blob_to_device: Mapping[str, DeviceOption]) -> None:
    """Rename outputs of a placeholder, which are on the CPU, if a GPU has a blob of that name."""
    op.output[:] = [
        f"{blob}_cpu" if blob in blob_to_device and blob_to_device[blob].device_type != PROTO_CPU else blob
        for blob in op.output
    ]


def InjectCrossDeviceCopies(
    net: Net,
    blob_to_device: Devices | None = None,
    blob_remap: MutableMapping[RemapEntry, str] | None = None,
    placeHolderOps: Collection[str] | None = None,
) -> tuple[Net, Devices]:
    """Return a copy of a net in which operators read only blobs of their own device, and the devices of all blobs.

    A blob is copied before the first operator that needs it on another device, to a blob with the suffix "_cpu" or
    "_gpu_1", which later operators on that device read too.

    Args:
        net: left unchanged.
        blob_to_device: devices of existing blobs; extended in place. External inputs without an entry are on the net's
            device.
        blob_remap: copies made by nets that run before this one; extended in place.
        placeHolderOps: types of unknown operators that stand for others; their blobs are on their own device.

    Raises:
        NetError: a blob is written on several devices, or is on a device that blobs cannot be copied from.
    """
    devices: Devices = {} if blob_to_device is None else blob_to_device
    copies = {} if blob_remap is None else blob_remap
    placeholders = placeHolderOps or ()
    ops = [_copied(op) for op in net.Proto().op]
    result = net.Clone(f"{net.Name()}_cross_device")
    proto: NetDef = result.Proto()
    del proto.op[:]
    known = set(proto.external_input)
    proto.external_input.extend(name for entry, name in copies.items() if entry.blob in known)
    result.replace_message(_net_copy(proto))
    for op in ops:
        infer = InferOpDeviceAsBlobDevices if op.type in placeholders else InferOpBlobDevices
        expected, made = infer(op)
        renamed = _copy_inputs(net, result, op, expected, devices, copies)
        if op.type in placeholders:
            update_placeholder_op_output(op, devices)
        for device, blob in zip(made, op.output):
            if blob in devices and blob not in op.input and not _same(devices[blob], device):
                raise NetError(
                    f"net {net}: {op.type} writes blob {blob!r} on {_text(device)}, but it was written on "
                    f"{_text(devices[blob])} before; give its output another name"
                )
        before = list(op.input)
        op.input[:] = [renamed.get(blob, blob) for blob in before]
        op.output[:] = [renamed.get(blob, blob) if blob in before else blob for blob in op.output]
        devices.update(zip(op.output, made))
        result.extend_ops([op])
    return result, devices


def _copy_inputs(
    net: Net,
    result: Net,
    op: OperatorDef,
    expected: Sequence[DeviceOption],
    devices: Devices,
    copies: MutableMapping[RemapEntry, str],
) -> dict[str, str]:
    """Add the copies that an operator needs; return the new names of its inputs."""
    renamed: dict[str, str] = {}
    for device, blob in zip(expected, op.input):
        if blob not in devices:
            if not net.is_external_input(blob):
                raise UsageError(f"net {net}: {op.type} reads {blob!r}, which no operator before it makes")
            devices[blob] = net.Proto().device_option
        if _same(devices[blob], device):
            continue
        entry = RemapEntry(blob, device)
        if entry not in copies or devices.get(copies[entry]) != device:
            copy = copy_func_between_devices(devices[blob], device)
            name = f"{blob}_cpu" if device.device_type == PROTO_CPU else f"{blob}_gpu_{device.device_id}"
            if copy is not None:
                copy(result, BlobReference(blob), BlobReference(name))
                copies[entry], devices[name] = name, device
        if entry in copies:
            renamed[blob] = copies[entry]
    return renamed


def InjectDeviceCopiesAmongNets(
    nets: list[Net], blob_to_device_init: Devices | None = None
) -> tuple[list[Net], Devices]:
    """Return copies of consecutive nets, each with the copies between devices that it needs.

    Args:
        nets: in the order in which they run; left unchanged.
        blob_to_device_init: devices of blobs before the first net; extended in place.

    Returns:
        The nets, and the devices of all blobs. See ``InjectCrossDeviceCopies``.

    Raises:
        UsageError: ``nets`` is not a list of nets.
        NetError: see ``InjectCrossDeviceCopies``.
    """
    if not isinstance(nets, list) or not all(isinstance(net, Net) for net in nets):
        raise UsageError(f"InjectDeviceCopiesAmongNets needs a list of nets, got {nets!r}")
    devices: Devices = {} if blob_to_device_init is None else blob_to_device_init
    copies: dict[RemapEntry, str] = {}
    return [InjectCrossDeviceCopies(net, devices, copies)[0] for net in nets], devices


def InjectDeviceCopiesAmongNetsWithoutB2D(nets: list[Net], blob_to_device_init: Devices | None = None) -> list[Net]:
    """Return only the nets of ``InjectDeviceCopiesAmongNets``."""
    return InjectDeviceCopiesAmongNets(nets, blob_to_device_init)[0]


def _same(a: DeviceOption, b: DeviceOption) -> bool:
    return a.device_type == b.device_type and a.device_id == b.device_id


def _option(op: OperatorDef) -> DeviceOption:
    option = DeviceOption()
    option.CopyFrom(op.device_option)
    return option


def _copied(op: OperatorDef) -> OperatorDef:
    copy = OperatorDef()
    copy.CopyFrom(op)
    return copy


def _net_copy(net: NetDef) -> NetDef:
    copy = NetDef()
    copy.CopyFrom(net)
    return copy


def _text(device: DeviceOption) -> str:
    return f"{'CPU' if device.device_type == PROTO_CPU else 'GPU'} {device.device_id}"
