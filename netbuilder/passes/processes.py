"""Allreduce, broadcast and allgather over the processes that train one model, as operators.

Each process sums or concatenates the blobs of its own devices first (``reductions``), so that one blob of each process
takes part. Blobs on GPUs go through the memory of the host, unless NCCL connects the processes: then it sums and copies
over all GPUs of all processes by one call.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from netbuilder.graph.devices import Devices, check_groups
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.passes.reductions import PeerAccess, allreduce, broadcast, by_readiness
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceOption, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "AUTO",
    "DEFAULT_BUCKET_BYTES",
    "MOST_BLOBS",
    "ProcessLink",
    "allreduce_over_processes_pass",
    "assign_worlds_pass",
    "broadcast_over_processes",
    "bucket_lengths",
    "buckets",
]

DEFAULT_BUCKET_BYTES = 12 * 2**20
"""Size from which gradients are exchanged without waiting for further ones: ResNet-50 has ten buckets. With more, slow
networks have more round trips; the last bucket, which nothing hides, is small with any size."""

AUTO = "auto"
"""Stands for the size that suits the first steps of a training and the link."""

_MOST, _WORTH, _OF_THE_REST, _LEAST = 1.5, 0.25, 0.75, 0.125  # see bucket_lengths

_HOST = make_device_option(PROTO_CPU, 0)
_ON_HOST = "_on_host"
MOST_BLOBS = 500
"""Of one operator."""
_BY_NCCL = frozenset({"Allgather", "AllreduceBucket", "BroadcastBucket", "GatherFromOwners", "ReduceToOwners"})


Group = Sequence[str]
Exchange = Callable[[Sequence[str]], list[OperatorDef]]


@dataclass(frozen=True)
class ProcessLink:
    """How the operators of a net exchange values with the other processes.

    All of these operators run on one device, so that they run in the order in which the net lists them. They use the
    first common world; ``assign_worlds_pass`` distributes them over all of them.

    Args:
        worlds: blobs of the common worlds.
        processes: number of processes.
        devices: devices of the replicas of this process.
        places: the devices of blobs; others under the scope of a replica are on its device.
        deterministic: sum in the order of the ranks.
        debug_info: line of the user's program; the operators record it.
        by_nccl: NCCL exchanges values of GPUs where they are; without it they go through the memory of the host.
    """

    worlds: Sequence[str]
    processes: int
    devices: Devices
    places: Mapping[str, DeviceOption] = field(default_factory=dict)
    deterministic: bool = False
    debug_info: str = ""
    by_nccl: bool = False

    @property
    def over_gpus(self) -> bool:
        """Whether collectives take a blob of each GPU of this process."""
        return self.by_nccl and len(self.devices) > 1

    def allreduce(self, blobs: Sequence[str]) -> list[OperatorDef]:
        """Return the operators that replace each blob by its sum over the processes."""
        return self.exchange("AllreduceBucket", blobs)

    def allreduce_over_gpus(self, groups: Sequence[Group]) -> list[OperatorDef]:
        """Return the operators that replace the blobs of each group, one per GPU, by their sum over all processes."""
        arguments: dict[str, Any] = {"deterministic": 1} if self.deterministic else {}
        return self._over_gpus("AllreduceBucket", "allreduce", groups, **arguments)

    def _over_gpus(self, op_type: str, what: str, groups: Sequence[Group], **arguments: Any) -> list[OperatorDef]:
        most, count = MOST_BLOBS // len(self.devices), len(self.devices)
        arguments |= {"devices": count} if count > 1 else {}
        ops = []
        for start in range(0, len(groups), most):
            part = [blob for group in groups[start : start + most] for blob in group]
            ops += self._staged(op_type, what, part, part, **arguments)
        return ops

    def exchange(
        self,
        op_type: str,
        blobs: Sequence[str],
        residuals: Sequence[str] = (),
        owners: Mapping[str, int] | None = None,
        **arguments: Any,
    ) -> list[OperatorDef]:
        """Return the operators of a type that exchange each blob with the other processes.

        Args:
            residuals: further inputs and outputs, one for each blob; they are stored by the host.
            owners: the rank that each blob belongs to, for operators that need it.
            arguments: of the operators.
        """
        if op_type in ("AllreduceBucket", "ReduceToOwners") and self.deterministic:
            arguments["deterministic"] = 1
        what = "allreduce" if owners is None else "sums to owners"
        return self._in_buckets(op_type, what, blobs, residuals, owners, **arguments)

    def gather_from_owners(self, blobs: Sequence[str], owners: Mapping[str, int]) -> list[OperatorDef]:
        """Return the operators that replace each blob by that of the rank that it belongs to."""
        return self._in_buckets("GatherFromOwners", "copies of owners", blobs, owners=owners)

    def _in_buckets(
        self,
        op_type: str,
        what: str,
        blobs: Sequence[str],
        residuals: Sequence[str] = (),
        owners: Mapping[str, int] | None = None,
        **arguments: Any,
    ) -> list[OperatorDef]:
        """Return operators of a type that take as many of the blobs as one can."""
        if self.by_nccl and not residuals:
            on_gpus = [blob for blob in blobs if self._place(blob).device_type == PROTO_CUDA]
            groups = [group for group in (on_gpus, [blob for blob in blobs if blob not in on_gpus]) if group]
        else:
            groups = [list(blobs)]
        ops = []
        for group in groups:
            for start in range(0, len(group), MOST_BLOBS):
                part, kept = group[start : start + MOST_BLOBS], residuals[start : start + MOST_BLOBS]
                arguments |= {} if owners is None else {"owners": [owners[blob] for blob in part]}
                ops += self._staged(op_type, what, part, part, kept, **arguments)
        return ops

    def average_chunk(self, counter: str, blobs: Sequence[str], chunk: int) -> list[OperatorDef]:
        """Return the operators that replace the next chunk of the blobs by its mean over the processes."""
        return self._staged("AverageChunk", "averages", [counter, *blobs], [counter, *blobs], chunk=chunk)

    def broadcast(self, blobs: Sequence[str]) -> list[OperatorDef]:
        """Return the operators that replace each blob by that of rank 0."""
        return self._in_buckets("BroadcastBucket", "broadcast", blobs, root=0)

    def broadcast_over_gpus(self, groups: Sequence[Group]) -> list[OperatorDef]:
        """Return the operators that replace the blobs of each group, one per GPU, by the first one of rank 0."""
        return self._over_gpus("BroadcastBucket", "broadcast", groups, root=0)

    def over_host(
        self, op_type: str, what: str, inputs: Sequence[str], outputs: Sequence[str], **arguments: Any
    ) -> OperatorDef:
        """Return an operator of a type that exchanges values of the host.

        Args:
            what: it does, for its note.
            inputs, outputs: without the common world.
            arguments: of the operator.
        """
        place = self.devices.options[0] if self.devices.is_cpu else _HOST
        op = make_op(op_type, [self.worlds[0], *inputs], outputs, device_option=place, **arguments)
        note = f"{what} over {self.processes} processes"
        op.debug_info = f"{self.debug_info} ({note})" if self.debug_info else note
        return op

    def allgather(self, source: str, target: str) -> list[OperatorDef]:
        """Return the operators that concatenate the rows of all processes, in the order of the ranks."""
        return self._staged("Allgather", "gather", [source], [target])

    def _staged(
        self,
        op_type: str,
        what: str,
        sources: Sequence[str],
        targets: Sequence[str],
        on_host: Sequence[str] = (),
        **arguments: Any,
    ) -> list[OperatorDef]:
        there, back, inputs, outputs = list[OperatorDef](), list[OperatorDef](), list[str](), list[str]()
        first = self._place(sources[0])
        direct = self.by_nccl and op_type in _BY_NCCL and not on_host and first.device_type == PROTO_CUDA
        for source, target in zip(sources, targets):
            place = self._place(source)
            if place.device_type != PROTO_CUDA or direct:
                inputs.append(source)
                outputs.append(target)
                continue
            inputs.append(source + _ON_HOST)
            outputs.append(target + _ON_HOST)
            there.append(make_op("CopyGPUToCPU", [source], inputs[-1:], device_option=place))
            back.append(make_op("CopyCPUToGPU", outputs[-1:], [target], device_option=place))
        place = first if direct else self.devices.options[0] if self.devices.is_cpu else _HOST
        op = make_op(
            op_type, [self.worlds[0], *inputs, *on_host], [*outputs, *on_host], device_option=place, **arguments
        )
        ops = [*there, op, *back]
        names = ", ".join(repr(self.devices.short_name(source)) for source in sources)
        note = f"{what} of {names} over {self.processes} processes"
        for op in ops:
            op.debug_info = f"{self.debug_info} ({note})" if self.debug_info else note
        return ops

    def _place(self, blob: str) -> DeviceOption:
        replica = self.devices.replica_of(blob)
        return self.places.get(blob, _HOST if replica is None else self.devices.options[replica])


def buckets(
    net: NetDef, groups: Sequence[Group], sizes: Mapping[str, int], bucket_bytes: int
) -> list[tuple[int, list[Group]]]:
    """Divide groups of blobs into buckets, in the order in which they are ready, and then in the given one.

    Args:
        net: the net that writes the blobs.
        groups: for each quantity its blobs, one per device.
        sizes: first blob of a group -> its size in bytes; one without a size has a bucket of its own.
        bucket_bytes: see ``bucket_lengths``.

    Returns:
        For each bucket the index of the last operator that reads or writes one of its blobs, and its groups.

    Raises:
        NetError: no operator writes a blob.
    """
    written = {blob for op in net.op for blob in op.output}
    if missing := [blob for group in groups for blob in group if blob not in written]:
        raise NetError(f"net {net.name!r}: no operator writes {missing}, so they cannot be summed over the processes")
    ready = by_readiness(net, groups)
    lengths = bucket_lengths([sizes.get(group[0]) for _, group in ready], bucket_bytes)
    parts = (ready[end - length : end] for length, end in zip(lengths, itertools.accumulate(lengths)))
    return [(part[-1][0], [group for _, group in part]) for part in parts]


def bucket_lengths(sizes: Sequence[int | None], bucket_bytes: int) -> list[int]:
    """Return the number of values of each bucket, of values that are exchanged in the order in which they are ready.

    A bucket is closed when it has ``bucket_bytes``, or, if it has a quarter of them, before a value by which it would
    have more than half as many again. The exchange of the last bucket is hidden by nothing, since all is computed then;
    so that it is small, a bucket of an eighth or more is also closed when it has three quarters of all bytes that are
    left.

    Args:
        sizes: bytes of each value; one of None has a bucket of its own.
        bucket_bytes: 0: each value has a bucket of its own.

    >>> bucket_lengths([3, 3, 3, 3, 3, 20, 1, 3, 3, 3, 1, 1], bucket_bytes=8)
    [3, 2, 1, 4, 2]
    """
    lengths, filled, left = list[int](), math.inf, sum(filter(None, sizes))
    most, worth, least = (part * bucket_bytes for part in (_MOST, _WORTH, _LEAST))
    for size in sizes:
        more = bucket_bytes if size is None else size
        full = filled >= min(bucket_bytes, max(_OF_THE_REST * (filled + left), least))
        if full or size is None or (filled >= worth and filled + more > most):
            lengths.append(0)
            filled = 0
        lengths[-1] += 1
        filled += more
        left -= size or 0
    return lengths


@net_pass
def allreduce_over_processes_pass(
    net: NetDef,
    context: PassContext,
    *,
    groups: Sequence[Group],
    link: ProcessLink,
    sizes: Mapping[str, int],
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    peer_access: PeerAccess | None = None,
    hand_back: bool = True,
    exchange: Exchange | None = None,
    whole: bool = True,
) -> PassResult:
    """Sum groups of blobs over the devices of this process and over all processes, as soon as they are written.

    After the last operator that reads or writes a blob of a bucket follow the sums over the devices, the operator that
    sums these over the processes, and the copies of the results to the other devices.

    Args:
        net: forward and backward pass.
        context: not read; the devices are those of ``link``.
        groups: for each quantity its blobs: one per device, or a single blob that all devices have in common.
        link: how processes are reached.
        sizes, bucket_bytes: see ``buckets``.
        peer_access, hand_back: as for ``allreduce``.
        exchange: returns the operators that exchange the sums of a bucket; None: ``link.allreduce``.
        whole: the exchange is a sum of whole values, which NCCL may form over all GPUs by one call.

    Raises:
        NetError: no operator writes a blob, or the number of blobs in a group is wrong.
    """
    devices = link.devices
    check_groups([group for group in groups if len(group) > 1], devices)
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    due: dict[int, list[list[Group]]] = defaultdict(list)
    for index, members in buckets(net, groups, sizes, bucket_bytes):
        due[index].append(members)
    written = {blob for op in net.op for blob in op.output}
    kept = list[str]()  # residuals, which the operators find from the last step
    for index, op in enumerate(net.op):
        result.op.add().CopyFrom(op)
        for members in due[index]:
            local = [group for group in members if len(group) > 1]
            options: dict[str, Any] = {"debug_info": link.debug_info}
            if link.over_gpus and whole:
                result.op.extend(link.allreduce_over_gpus(local) if local else ())
                members, local = [group for group in members if len(group) == 1], []
            if not members:
                continue
            result.MergeFrom(allreduce(local, devices, peer_access=peer_access, hand_back=False, **options))
            exchanged = (exchange or link.allreduce)([group[0] for group in members])
            kept += [blob for op in exchanged for blob in op.output if blob in op.input and blob not in written]
            result.op.extend(exchanged)
            if hand_back:
                result.MergeFrom(broadcast(local, devices, **options))
    _declare(result, [*link.worlds[:1], *(blob for blob in kept if not blob.endswith(_ON_HOST))])
    return PassResult(result)


def broadcast_over_processes(groups: Sequence[Group], link: ProcessLink) -> NetDef:
    """Return the operators that copy the first blob of each group from rank 0 to all devices of all processes.

    Args:
        groups: for each quantity its blobs: one per device, or a single blob that all devices have in common.
        link: how processes are reached.
    """
    several = [group for group in groups if len(group) > 1]
    over_gpus = several if link.over_gpus else []
    net = NetDef()
    net.op.extend(link.broadcast_over_gpus(over_gpus))
    net.op.extend(link.broadcast([group[0] for group in groups if group not in over_gpus]))
    if not over_gpus:
        net.MergeFrom(broadcast(several, link.devices, debug_info=link.debug_info))
    return net


@net_pass
def assign_worlds_pass(net: NetDef, context: PassContext, *, worlds: Sequence[str]) -> PassResult:
    """Distribute the operators that use a common world over several: the i-th uses world i modulo their number.

    Each waits, by a control input, for the previous one of its world, so that no world is in two operators at the same
    time. Extra ``count``: how many there are.

    Args:
        net: its operators use any of the worlds, and make none.
        context: not read.
        worlds: blobs of the common worlds, which become external inputs if they are used.
    """
    result = NetDef()
    result.CopyFrom(net)
    known, count = set(worlds), 0
    last: dict[str, str] = {}  # world -> an output of the last operator that uses it
    for op in result.op:
        if not op.input or op.input[0] not in known or not op.output:
            continue
        world = worlds[count % len(worlds)]
        op.input[0] = world
        if world in last and last[world] not in op.control_input:
            op.control_input.append(last[world])
        last[world] = op.output[0]
        count += 1
    without = [name for name in result.external_input if name not in known]
    del result.external_input[:]
    result.external_input.extend(without)
    _declare(result, [world for world in worlds if world in last])
    return PassResult(result, {"count": count})


def _declare(net: NetDef, blobs: Iterable[str]) -> None:
    net.external_input.extend(blob for blob in blobs if blob not in net.external_input)
