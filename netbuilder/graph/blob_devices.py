"""The devices of the operators of a net, and of its blobs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import DeviceOption, NetDef, OperatorDef
from netbuilder.proto.call_checks import checked

__all__ = ["COUNTERS", "blob_devices", "may_have_subgraphs", "operator_device", "place_operators"]


COUNTERS = frozenset({"Iter", "AtomicIter"})
"""Operators whose blobs are always on the host, regardless of their device option."""

_HOST = DeviceOption()


def operator_device(op: OperatorDef, net: NetDef) -> DeviceOption:
    """Return the device of an operator: its own, or its net's, or CPU 0. The message must not be changed."""
    if op.HasField("device_option"):
        return op.device_option
    return net.device_option if net.HasField("device_option") else _HOST


def place_operators(net: NetDef, device_option: DeviceOption) -> None:
    """Set the device of all operators of ``net``, those of subgraphs included."""
    for op in net.op:
        op.device_option.CopyFrom(device_option)
        for subgraph in subgraphs(op):
            place_operators(subgraph, device_option)


@functools.cache
def may_have_subgraphs(op_type: str) -> bool:
    """Whether operators of a type can have nets among their arguments; True for unknown types."""
    if not is_registered(op_type):
        return True
    return any("NetDef" in str(field.type) for field in dataclasses.fields(find(op_type)))


@checked()
def blob_devices(nets: Iterable[NetDef]) -> dict[str, DeviceOption]:
    """Return the device of each blob: that of the first operator that reads or writes it.

    Args:
        nets: in the order in which they run, an init net before its main net. Subgraphs are visited at the position
            of their operator.

    >>> from netbuilder.proto.arguments import make_device_option, make_op
    >>> op = make_op("Relu", ["x"], ["y"], device_option=make_device_option(1, 3))
    >>> blob_devices([NetDef(op=[op])])["y"].device_id
    3
    """
    found: dict[str, DeviceOption] = {}
    for net in nets:
        _add_devices(net, found)
    return found


def _add_devices(net: NetDef, found: dict[str, DeviceOption]) -> None:
    messages: dict[tuple[int, int], DeviceOption] = {}  # one message per device, not one per operator
    for op in net.op:
        device = _HOST if op.type in COUNTERS else operator_device(op, net)
        device = messages.setdefault((device.device_type, device.device_id), device)
        for blob in op.input:
            found.setdefault(blob, device)
        for blob in op.output:
            found.setdefault(blob, device)
        if may_have_subgraphs(op.type):
            for subgraph in subgraphs(op):
                _add_devices(subgraph, found)
