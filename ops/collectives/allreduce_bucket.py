"""AllreduceBucket: many gradients summed over the processes by few calls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.nccl_communicator import GpuRanks
from netbuilder.distributed.transport.reductions import FLOAT_TYPES, narrow, sum_rows, widen
from netbuilder.distributed.worlds.promises import Sums, Votes
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.engines.arrays import as_flat
from netbuilder.engines.buffer_rows import as_row, order_in_row
from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.engines.nccl import NcclCall, type_of
from netbuilder.ops.collectives.in_place import InPlace, Work, in_place_kernels
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import register
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CHUNK", "IN_PLACE_BYTES", "AllreduceBucket"]

Array = Any

IN_PLACE_BYTES = 128 << 10
"""Bytes of a blob from which it is exchanged where it is: another call costs less than two copies of it."""

CHUNK = 1 << 20
"""Elements that are rounded, exchanged and widened at a time, so that they stay in the cache meanwhile."""

_EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80}  # the bits that infinities and NaN have
_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
_INFINITE_FROM = {"float16": 65520.0, "bfloat16": 3.3961775292304957e38}  # float32 is rounded to infinity from here on


@in_place_kernels
@register
@dataclass(frozen=True)
class AllreduceBucket(InPlace):
    """Output i is the sum of input i over the processes.

    With ``devices``, consecutive blobs are one quantity, one on each device of this process, and all get the sum over
    all devices of all processes.

    Blobs that are next to each other in memory, as a plan stores gradients, are exchanged there, by one call. Of
    others, small ones are copied into one buffer and exchanged together, and those of 128 KiB or more in place. With
    another ``precision`` than float32, float32 blobs are rounded to it on the way, added in float32, and the sums
    are rounded once. If this makes a finite element, or a sum of such, infinite, all processes raise the same error,
    which names the blob and the ranks; what was infinite or NaN before stays so. ``clip`` bounds the magnitude of
    elements before they are rounded; 0: nothing does. With ``deterministic``, processes are added in the order of their
    ranks, so that the sum is the same to the bit in each run.
    """

    signature = """
        common_world: object
        X+ (...): float|int
        -> Y+ (...): float|int, with type and shape of X
    """
    precision: str = "float32"
    deterministic: bool = False
    clip: float = 0.0
    devices: int = 1

    def copies(self) -> int:
        return self.devices

    def check(self) -> None:
        super().check()
        if self.precision not in FLOAT_TYPES:
            raise ArgumentError(
                f"AllreduceBucket: precision must be one of {', '.join(FLOAT_TYPES)}, got {self.precision!r}"
            )
        if not self.clip >= 0 or (self.clip and self.precision == "float32"):
            raise ArgumentError(
                f"AllreduceBucket: clip must be a positive bound of values that are rounded to another precision than "
                f"float32, or 0, got {self.clip!r} with precision {self.precision!r}"
            )

    def flops(self, *inputs: TensorSpec) -> int:
        return sum(x.size for x in inputs[1:])

    def terms(self) -> str:
        return f"precision={self.precision}, deterministic={self.deterministic}, clip={self.clip:g}"

    def together(self, specs: Sequence[TensorSpec]) -> list[list[int]]:
        firsts = [*range(0, len(specs), self.devices)]
        return [[firsts[i] for i in same] for same in self._not_rounded([specs[i] for i in firsts])]

    def in_rows(self, blobs: Sequence[Array]) -> list[list[int]]:
        firsts = blobs[:: self.devices]
        orders = ((same, order_in_row([firsts[i] for i in same])) for same in self._not_rounded(firsts))
        return [[same[i] for i in order] for same, order in orders if order is not None]

    def _not_rounded(self, blobs: Sequence[TensorSpec | Array]) -> list[list[int]]:
        """Return the indices of blobs of one type that are exchanged as they are, if there are several."""
        of_type = defaultdict[Any, list[int]](list)
        for i, blob in enumerate(blobs):
            if blob.size and (self.precision == "float32" or blob.dtype != np.float32):
                of_type[blob.dtype].append(i)
        return [same for same in of_type.values() if len(same) > 1]

    def gpu_calls(self, ranks: GpuRanks, rank: int, blobs: Sequence[Array]) -> list[NcclCall] | None:
        groups = [(type_of(group[0].dtype, sums=True), group) for group in self.quantities(blobs)]
        if self.precision != "float32" or any(kind is None for kind, _ in groups):
            return None
        return [NcclCall("allReduce", group, group, kind, group[0].size) for kind, group in groups if kind]

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        groups = self.quantities(blobs)
        firsts = [group[0] for group in groups]
        wire, rows = FLOAT_TYPES[self.precision], self.in_rows(blobs)
        parts = _parts(firsts, wire, names[:: self.devices], rows) if world.size > 1 else []
        return _Exchange(self, groups, parts, world.communicator)

    def votes(self, work: Work) -> Votes | None:
        assert isinstance(work, _Exchange)
        return work if work.may_vote else None


def _overflow(name: str, precision: str, largest: Array) -> str:
    ranks = [rank for rank, value in enumerate(largest) if value >= _INFINITE_FROM[precision]]
    listed = ", ".join(f"{largest[rank]:g} on rank {rank}" for rank in ranks)
    what = f"its largest magnitude is {listed}" if ranks else f"the sum over {len(largest)} ranks is larger"
    wider = "" if precision == "bfloat16" else "exchange bfloat16 or float32, or "
    return (
        f"AllreduceBucket: {name!r} overflows {precision}, whose largest number is {_LARGEST[precision]:g}: {what}; "
        f"{wider}bound the values by clip"
    )


class _Exchange:
    """The exchange of a bucket, over memory that stays the same; see ``Votes``.

    Args:
        op: the operator.
        groups: the blobs of each quantity, one for each device.
        parts: what its calls exchange.
        communicator: of the common world.
    """

    def __init__(
        self, op: AllreduceBucket, groups: Sequence[Sequence[Array]], parts: Sequence[_Part], communicator: Communicator
    ) -> None:
        self._op, self._groups, self._parts = op, groups, parts
        self._gaps = sum(part.gaps for part in parts)
        self.stops = bool(parts) and parts[0].rounds
        floats = [number for number, part in enumerate(parts) if part.buffer.dtype in (np.float32, np.float64)]
        self._place, self._own = 0 if self.stops or not floats else floats[0], 0.0
        self._doubtful = False
        self.may_vote = self.stops or bool(floats)
        kinds = tuple((part.buffer.dtype.str, part.buffer.size) for part in (parts[:1] if self.stops else parts))
        bfloat16 = self.stops and parts[0].bfloat16
        self.promised = Sums(communicator, kinds, self._place, op.deterministic, bfloat16)

    def __call__(self, communicator: Communicator) -> None:
        communicator.given_bytes -= self._gaps  # of which no values are given
        for group in self._groups if self._op.devices > 1 else ():
            sum_rows(group, group[0])
        for number, part in enumerate(self._parts):
            if part.blobs:
                part.load(self._op.clip)
            if number == self._place and self.may_vote:
                self._own = float(part.buffer[0])
            communicator.allreduce(part.buffer, bfloat16=part.bfloat16, deterministic=self._op.deterministic)
            if number == self._place and self.may_vote:
                self._doubtful = communicator.unasked is not None and part.begins_with_nan
                if self._doubtful and self.stops:
                    self._add_nothing_again()
                    return
            if part.blobs:
                if part.rounds:
                    self._check_overflow(communicator, part)
                part.store()
        for group in self._groups if self._op.devices > 1 else ():
            for blob in group[1:]:
                np.copyto(blob, group[0])

    @property
    def doubtful(self) -> bool:
        return self._doubtful

    def _add_nothing_again(self) -> None:
        """Let the sums over the devices of this process, which the first of them has, be added once more."""
        for group in self._groups:
            for blob in group[1:]:
                blob.fill(-0.0)

    def restore(self, keep: bool) -> None:
        for group in self._groups:
            for blob in group[1 if keep else 0 :]:
                blob.fill(-0.0)
        part = self._parts[self._place]
        (part.blobs[0][0] if part.blobs else part.buffer)[0] = self._own

    def _check_overflow(self, communicator: Communicator, part: _Part) -> None:
        """Raise NetError on all ranks, which have the same sums, if one is infinite because of the rounding."""
        exponent = _EXPONENT[self._op.precision]
        found = [
            (blob, name)
            for (blob, staged), name in zip(part.blobs, part.names)
            if np.bitwise_and(staged.view(np.uint16), exponent).max(initial=0) == exponent
        ]
        if not found:
            return
        own = np.array([np.abs(blob).max() for blob, _ in found], np.float64)
        of_ranks = communicator.allgather(own).reshape(communicator.size, -1).T
        for (_, name), largest in zip(found, of_ranks):
            if np.isfinite(largest).all():
                raise NetError(_overflow(name, self._op.precision, largest))


@dataclass(frozen=True)
class _Part:
    """What one call exchanges.

    Args:
        buffer: the memory.
        blobs: the blobs that are copied into it, each with its part of the buffer; () if it is a blob itself, or a row.
        names: of these blobs.
        gaps: bytes of it between the blobs of a row.
    """

    buffer: Array
    blobs: Sequence[tuple[Array, Array]] = ()
    bfloat16: bool = False
    names: Sequence[str] = ()
    gaps: int = 0

    @property
    def begins_with_nan(self) -> bool:
        if self.bfloat16:
            widen(self.buffer[:1], first := np.empty(1, np.float32))
            return math.isnan(first[0])
        return math.isnan(self.buffer[0])  # several times as fast as by NumPy

    @property
    def rounds(self) -> bool:
        return any(blob.dtype != staged.dtype for blob, staged in self.blobs)

    def load(self, clip: float) -> None:
        for blob, staged in self.blobs:
            if blob.dtype == staged.dtype:
                np.copyto(staged, blob)
                continue
            if clip:
                np.clip(blob, -clip, clip, out=blob)
            with np.errstate(over="ignore"):  # found in the sums
                narrow(blob, staged)

    def store(self) -> None:
        for blob, staged in self.blobs:
            if blob.dtype == staged.dtype:
                np.copyto(blob, staged)
            else:
                widen(staged, blob)


def _parts(
    blobs: Sequence[Array], wire: np.dtype[Any], names: Sequence[str], rows: Sequence[Sequence[int]] = ()
) -> list[_Part]:
    """Return the calls for blobs, of which some are in rows; float32 ones are exchanged as ``wire``."""
    large, small = [_row([blobs[i] for i in row]) for row in rows], defaultdict[Any, dict[str, Array]](dict)
    done = {i for row in rows for i in row}
    for blob, name in ((blob, name) for i, (blob, name) in enumerate(zip(blobs, names)) if i not in done):
        rounded = blob.dtype == np.float32 and wire != np.float32
        if blob.size and (rounded or blob.nbytes < IN_PLACE_BYTES):
            small[blob.dtype][name] = blob
        elif blob.size:
            large.append(_Part(blob))
    rounded_ones = small.pop(np.dtype(np.float32), {}) if wire != np.float32 else {}
    staged = [_staged(group, dtype) for dtype, group in small.items()]
    return [*_rounded(rounded_ones, wire), *staged, *large]


def _row(blobs: Sequence[Array]) -> _Part:
    row = as_row(blobs)
    assert row is not None
    return _Part(as_flat(row, blobs[0].dtype), gaps=row.nbytes - sum(blob.nbytes for blob in blobs))


def _rounded(named: Mapping[str, Array], wire: np.dtype[Any]) -> Iterator[_Part]:
    """Yield the calls for float32 blobs that are exchanged as ``wire``; all of them use the same memory."""
    size = min(CHUNK, sum(blob.size for blob in named.values()))
    if not size:
        return
    buffer = lasting_zeros(size * wire.itemsize).view(wire)
    pairs, names, filled = [], [], 0
    for name, blob in named.items():
        for piece in np.split(blob, range(size - filled, blob.size, size)):
            pairs.append((piece, buffer[filled : filled + piece.size]))
            names.append(name)
            filled += piece.size
            if filled == size:
                yield _Part(buffer, pairs, wire == np.uint16, names)
                pairs, names, filled = [], [], 0
    if pairs:
        yield _Part(buffer[:filled], pairs, wire == np.uint16, names)


def _staged(named: Mapping[str, Array], dtype: np.dtype[Any]) -> _Part:
    blobs = list(named.values())
    if len(blobs) == 1:
        return _Part(blobs[0])
    buffer = lasting_zeros(sum(blob.size for blob in blobs) * dtype.itemsize).view(dtype)
    pairs, start = [], 0
    for blob in blobs:
        pairs.append((blob, buffer[start : start + blob.size]))
        start += blob.size
    return _Part(buffer, pairs)
