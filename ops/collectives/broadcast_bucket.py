"""BroadcastBucket: many blobs of one process copied to the others by few calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.nccl_communicator import GpuRanks
from netbuilder.distributed.worlds.session import Collective
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.engines.nccl import NcclCall, type_of
from netbuilder.ops.collectives.allreduce_bucket import IN_PLACE_BYTES
from netbuilder.ops.collectives.in_place import GpuExchange, InPlace, Work, in_place_kernels
from netbuilder.ops.collectives.over_processes import broadcast_strings, check_root
from netbuilder.ops.core.operator import STRING
from netbuilder.ops.core.registry import register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BroadcastBucket"]

Array = Any


@in_place_kernels
@register
@dataclass(frozen=True)
class BroadcastBucket(InPlace):
    """Output i is input i of the process with rank ``root``.

    Blobs of less than 128 KiB, of any types, are copied into one buffer and sent together, larger ones from where they
    are. Each blob has the same shape and type on all processes. Strings may be of other lengths. With ``devices``,
    consecutive blobs are one quantity, one on each device of this process, and all get the first one of the root.
    """

    signature = """
        common_world: object
        X+ (...): any
        -> Y+ (...): any, with type and shape of X
    """
    sums: ClassVar[bool] = False
    root: int = 0
    devices: int = 1

    def copies(self) -> int:
        return self.devices

    def terms(self) -> str:
        return f"root={self.root}"

    def gpu_exchange(self, common: CommonWorld, call: Collective, blobs: Sequence[Array]) -> GpuExchange | None:
        check_root(self, common)
        return super().gpu_exchange(common, call, blobs)

    def gpu_calls(self, ranks: GpuRanks, rank: int, blobs: Sequence[Array]) -> list[NcclCall] | None:
        kind, root = type_of("uint8") or "", ranks.first[self.root]
        return [
            NcclCall("broadcast", group, group, kind, group[0].nbytes, root)
            for group in self.quantities(blobs)
            if group[0].size
        ]

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        check_root(self, world)
        groups = self.quantities(blobs)
        firsts = [group[0] for group in groups] if world.size > 1 else []
        texts = [blob for blob in firsts if blob.dtype == STRING]
        values = [blob.view(np.uint8) for blob in firsts if blob.dtype != STRING and blob.size]
        large = [blob for blob in values if blob.size >= IN_PLACE_BYTES]
        bucket = _Bucket([blob for blob in values if blob.size < IN_PLACE_BYTES])

        def work(communicator: Communicator) -> None:
            bucket.broadcast(communicator, self.root)
            for blob in large:
                communicator.broadcast(blob, self.root)
            for text in texts:
                broadcast_strings(communicator, text, self.root)
            for group in groups if self.devices > 1 else ():
                for blob in group[1:]:
                    np.copyto(blob, group[0])

        return work


class _Bucket:
    """Arrays of bytes that one call sends; a single one is sent from where it is."""

    def __init__(self, blobs: Sequence[Array]) -> None:
        self._memory = blobs[0] if len(blobs) == 1 else lasting_zeros(sum(blob.size for blob in blobs))
        self._pairs = []
        start = 0
        for blob in blobs if len(blobs) > 1 else ():
            self._pairs.append((blob, self._memory[start : start + blob.size]))
            start += blob.size

    def broadcast(self, communicator: Communicator, root: int) -> None:
        is_root = communicator.rank == root
        for blob, staged in self._pairs if is_root else ():
            np.copyto(staged, blob)
        communicator.broadcast(self._memory, root)
        for blob, staged in self._pairs if not is_root else ():
            np.copyto(blob, staged)
