"""ReduceToOwners and GatherFromOwners: values that are owned whole by the ranks, summed there and copied from there."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.nccl_communicator import GpuRanks
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.engines.nccl import NcclCall, type_of
from netbuilder.ops.collectives.in_place import InPlace, Work, in_place_kernels
from netbuilder.ops.core.operator import STRING, TensorSpec, require
from netbuilder.ops.core.registry import register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GatherFromOwners", "ReduceToOwners"]

Array = Any

PIECE_BYTES = 16 << 20
"""Bytes that one call exchanges at most, and of the memory that a process takes for it."""


@dataclass(frozen=True)
class _WithOwners(InPlace):
    """Base: ``owners`` has the rank that each blob belongs to."""

    signature = """
        common_world: object
        X+ (...): any
        -> Y+ (...): any, with type and shape of X
    """
    owners: tuple[int, ...] = ()

    def check(self) -> None:
        super().check()
        if len(self.owners) != self.n_out or min(self.owners) < 0:
            raise ArgumentError(
                f"{self.type}: owners must be the rank of each of the {self.n_out} blobs, from 0 on, got "
                f"{list(self.owners)}"
            )

    def terms(self) -> str:
        return f"owners={list(self.owners)}"

    def _pieces(self, world: CommonWorld, blobs: Sequence[Array]) -> list[_Piece]:
        """Return what each call exchanges."""
        if max(self.owners) >= world.size:
            raise ArgumentError(
                f"{self.type}: owners must lie in [0, {world.size}), the ranks of the common world, got "
                f"{list(self.owners)}"
            )
        of_type = defaultdict[Any, list[tuple[int, Array]]](list)
        for owner, blob in zip(self.owners, blobs) if world.size > 1 else ():
            if blob.size:
                of_type[blob.dtype].append((owner, blob))
        return [piece for group in of_type.values() for piece in _pieces(group, world)]


@in_place_kernels
@register
@dataclass(frozen=True)
class ReduceToOwners(_WithOwners):
    """Blob i of rank ``owners[i]`` becomes the sum over the processes; those of other ranks keep their values.

    Processes are added in the order of their ranks, so that the sum is the same to the bit in each run, and that of
    AllreduceBucket with ``deterministic``; NCCL does that only with ``deterministic``.
    """

    signature = """
        common_world: object
        X+ (...): float|int
        -> Y+ (...): float|int, with type and shape of X
    """
    deterministic: bool = False

    def flops(self, *inputs: TensorSpec) -> int:
        return sum(x.size for x in inputs[1:])

    def gpu_calls(self, ranks: GpuRanks, rank: int, blobs: Sequence[Array]) -> list[NcclCall] | None:
        kinds = [type_of(blob.dtype, sums=True) for blob in blobs]
        if None in kinds:
            return None
        return [
            NcclCall("reduce", [x], [x if rank == owner else None], kind or "", x.size, ranks.first[owner])
            for owner, x, kind in zip(self.owners, blobs, kinds)
        ]

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        pieces = self._pieces(world, blobs)

        def work(communicator: Communicator) -> None:
            for piece in pieces:
                piece.reduce(communicator)

        return work


@in_place_kernels
@register
@dataclass(frozen=True)
class GatherFromOwners(_WithOwners):
    """Blob i becomes that of rank ``owners[i]``, on all processes; it has the same shape and type on all of them."""

    sums: ClassVar[bool] = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        for i, x in enumerate(inputs[1:], start=1):
            require(x.dtype != STRING, self, f"input {i} must be a tensor of numbers or bools, got strings")
        return super().infer(*inputs)

    def gpu_calls(self, ranks: GpuRanks, rank: int, blobs: Sequence[Array]) -> list[NcclCall] | None:
        kind = type_of("uint8") or ""
        return [
            NcclCall("broadcast", [x], [x], kind, x.nbytes, ranks.first[owner])
            for owner, x in zip(self.owners, blobs)
            if x.size
        ]

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        pieces = self._pieces(world, [blob.view(np.uint8) for blob in blobs])

        def work(communicator: Communicator) -> None:
            for piece in pieces:
                piece.gather(communicator)

        return work


class _Scratch(threading.local):
    """Memory of a thread for one piece: the lane of collectives exchanges one after another."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def of(self, size: int, dtype: Any) -> Array:
        """Return an array, whose values are lost when the thread asks for another one."""
        nbytes = size * np.dtype(dtype).itemsize
        if self._memory.size < nbytes:
            self._memory = lasting_zeros(nbytes)
        return self._memory[:nbytes].view(dtype)


_scratch = _Scratch()


class _Piece:
    """Parts of arrays of one type that one call exchanges, next to each other in the order of their owners.

    Args:
        parts: with their owners.
        world: the common world.
    """

    def __init__(self, parts: Sequence[tuple[int, Array]], world: CommonWorld) -> None:
        self._rank, self._counts = world.rank, [0] * world.size
        self._parts = sorted(parts, key=lambda pair: pair[0])
        for owner, part in self._parts:
            self._counts[owner] += part.size

    def _staged(self) -> tuple[Array, list[tuple[int, Array, Array]]]:
        """Return memory for all parts, and the parts with their owners and their places in it."""
        buffer, start, placed = _scratch.of(sum(self._counts), self._parts[0][1].dtype), 0, []
        for owner, part in self._parts:
            placed.append((owner, part, buffer[start : start + part.size]))
            start += part.size
        return buffer, placed

    def reduce(self, communicator: Communicator) -> None:
        buffer, placed = self._staged()
        for _, part, staged in placed:
            np.copyto(staged, part)
        total, start = communicator.reduce_scatter(buffer, self._counts), 0
        for owner, part, _ in placed:
            if owner == self._rank:
                np.copyto(part, total[start : start + part.size])
                start += part.size

    def gather(self, communicator: Communicator) -> None:
        buffer, placed = self._staged()
        mine = [part for owner, part, _ in placed if owner == self._rank]
        own = mine[0] if len(mine) == 1 else np.concatenate([buffer[:0], *mine])
        communicator.allgather(own, self._counts, buffer)
        for owner, part, staged in placed:
            if owner != self._rank:
                np.copyto(part, staged)


def _pieces(blobs: Sequence[tuple[int, Array]], world: CommonWorld) -> list[_Piece]:
    """Return the pieces of arrays of one type, each of which has as much of every owner.

    Args:
        blobs: with their owners.
        world: the common world.
    """
    filled, dtype = [0] * world.size, blobs[0][1].dtype
    most = max(1, PIECE_BYTES // dtype.itemsize // world.size)  # elements of an owner in a piece
    parts = defaultdict[int, list[tuple[int, Array]]](list)
    for owner, blob in blobs:
        start = 0
        while start < blob.size:
            number, used = divmod(filled[owner], most)
            part = blob[start : start + most - used]
            parts[number].append((owner, part))
            filled[owner] += part.size
            start += part.size
    return [_Piece(parts[number], world) for number in sorted(parts)]
