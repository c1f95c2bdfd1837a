"""BroadcastBucket: many blobs of one process copied to the others by few calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.nccl_communicator import GpuRanks
from netbuilder.distributed.worlds.promises import Sums, Votes
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
        return _Exchange(self, self.quantities(blobs), world)

    def votes(self, work: Work) -> Votes | None:
        assert isinstance(work, _Exchange)
        return work if work.may_vote else None


class _Exchange:
    """The exchange of blobs, over memory that stays the same; see ``Votes``.

    Small blobs of float32 are added in place of sent where there is no header: the others give -0.0, which changes no
    number, and each rank can refuse. Their bytes go to and fro once more, and a header takes longer.

    Args:
        op: the operator.
        groups: the blobs of each quantity, one for each device.
        world: the common world.
    """

    stops = True

    def __init__(self, op: BroadcastBucket, groups: Sequence[Sequence[Array]], world: CommonWorld) -> None:
        self._op, self._groups = op, groups
        firsts = [group[0] for group in groups] if world.size > 1 else []
        self._texts = [blob for blob in firsts if blob.dtype == STRING]
        values = [blob.view(np.uint8) for blob in firsts if blob.dtype != STRING and blob.size]
        self._large = [blob for blob in values if blob.size >= IN_PLACE_BYTES]
        self._bucket = _Bucket([blob for blob in values if blob.size < IN_PLACE_BYTES])
        self.may_vote = bool(values) and not self._large and all(blob.dtype == np.float32 for blob in firsts)
        size = self._bucket.size // 4 if self.may_vote else 0
        self._sum = np.empty(size, np.float32)
        self.promised = Sums(world.communicator, (("float32", size),))
        self.doubtful = False

    def __call__(self, communicator: Communicator) -> None:
        if communicator.unasked is not None and self.may_vote:
            self.doubtful = not self._bucket.broadcast_by_sum(communicator, self._op.root, self._sum)
            if self.doubtful:
                return
        else:
            self._bucket.broadcast(communicator, self._op.root)
        for blob in self._large:
            communicator.broadcast(blob, self._op.root)
        for text in self._texts:
            broadcast_strings(communicator, text, self._op.root)
        for group in self._groups if self._op.devices > 1 else ():
            for blob in group[1:]:
                np.copyto(blob, group[0])

    def restore(self, keep: bool) -> None:
        raise AssertionError("nothing was replaced")


class _Bucket:
    """Arrays of bytes that one call sends; a single one is sent from where it is."""

    def __init__(self, blobs: Sequence[Array]) -> None:
        self._memory = blobs[0] if len(blobs) == 1 else lasting_zeros(sum(blob.size for blob in blobs))
        self._pairs = []
        start = 0
        for blob in blobs if len(blobs) > 1 else ():
            self._pairs.append((blob, self._memory[start : start + blob.size]))
            start += blob.size

    @property
    def size(self) -> int:
        return int(self._memory.size)

    def broadcast(self, communicator: Communicator, root: int) -> None:
        is_root = communicator.rank == root
        if is_root:
            self._load()
        communicator.broadcast(self._memory, root)
        if not is_root:
            self._store()

    def broadcast_by_sum(self, communicator: Communicator, root: int, total: Array) -> bool:
        """Send the root's values, float32, by a sum in ``total``; return whether no rank can have refused."""
        is_root = communicator.rank == root
        if is_root:
            self._load()
            np.copyto(total, self._memory.view(np.float32))
        else:
            total.fill(-0.0)
        communicator.allreduce(total)
        if np.isnan(total[0]):
            return False
        if not is_root:
            np.copyto(self._memory.view(np.float32), total)
            self._store()
        return True

    def _load(self) -> None:
        for blob, staged in self._pairs:
            np.copyto(staged, blob)

    def _store(self) -> None:
        for blob, staged in self._pairs:
            np.copyto(blob, staged)
