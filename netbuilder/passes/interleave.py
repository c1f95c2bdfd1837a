"""Interleaving: the replicas' operators alternate, so that all replicas reach an exchange at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from netbuilder.graph.devices import Devices
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["interleave", "interleave_pass", "rows_of"]


def interleave(net: NetDef, devices: Devices) -> NetDef:
    """Return a copy of a net in which the first operators of all replicas come first, then the second ones, and so on.

    An operator outside the replicas keeps its place among these, and moves to where the first operator needs it.

    Args:
        net: a net with the operators of all replicas, and no exchange between them; left unchanged.
        devices: devices of the replicas.

    Raises:
        NetError: the replicas have different operators, or depend on one another.
    """
    return interleave_pass(net, PassContext(devices=devices)).net


@net_pass
def interleave_pass(net: NetDef, context: PassContext) -> PassResult:
    """Do what ``interleave`` does. Reads ``devices``."""
    assert context.devices is not None
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    for row in rows_of(net, context.devices):
        result.op.extend(row)
    return PassResult(result)


def rows_of(net: NetDef, devices: Devices) -> list[list[OperatorDef]]:
    """Return the operators in interleaved order, as rows: one operator for each replica, or one outside of them.

    Raises: as ``interleave``.
    """
    streams: list[list[OperatorDef]] = [[] for _ in devices.ids]
    outside: list[_Outside] = []
    needed: dict[int, int] = {}  # row -> how many of the operators outside have to run before it
    touched = _Touched()
    for op in net.op:
        replica = _replica_of(op, devices)
        if replica is None:
            outside.append(_Outside(op, touched.last_row(op)))
            touched.add(op, outside=len(outside))
        else:
            place = len(streams[replica])
            if touched.last_row(op) > place:
                raise NetError(_waits(net, op, devices))
            streams[replica].append(op)
            needed[place] = max(needed.get(place, 0), touched.outside_before(op))
            touched.add(op, row=place)
    _check_uniform(net, streams, devices)
    rows: list[list[OperatorDef]] = []
    done = 0
    for number, row in enumerate(zip(*streams)):
        while done < needed[number]:
            if outside[done].after >= number:
                raise NetError(_waits(net, outside[done].op, devices))
            rows.append([outside[done].op])
            done += 1
        rows.append(list(row))
    return [*rows, *([each.op] for each in outside[done:])]


def _waits(net: NetDef, op: OperatorDef, devices: Devices) -> str:
    return (
        f"net {net.name!r}: {op.type} {list(op.output)} makes a replica wait for a later operator of another one, so "
        f"the replicas ({devices}) cannot reach each exchange together; replicas must not depend on one another"
    )


@dataclass(frozen=True)
class _Outside:
    """An operator outside the replicas, and the last row that has to run before it; -1: none."""

    op: OperatorDef
    after: int


_Uses = tuple[defaultdict[str, int], defaultdict[str, int]]
"""Blob -> the largest number of an operator that reads it, and that writes it."""


class _Touched:
    """Which rows, and which operators outside the replicas, have read and written each blob so far."""

    def __init__(self) -> None:
        self._rows: _Uses = (defaultdict(lambda: -1), defaultdict(lambda: -1))
        self._outside: _Uses = (defaultdict(int), defaultdict(int))

    def add(self, op: OperatorDef, *, row: int = -1, outside: int = 0) -> None:
        for blobs, rows, others in zip((_reads(op), op.output), self._rows, self._outside):
            for blob in blobs:
                rows[blob], others[blob] = max(rows[blob], row), max(others[blob], outside)

    def last_row(self, op: OperatorDef) -> int:
        """Return the last row that an operator has to wait for."""
        return _last(op, self._rows, -1)

    def outside_before(self, op: OperatorDef) -> int:
        """Return how many of the operators outside an operator has to wait for."""
        return _last(op, self._outside, 0)


def _last(op: OperatorDef, uses: _Uses, none: int) -> int:
    """Return the largest number of an operator that writes what ``op`` uses, or reads what it writes."""
    read, written = uses
    found = [written[blob] for blob in (*_reads(op), *op.output)]
    return max([*found, *(read[blob] for blob in op.output)], default=none)


def _reads(op: OperatorDef) -> Iterable[str]:
    return (*op.input, *op.control_input)


def _replica_of(op: OperatorDef, devices: Devices) -> int | None:
    """Return the only replica whose blobs an operator uses; None: it uses those of none, or of several."""
    found = {devices.replica_of(blob) for blob in (*op.input, *op.output)} - {None}
    return found.pop() if len(found) == 1 else None


def _check_uniform(net: NetDef, streams: Sequence[Sequence[OperatorDef]], devices: Devices) -> None:
    """Raise NetError unless all replicas have operators of the same types in the same order."""
    if len({len(stream) for stream in streams}) > 1:
        counts = ", ".join(
            f"{counted(len(stream), 'operator')} on device {number}" for stream, number in zip(streams, devices.ids)
        )
        raise NetError(
            f"net {net.name!r}: the replicas must have the same operators, so that all reach each exchange together; "
            f"there are {counts}; the builders must make the same net on each device"
        )
    for number, row in enumerate(zip(*streams)):
        if len({op.type for op in row}) > 1:
            types = ", ".join(f"{op.type} on device {device}" for op, device in zip(row, devices.ids))
            raise NetError(
                f"net {net.name!r}: the replicas must have the same operators, so that all reach each exchange "
                f"together; each has {counted(len(streams[0]), 'operator')}, but number {number} is {types}; the "
                "builders must make the same net on each device"
            )
