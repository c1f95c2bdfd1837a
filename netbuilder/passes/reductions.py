"""Allreduce, broadcast and allgather over the devices of one host, as operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from netbuilder.graph.blob import gathered_name
from netbuilder.graph.device_faults import TREE_SUM_NAME
from netbuilder.graph.devices import Devices, check_groups
from netbuilder.graph.versions import reads_of
from netbuilder.passes.net_pass import NetPass, PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.call_checks import checked

__all__ = [
    "TREE_SUM_NAME",
    "PeerAccess",
    "allreduce",
    "allreduce_pass",
    "broadcast",
    "broadcast_pass",
    "by_readiness",
    "gather_sparse",
    "gather_sparse_pass",
    "nccl_allreduce",
    "nccl_allreduce_pass",
    "nccl_broadcast",
    "nccl_broadcast_pass",
]

_CONCAT_NAME = "note:data_parallel_model"
_TREE_COUNTS = (2, 4, 8, 16)

PeerAccess = Callable[[int, int], bool]
"""Function of two device ids: whether the first GPU can read the memory of the second."""

Group = Sequence[str]

Gather = Callable[[str, str], Sequence[OperatorDef]]
"""Function of two blobs: the operators that write to the second one the rows of the first one in all processes."""

_OWN = "_of_process"


@checked()
def allreduce(
    groups: Sequence[Group],
    devices: Devices,
    *,
    peer_access: PeerAccess | None = None,
    hand_back: bool = True,
    debug_info: str = "",
) -> NetDef:
    """Return the operators that sum each group of blobs over the devices.

    On the CPU one Sum adds all blobs into the first device's blob. On 4, 8 or 16 GPUs the sums form a tree, on another
    number of GPUs there is one Sum; a blob without peer access is copied to the device of the sum first. Then the sum
    is copied to the other devices.

    Args:
        groups: for each quantity its blobs, one per device, in the order of the devices.
        devices: the devices of the blobs.
        peer_access: for GPUs: which can read each other's memory; None: all can.
        hand_back: copy the sum to the other devices (False if they share one parameter).
        debug_info: line of the user's program; the operators record it with the name of the blob that they reduce.

    Returns:
        A net of only these operators, group after group; it is empty for one device.

    Raises:
        NetError: the number of blobs in a group is not the number of devices.
    """
    options: dict[str, Any] = {"peer_access": peer_access, "hand_back": hand_back, "debug_info": debug_info}
    return _as_net(allreduce_pass, groups, devices, **options)


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
    """Append the operators of ``allreduce`` to a net. Reads ``devices``."""
    devices, net = _devices_and_copy(net, context, groups)
    for group in groups if len(devices) > 1 else ():
        note = _note(debug_info, "allreduce", group, devices)
        if devices.is_cpu:
            _add(net, make_op("Sum", group, group[:1], device_option=devices.options[0]), note)
        else:
            _add_tree(net, group, devices, peer_access, note)
        if hand_back:
            _add_copies(net, group, devices, note)
    return PassResult(net)


@checked()
def broadcast(groups: Sequence[Group], devices: Devices, *, debug_info: str = "") -> NetDef:
    """Return the operators that copy each group's first blob to the others.

    Args, Returns and Raises as for ``allreduce``. On GPUs each copy runs on the device that it writes to.
    """
    return _as_net(broadcast_pass, groups, devices, debug_info=debug_info)


@net_pass
def broadcast_pass(net: NetDef, context: PassContext, *, groups: Sequence[Group], debug_info: str = "") -> PassResult:
    """Append the operators of ``broadcast`` to a net. Reads ``devices``."""
    devices, net = _devices_and_copy(net, context, groups)
    for group in groups if len(devices) > 1 else ():
        _add_copies(net, group, devices, _note(debug_info, "broadcast", group, devices))
    return PassResult(net)


@checked()
def nccl_allreduce(groups: Sequence[Group], devices: Devices, *, debug_info: str = "") -> NetDef:
    """Return one NCCLAllreduce per group; each waits for the previous one, so that their order is fixed."""
    return _as_net(nccl_allreduce_pass, groups, devices, debug_info=debug_info)


@net_pass
def nccl_allreduce_pass(
    net: NetDef, context: PassContext, *, groups: Sequence[Group], debug_info: str = ""
) -> PassResult:
    """Append the operators of ``nccl_allreduce`` to a net. Reads ``devices``."""
    result = _nccl("NCCLAllreduce", net, context, groups, debug_info)
    for before, op in zip(result.op[len(net.op) :], result.op[len(net.op) + 1 :]):
        op.control_input.append(before.output[0])
    return PassResult(result)


@checked()
def nccl_broadcast(groups: Sequence[Group], devices: Devices, *, debug_info: str = "") -> NetDef:
    """Return one NCCLBroadcast per group from the first device (``root`` is an index of devices, not a device id)."""
    return _as_net(nccl_broadcast_pass, groups, devices, debug_info=debug_info)


@net_pass
def nccl_broadcast_pass(
    net: NetDef, context: PassContext, *, groups: Sequence[Group], debug_info: str = ""
) -> PassResult:
    """Append the operators of ``nccl_broadcast`` to a net. Reads ``devices``."""
    return PassResult(_nccl("NCCLBroadcast", net, context, groups, debug_info, root=0))


def by_readiness(net: NetDef, groups: Sequence[Group]) -> list[tuple[int, Group]]:
    """Return groups of blobs in the order in which they are ready, and then in the given one.

    Returns:
        With each group the index of the last operator of the net that reads or writes one of its blobs; -1: none does.
    """
    last = {blob: index for index, op in enumerate(net.op) for blob in (*reads_of(op), *op.output)}
    ready = sorted((max(last.get(blob, -1) for blob in group), place) for place, group in enumerate(groups))
    return [(index, groups[place]) for index, place in ready]


def _nccl(
    op_type: str, net: NetDef, context: PassContext, groups: Sequence[Group], debug_info: str, **args: Any
) -> NetDef:
    devices, net = _devices_and_copy(net, context, groups)
    for group in groups if len(devices) > 1 else ():
        op = make_op(op_type, group, group, device_option=devices.options[0], **args)
        _add(net, op, _note(debug_info, op_type, group, devices))
    return net


def _as_net(reduction: NetPass, groups: Sequence[Any], devices: Devices, **options: Any) -> NetDef:
    """Return a net of the operators that a pass of this module appends."""
    available = {blob for group in groups for blob in _flat(group)}
    return reduction(NetDef(), PassContext(devices=devices, available=available), groups=groups, **options).net


def _flat(group: Any) -> Iterator[str]:
    for item in group:
        yield from (item,) if isinstance(item, str) else item


def _devices_and_copy(net: NetDef, context: PassContext, groups: Sequence[Group]) -> tuple[Devices, NetDef]:
    """Return the devices, checked against the groups, and a copy of the net to append to."""
    if context.devices is None:
        raise NetError(
            f"net {net.name!r}: a reduction needs the devices of the replicas; give PassContext(devices=...)"
        )
    check_groups(groups, context.devices)
    result = NetDef()
    result.CopyFrom(net)
    return context.devices, result


@checked()
def gather_sparse(
    groups: Sequence[tuple[Group, Group]],
    devices: Devices,
    *,
    hand_back: bool = True,
    debug_info: str = "",
    joined: set[str] | None = None,
    across: Gather | None = None,
) -> NetDef:
    """Return the operators that copy the sparse gradients of all devices to each device (allgather).

    Indices and values are concatenated on the first device, in the order of the devices. Each device gets the indices
    under a new name (``gathered_name``), so that indices that were fed are not overwritten. On GPUs the values
    overwrite the values of each device, as in Caffe2; on the CPU, which Caffe2 does not support here, they get new
    names too.

    Args:
        groups: for each table its indices and its values, one blob of each per device.
        devices: the devices of the blobs.
        hand_back: copy the result to the other devices (False if only one table is updated).
        debug_info: as for ``allreduce``.
        joined: names of indices concatenated already, here or by an earlier call: tables that are looked up with the
            same indices share their concatenation, which must not be repeated. The set is extended.
        across: returns the operators that concatenate a blob of each process, from (source, target); None: there is
            one process.
    """
    joined = set() if joined is None else joined
    options: dict[str, Any] = {"hand_back": hand_back, "debug_info": debug_info, "joined": joined, "across": across}
    return _as_net(gather_sparse_pass, groups, devices, **options)


@net_pass
def gather_sparse_pass(
    net: NetDef,
    context: PassContext,
    *,
    groups: Sequence[tuple[Group, Group]],
    hand_back: bool = True,
    debug_info: str = "",
    joined: set[str],
    across: Gather | None = None,
) -> PassResult:
    """Append the operators of ``gather_sparse`` to a net. Reads ``devices``."""
    devices, net = _devices_and_copy(net, context, [group for pair in groups for group in pair])
    for indices, values in groups if len(devices) > 1 or across else ():
        for group in (indices, values):
            if group is indices and indices[0] in joined:
                continue
            note = _note(debug_info, "gather", group, devices)
            if devices.is_cpu:
                _join_on_cpu(net, group, devices, hand_back, across, note)
            else:
                stem = f"{indices[0]}:{devices.short_name(values[0])}{'_index' if group is indices else '_val'}"
                results = [gathered_name(blob) for blob in group] if group is indices else group
                _join(net, group, stem, results[: None if hand_back else 1], devices, across, note)
        joined.add(indices[0])
    made = {blob for op in net.op for blob in op.output}
    known = made.union(net.external_input, *(group for pair in groups for group in pair))
    net.external_input.extend(dict.fromkeys(blob for op in net.op for blob in op.input if blob not in known))
    return PassResult(net)


def _join_on_cpu(
    net: NetDef, group: Group, devices: Devices, hand_back: bool, across: Gather | None, note: str
) -> None:
    whole = [gathered_name(blob) for blob in group]
    own = group[0]
    if len(group) > 1:
        own = whole[0] + _OWN if across else whole[0]
        _add(net, make_op("Concat", group, [own, whole[0] + "_split"], device_option=devices.options[0], axis=0), note)
    if across:
        net.op.extend(across(own, whole[0]))
    if hand_back:
        _add_copies(net, whole, devices, note)


def _join(
    net: NetDef, group: Group, stem: str, results: Group, devices: Devices, across: Gather | None, note: str
) -> None:
    whole = own = stem + "_concat"
    place = devices.options[0]
    if len(group) > 1:
        own = whole + _OWN if across else whole
        outputs = [own, stem + "_splitinfo"]
        _add(net, make_op("Concat", group, outputs, name=_CONCAT_NAME, device_option=place, axis=0), note)
    if across:
        net.op.extend(across(own if len(group) > 1 else group[0], whole))
    for blob, option in zip(results, devices.options):
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
    """Sum the blobs of some group members into the blob of the first of them, on its device."""
    home, *others = members
    option = devices.options[home]
    inputs = [group[home]]
    for other in others:
        blob, number = group[other], devices.ids[other]
        if peer_access is not None and not peer_access(devices.ids[home], number):
            local = f"{devices.scopes[home]}{devices.short_name(blob)}_{devices.word}{number}_copy"
            _add(net, make_op("Copy", [blob], [local], device_option=option), note)
            blob = local
        inputs.append(blob)
    _add(net, make_op("Sum", inputs, inputs[:1], name=TREE_SUM_NAME, device_option=option), note)


def _add_copies(net: NetDef, group: Group, devices: Devices, note: str) -> None:
    copy = OperatorDef(type="Copy", input=group[:1], debug_info=note)
    # On GPUs the destination device runs the copy; on the CPU all copies run on the first replica, as in Caffe2.
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
    """Return the description of a generated operator for traces and errors: the blob, and the user's line."""
    note = f"{what} of {devices.short_name(group[0])!r} over {devices}"
    return f"{debug_info} ({note})" if debug_info else note
