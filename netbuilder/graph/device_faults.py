"""Operators that read or write a blob of another device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence

from netbuilder.graph.blob import strip_prefix
from netbuilder.graph.blob_devices import COUNTERS, may_have_subgraphs, operator_device
from netbuilder.graph.devices import Devices
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef, OperatorDef
from netbuilder.proto.arguments import made_at
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CROSSING", "TREE_SUM_NAME", "DeviceFault", "device_faults"]

TREE_SUM_NAME = "dpm"
"""Name of the operators that compute partial sums of an allreduce over GPUs, as in Caffe2."""

CROSSING = frozenset(
    {
        "Allgather",
        "Allreduce",
        "AllreduceBucket",
        "Broadcast",
        "BroadcastBucket",
        "Concat",
        "Copy",
        "CopyCPUToGPU",
        "CopyFromCPUInput",
        "CopyGPUToCPU",
        "CopyOnDeviceLike",
        "EnsureCPUOutput",
        "GatherFromOwners",
        "LookupRows",
        "NCCLAllGather",
        "NCCLAllreduce",
        "NCCLBroadcast",
        "NCCLReduce",
        "NCCLReduceScatter",
        "Reduce",
        "ReduceScatter",
        "ReduceToOwners",
        "RowsToOwners",
    }
)
"""Types of operators that are meant to use blobs of several devices."""


_Inside = tuple[tuple[int, NetDef], ...]


@dataclass(frozen=True)
class DeviceFault:
    """An operator that reads or writes a blob of another device.

    Args:
        index: the operator's position in its net.
        op: the operator.
        blob: the blob.
        written: the blob is an output of the operator; otherwise an input.
        blob_at, op_at: the devices of the blob and of the operator, as text.
        remedy: what the user can do.
        inside: from the outermost, the position of each operator that has the subgraph with the operator, and this
            subgraph; empty for an operator of the net itself.
    """

    index: int
    op: OperatorDef
    blob: str
    written: bool
    blob_at: str
    op_at: str
    remedy: str
    inside: _Inside = ()

    def __str__(self) -> str:
        of = f" of net {self.inside[-1][1].name!r} in operator {self.inside[0][0]}" if self.inside else ""
        return (
            f"operator {self.index} {self.op.type}{of}{made_at(self.op)}: {'output' if self.written else 'input'} "
            f"{self.blob!r} is on {self.blob_at}, but the operator runs on {self.op_at}; {self.remedy}"
        )


@checked()
def device_faults(
    net: NetDef, *, init_net: NetDef | None = None, devices: Devices | None = None, shared: Collection[str] = ()
) -> Iterator[DeviceFault]:
    """Yield each operator of ``net``, subgraphs included, that reads or writes a blob of another device.

    Operators that are meant to do so (``CROSSING``, the sums of an allreduce) are exempt, and so are operators on the
    host in a net for GPUs. A blob under the scope of a replica belongs to that replica's device. Any other blob belongs
    to the GPU whose operator writes it first; if there is none, all devices may use it.

    Args:
        net: net whose operators have their devices.
        init_net: net that runs before ``net``; the blobs that it writes get their device from it.
        devices: devices of the replicas, from the record that Parallelize stored; None: the net has no replicas, and
            only GPUs are distinguished.
        shared: blobs under one replica's scope that all replicas may use (the parameters of a shared model).
    """
    owners = _Owners(net, init_net, devices, shared)
    scopes = dict(zip(owners.places, devices.scopes)) if devices is not None else {}
    alone = devices is not None and devices.is_cpu and len(devices) == 1  # all blobs are this replica's or nobody's
    for index, op in enumerate(net.op):
        op_type = op.type
        if op_type in CROSSING:
            if op_type == "Copy":
                owners.copied[op.output[0]] = op.input[0]
            continue
        if op_type == "Sum" and _is_for_all(op, devices):
            owners.share(op.output[0])
            continue
        device = operator_device(op, net)
        own = scopes.get((device.device_type, device.device_id))
        # Slices are faster than iteration.
        if own is None or not (alone or _all_usable(own, (*op.input[:], *op.output[:]), owners)):
            yield from _faults_of(index, op, net, owners)
        if may_have_subgraphs(op_type):
            for subgraph in subgraphs(op):
                yield from _faults_inside(((index, subgraph),), owners)


def _all_usable(scope: str, blobs: Iterable[str], owners: _Owners) -> bool:
    """Whether all blobs are the replica's own or belong to no device. This is a fast path for nearly all operators."""
    for blob in blobs:
        if not blob.startswith(scope) and owners.of(blob) is not None:
            return False
    return True


Place = tuple[int, int]  # device type, device id

# CPU 0 is the first replica on the CPU, but helpers and scripts also use it for "on the CPU" in any replica.
_HOST: Place = (PROTO_CPU, 0)


