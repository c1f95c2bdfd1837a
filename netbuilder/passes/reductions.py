"""Operators that sum blobs over the devices of one host and hand the sum, or one device's blob, to all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from netbuilder.graph.blob import gathered_name
from netbuilder.graph.devices import Devices, check_groups
from netbuilder.passes.net_pass import NetPass, PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = [
    "TREE_SUM_NAME",
    "PeerAccess",
    "allreduce",
    "allreduce_pass",
    "broadcast",
    "broadcast_pass",
    "gather_sparse",
    "gather_sparse_pass",
    "nccl_allreduce",
    "nccl_allreduce_pass",
    "nccl_broadcast",
    "nccl_broadcast_pass",
]

TREE_SUM_NAME = "dpm"
"""The name that the partial sums of an all-reduce over GPUs have, in Caffe2 too."""

_CONCAT_NAME = "note:data_parallel_model"
_TREE_COUNTS = (2, 4, 8, 16)

PeerAccess = Callable[[int, int], bool]
"""Whether the GPU of the first number can read the memory of the GPU of the second."""

Group = Sequence[str]


def allreduce(
    groups: Sequence[Group],
    devices: Devices,
    *,
    peer_access: PeerAccess | None = None,
    hand_back: bool = True,
    debug_info: str = "",
) -> NetDef:
    """Return the operators that sum each group of blobs over the devices.

    On the CPU one Sum adds all into the first device's blob. On GPUs the sums form a tree where the devices are
    4, 8 or 16, else one Sum; a blob out of reach is copied to where it is added. Copies hand the sum to the others.

    Args:
        groups: for each quantity its blobs, one per device, in the order of the devices.
        devices: where they are.
        peer_access: GPUs: which can read each other's memory; None: all can.
        hand_back: copy the sum to the other devices (not where they share one parameter).
        debug_info: the user's line; the operators carry it with the name of what they reduce.

    Returns:
        A net of these operators alone, group after group; it is empty for one device.

    Raises:
        NetError: a group has another number of blobs than there are devices.
    """
    options: dict[str, Any] = {"peer_access": peer_access, "hand_back": hand_back, "debug_info": debug_info}
    return _alone(allreduce_pass, groups, devices, **options)


@net_pass
def allreduce_pass(
    net: NetDef,
    context: PassContext,
    *,
    groups: Sequence[Group],
    peer_access: PeerAccess | None = None,
    hand_back: bool = True,
    debug_info: str = "",
) -> PassResult:
    """Add the operators of ``allreduce`` to the end of a net. Reads ``devices``."""
    devices, net = _started(net, context, groups)
    for group in groups if len(devices) > 1 else ():
        note = _note(debug_info, "allreduce", group, devices)
        if devices.is_cpu:
            _add(net, make_op("Sum", group, group[:1], device_option=devices.options[0]), note)
        else:
            _add_tree(net, group, devices, peer_access, note)
        if hand_back:
            _add_copies(net, group, devices, note)
    return PassResult(net)


def broadcast(groups: Sequence[Group], devices: Devices, *, debug_info: str = "") -> NetDef:
    """Return the operators that copy each group's first blob over the others.

    Args, Returns and Raises as for ``allreduce``. On GPUs each copy runs on the device that it writes to.
    """
    return _alone(broadcast_pass, groups, devices, debug_info=debug_info)


@net_pass
def broadcast_pass(net: NetDef, context: PassContext, *, groups: Sequence[Group], debug_info: str = "") -> PassResult:
    """Add the operators of ``broadcast`` to the end of a net. Reads ``devices``."""
    devices, net = _started(net, context, groups)
    for group in groups:
        _add_copies(net, group, devices, _note(debug_info, "broadcast", group, devices))
    return PassResult(net)


def nccl_allreduce(groups: Sequence[Group], devices: Devices, *, debug_info: str = "") -> NetDef:
    """Return one NCCLAllreduce per group, each waiting for the one before, so that all devices agree on their order."""
    return _alone(nccl_allreduce_pass, groups, devices, debug_info=debug_info)


@net_pass
def nccl_allreduce_pass(
    net: NetDef, context: PassContext, *, groups: Sequence[Group], debug_info: str = ""
) -> PassResult:
    """Add the operators of ``nccl_allreduce`` to the end of a net. Reads ``devices``."""
    result = _nccl("NCCLAllreduce", net, context, groups, debug_info)
    for before, op in zip(result.op[len(net.op) :], result.op[len(net.op) + 1 :]):
        op.control_input.append(before.output[0])
    return PassResult(result)


def nccl_broadcast(groups: Sequence[Group], devices: Devices, *, debug_info: str = "") -> NetDef:
    """Return one NCCLBroadcast per group, from the first device (``root`` counts devices; it is no device's id)."""
    return _alone(nccl_broadcast_pass, groups, devices, debug_info=debug_info)


@net_pass
def nccl_broadcast_pass(
    net: NetDef, context: PassContext, *, groups: Sequence[Group], debug_info: str = ""
) -> PassResult:
    """Add the operators of ``nccl_broadcast`` to the end of a net. Reads ``devices``."""
    return PassResult(_nccl("NCCLBroadcast", net, context, groups, debug_info, root=0))


def _nccl(
    op_type: str, net: NetDef, context: PassContext, groups: Sequence[Group], debug_info: str, **args: Any
) -> NetDef:
    devices, net = _started(net, context, groups)
    for group in groups if len(devices) > 1 else ():
        op = make_op(op_type, group, group, device_option=devices.options[0], **args)
        _add(net, op, _note(debug_info, op_type, group, devices))
    return net


def _alone(reduction: NetPass, groups: Sequence[Any], devices: Devices, **options: Any) -> NetDef:
    """Return the operators of a pass of this module alone: what it adds to an empty net."""
    available = {blob for group in groups for blob in _flat(group)}
    return reduction(NetDef(), PassContext(devices=devices, available=available), groups=groups, **options).net


def _flat(group: Any) -> Iterator[str]:
    for item in group:
        yield from (item,) if isinstance(item, str) else item


def _started(net: NetDef, context: PassContext, groups: Sequence[Group]) -> tuple[Devices, NetDef]:
    """Return the devices, checked against the groups, and a copy of the net to add to."""
    if context.devices is None:
        raise NetError(
            f"net {net.name!r}: a reduction needs the devices of the replicas; give PassContext(devices=...)"
        )
    check_groups(groups, context.devices)
    result = NetDef()
    result.CopyFrom(net)
    return context.devices, result


def gather_sparse(
    groups: Sequence[tuple[Group, Group]],
    devices: Devices,
    *,
    hand_back: bool = True,
    debug_info: str = "",
    joined: set[str] | None = None,
) -> NetDef:
    """Return the operators that give each device the sparse gradients of all.

    Indices and values are joined on the first device, in the order of the devices. Each device gets the indices under
    a name of their own (``gathered_name``), so that indices that were fed stay as they are. The values are copied back
    over what each device had on GPUs, as Caffe2 does; on the CPU, for which Caffe2 has no such thing, they too get
    names of their own.

    Args:
        groups: for each table its indices and its values, one blob of each per device.
        devices: where they are.
        hand_back: copy what is joined to the other devices (not where one table is updated).
        debug_info: as for ``allreduce``.
        joined: names of indices joined already, here or by an earlier call: tables looked up with one index blob
            share the joined one, which must not grow a second time. The set is added to.
    """
    joined = set() if joined is None else joined
    return _alone(gather_sparse_pass, groups, devices, hand_back=hand_back, debug_info=debug_info, joined=joined)


@net_pass
def gather_sparse_pass(
    net: NetDef,
    context: PassContext,
    *,
    groups: Sequence[tuple[Group, Group]],
    hand_back: bool = True,
    debug_info: str = "",
    joined: set[str],
) -> PassResult:
    """Add the operators of ``gather_sparse`` to the end of a net. Reads ``devices``."""
    devices, net = _started(net, context, [group for pair in groups for group in pair])
    for indices, values in groups if len(devices) > 1 else ():
        stem = f"{indices[0]}:{devices.short_name(values[0])}"
        for group, name in ((indices, stem + "_index"), (values, stem + "_val")):
            if group is indices and indices[0] in joined:
                continue
            if devices.is_cpu:
                _join_on_cpu(net, group, devices, hand_back, debug_info)
            else:
                results = [gathered_name(blob) for blob in group] if group is indices else group
                _join(net, group, name, results, devices, debug_info, hand_back=hand_back)
        joined.add(indices[0])
    return PassResult(net)


def _join_on_cpu(net: NetDef, group: Group, devices: Devices, hand_back: bool, debug_info: str) -> None:
    note = _note(debug_info, "gather", group, devices)
    whole = [gathered_name(blob) for blob in group]
    outputs = [whole[0], whole[0] + "_split"]
    _add(net, make_op("Concat", group, outputs, device_option=devices.options[0], axis=0), note)
    if hand_back:
        _add_copies(net, whole, devices, note)


def _join(
    net: NetDef, group: Group, stem: str, results: Group, devices: Devices, debug_info: str, *, hand_back: bool
) -> None:
    note = _note(debug_info, "gather", group, devices)
    whole = stem + "_concat"
    concat = make_op(
        "Concat",
        group,
        [whole, stem + "_splitinfo"],
        name=_CONCAT_NAME,
        device_option=devices.options[0],
        axis=0,
    )
    _add(net, concat, note)
    for blob, option in zip(results if hand_back else results[:1], devices.options):
        _add(net, make_op("Copy", [whole], [blob], device_option=option), note)


def _add_tree(net: NetDef, group: Group, devices: Devices, peer_access: PeerAccess | None, note: str) -> None:
    if len(group) not in _TREE_COUNTS:
        _add_sum(net, group, list(range(len(group))), devices, peer_access, note)
        return
    stride = 1
    while stride < len(group):
        for first in range(0, len(group), 2 * stride):
            _add_sum(net, group, [first, first + stride], devices, peer_access, note)
        stride *= 2


def _add_sum(
    net: NetDef, group: Group, members: Sequence[int], devices: Devices, peer_access: PeerAccess | None, note: str
) -> None:
    """Sum the blobs of some members into that of the first, on its device."""
    home, *others = members
    option = devices.options[home]
    inputs = [group[home]]
    for other in others:
        blob, number = group[other], devices.ids[other]
        if peer_access is not None and not peer_access(devices.ids[home], number):
            near = f"{devices.scopes[home]}{devices.short_name(blob)}_{devices.word}{number}_copy"
            _add(net, make_op("Copy", [blob], [near], device_option=option), note)
            blob = near
        inputs.append(blob)
    _add(net, make_op("Sum", inputs, inputs[:1], name=TREE_SUM_NAME, device_option=option), note)


def _add_copies(net: NetDef, group: Group, devices: Devices, note: str) -> None:
    copy = OperatorDef(type="Copy", input=group[:1], debug_info=note)
    # On GPUs the receiver pulls; on the CPU the copies belong to the first replica, as in Caffe2.
    copy.device_option.CopyFrom(devices.options[0])
    add = net.op.add
    for blob, number in zip(group[1:], devices.ids[1:]):
        op = add()
        op.CopyFrom(copy)
        op.output.append(blob)
        if not devices.is_cpu:
            op.device_option.device_id = number


def _add(net: NetDef, op: OperatorDef, note: str) -> None:
    op.debug_info = note
    net.op.append(op)


def _note(debug_info: str, what: str, group: Group, devices: Devices) -> str:
    """Return what traces and errors show of an operator that nobody wrote: the blob it serves, and the user's line."""
    note = f"{what} of {devices.short_name(group[0])!r} over {devices}"
    return f"{debug_info} ({note})" if debug_info else note
