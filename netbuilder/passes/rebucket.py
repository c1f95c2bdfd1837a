"""Rebucketing: the gradients that a net exchanges between processes are divided into buckets of another size."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from netbuilder.graph.versions import reads_of, writes_of
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.passes.processes import MOST_BLOBS, assign_worlds_pass, bucket_lengths
from netbuilder.proto import NetDef, NetError, OperatorDef

__all__ = ["rebucket_pass"]


@net_pass
def rebucket_pass(
    net: NetDef, context: PassContext, *, worlds: Sequence[str], sizes: Mapping[str, int], bucket_bytes: int
) -> PassResult:
    """Divide the gradients that processes exchange into buckets of another size, in the order in which they are.

    What reads or writes a gradient that waits for others of its bucket comes after the exchange, with what depends on
    it. Extra ``buckets``: how many there are.

    Args:
        net: as ``Parallelize`` made it, with gradients of the host.
        context: not read.
        worlds: its common worlds.
        sizes: gradient -> its bytes; what exchanges other values stays as it is.
        bucket_bytes: see ``bucket_lengths``.

    Raises:
        NetError: no operator exchanges a gradient, or they do it in different ways.
    """

    def exchanged(op: OperatorDef) -> list[str]:
        """Return the gradients that an operator exchanges."""
        known = op.input[:1] and op.input[0] in worlds
        return list(itertools.takewhile(sizes.__contains__, op.input[1:])) if known else []

    found = [op for op in net.op if exchanged(op)]
    if len({(op.type, *(arg.SerializeToString() for arg in op.arg)) for op in found}) != 1:
        raise NetError(
            f"net {net.name!r}: gradients can be divided into other buckets if operators of one kind exchange them, "
            f"found {sorted({op.type for op in found}) or 'none'}"
        )
    gradients = [name for op in found for name in exchanged(op)]
    lengths = bucket_lengths([sizes[name] for name in gradients], bucket_bytes)
    ends = {end for start, end in _ends(lengths)}
    result, place = NetDef(), 0
    result.CopyFrom(net)
    del result.op[:]
    members: list[tuple[str, ...]] = []  # gradients, and their residuals, of the bucket that is not full yet
    later: list[OperatorDef] = []
    for op in net.op:
        own = exchanged(op)
        if not own:
            later.append(op)
        for member in zip(own, *([op.input[1 + len(own) :]] if len(op.input) > 1 + len(own) else [])):
            members.append(member)
            place += 1
            if place in ends:
                result.op.append(_bucket(op, members))
                members = []
        now, later = _ready(later, [blob for member in members for blob in member])
        result.op.extend(now)
    for op in result.op:
        if op.input[:1] and op.input[0] in worlds:
            op.control_input[:] = [name for name in op.control_input if name not in sizes]
    return PassResult(assign_worlds_pass(result, context, worlds=worlds).net, {"buckets": len(ends)})


def _ends(lengths: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Yield the bounds of buckets of so many values, of which those with too many for an operator are divided."""
    start = 0
    for length in lengths:
        for begin in range(start, start + length, MOST_BLOBS):
            yield begin, min(begin + MOST_BLOBS, start + length)
        start += length


def _bucket(like: OperatorDef, members: Sequence[tuple[str, ...]]) -> OperatorDef:
    """Return the operator that exchanges gradients as another one does."""
    op = OperatorDef()
    op.CopyFrom(like)
    blobs = [blob for kind in zip(*members) for blob in kind]
    op.input[:] = [like.input[0], *blobs]
    op.output[:] = blobs
    user = like.debug_info.rpartition(" (")[0]
    note = f"allreduce of {', '.join(repr(member[0]) for member in members)} over the processes"
    op.debug_info = f"{user} ({note})" if user else note
    return op


def _ready(ops: Iterable[OperatorDef], waiting: Collection[str]) -> tuple[list[OperatorDef], list[OperatorDef]]:
    """Divide operators into those that can run now and those that depend on blobs which are not exchanged yet."""
    now, later = list[OperatorDef](), list[OperatorDef]()
    changed, read = set(waiting), set[str]()
    for op in ops:
        reads, writes = {*reads_of(op), *op.control_input}, {*writes_of(op)}
        if changed.isdisjoint(reads | writes) and read.isdisjoint(writes):
            now.append(op)
        else:
            later.append(op)
            changed |= writes
            read |= reads
    return now, later