class _Owners:
    """The device that each blob belongs to, and the device whose blobs each operator may use."""

    def __init__(self, net: NetDef, init_net: NetDef | None, devices: Devices | None, shared: Collection[str]) -> None:
        self.devices = devices
        self.places = [(devices.device_type, number) for number in devices.ids] if devices is not None else []
        self._only_gpus = devices is None or not devices.is_cpu
        self._known: dict[str, Place | None] = dict.fromkeys(shared)
        self.copied: dict[str, str] = {}  # destination -> source of the Copy operators visited so far
        if self._only_gpus:
            self._add_made_on_gpus(net if init_net is None else init_net)
            if init_net is not None:
                self._add_made_on_gpus(net)

    def _add_made_on_gpus(self, net: NetDef) -> None:
        for op in net.op:
            place = self.place(op, net)
            if place is not None and op.type not in CROSSING:
                for blob in op.output:
                    if self._replica(blob) is None:
                        self._known.setdefault(blob, place)

    def within(self, net: NetDef) -> _Owners:
        """Return the owners for a subgraph, whose own blobs belong to the GPUs that write them."""
        if not self._only_gpus:
            return self
        inside = copy.copy(self)
        inside._known = dict(self._known)
        inside._add_made_on_gpus(net)
        return inside

    def _replica(self, blob: str) -> int | None:
        return self.devices.replica_of(blob) if self.devices is not None else None

    def place(self, op: OperatorDef, net: NetDef) -> Place | None:
        """Return the device of an operator; None: it may use all blobs."""
        device = operator_device(op, net)
        if op.type in COUNTERS or self._only_gpus and device.device_type != PROTO_CUDA:
            return None
        return device.device_type, device.device_id

    def place_by_blobs(self, op: OperatorDef) -> Place | None:
        """Return the device of the operator's outputs, or else inputs; for operators whose device is only "the CPU"."""
        homes = (self.of(blob) for blobs in (op.output, op.input) for blob in blobs)
        return next((home for home in homes if home is not None), None)

    def share(self, blob: str) -> None:
        """Let all devices use a blob from here on."""
        self._known[blob] = None

    def of(self, blob: str) -> Place | None:
        """Return the device that a blob belongs to; None: all devices may use it."""
        if blob in self._known:
            return self._known[blob]
        replica = self._replica(blob)
        home = self.places[replica] if replica is not None else None
        self._known[blob] = home
        return home


def _faults_of(index: int, op: OperatorDef, net: NetDef, owners: _Owners) -> Iterator[DeviceFault]:
    place = owners.place(op, net)
    if place == _HOST:
        place = owners.place_by_blobs(op)
    if place is None or op.type in CROSSING or _is_reduction(op, owners):
        return
    for written, blobs in ((False, op.input), (True, op.output)):
        for blob in blobs:
            home = owners.of(blob)
            if home is not None and home != place:
                yield _fault(index, op, blob, written, home, place, owners.devices)


def _faults_inside(inside: _Inside, owners: _Owners) -> Iterator[DeviceFault]:
    """Yield the faults in a subgraph, the last of ``inside``, and in its own subgraphs."""
    net = inside[-1][1]
    within = owners.within(net)
    for index, op in enumerate(net.op):
        for fault in _faults_of(index, op, net, within):
            yield dataclasses.replace(fault, inside=inside)
        for subgraph in subgraphs(op):
            yield from _faults_inside((*inside, (index, subgraph)), within)


def _is_reduction(op: OperatorDef, owners: _Owners) -> bool:
    """Whether an operator sums the replicas' copies of a blob into the first one.

    On GPUs, where it has the name TREE_SUM_NAME, it may sum only some of the copies.
    """
    devices = owners.devices
    if op.type != "Sum" or op.output[0] != op.input[0]:
        return False
    if op.name == TREE_SUM_NAME:
        each = ({strip_prefix(blob), strip_prefix(owners.copied.get(blob, blob))} for blob in op.input)
        return bool(set.intersection(*each))  # without peer access a blob is copied first, to another name
    return devices is not None and devices.is_cpu and _is_over_replicas(op.input, devices)


def _is_for_all(op: OperatorDef, devices: Devices | None) -> bool:
    """Whether an operator on the CPU sums the replicas' copies of a blob into another one, which all of them read."""
    return (
        devices is not None
        and devices.is_cpu
        and op.output[0] not in op.input
        and _is_over_replicas(op.input, devices)
        and devices.replica_of(op.output[0]) == 0
    )


def _is_over_replicas(blobs: Sequence[str], devices: Devices) -> bool:
    return len(blobs) == len(devices) > 1 and tuple(blobs) == devices.copies(devices.short_name(blobs[0]))


def _fault(
    index: int, op: OperatorDef, blob: str, written: bool, home: Place, place: Place, devices: Devices | None
) -> DeviceFault:
    if devices is None or place[0] != devices.device_type or place[1] not in devices.ids:
        remedy = "copy it first (Copy), or run the operator on the blob's device (DeviceScope)"
        return DeviceFault(index, op, blob, written, _device_text(home), _device_text(place), remedy)
    scope = devices.scopes[devices.ids.index(place[1])]
    own = scope + strip_prefix(devices.short_name(blob))  # a name with two scopes had one already in the builder
    remedy = f"it may use blobs under {scope!r} and outside the replicas: use {own!r}, or copy the blob first (Copy)"
    return DeviceFault(index, op, blob, written, _device_text(home), _device_text(place), remedy)


def _device_text(place: Place) -> str:
    return f"{'GPU' if place[0] == PROTO_CUDA else 'CPU'} {place[1]}"
