"""AllreduceBucket: many gradients summed over the processes by few calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.ops.collectives.in_place import InPlace, Work, in_place_kernels
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import register
from netbuilder.ops.engines.arrays import aligned_empty
from netbuilder.ops.engines.collectives.communicator import Communicator
from netbuilder.ops.engines.collectives.reductions import FLOAT_TYPES, narrow, widen
from netbuilder.ops.engines.collectives.world import CommonWorld
from netbuilder.proto import ArgumentError

__all__ = ["IN_PLACE_BYTES", "AllreduceBucket"]

Array = Any

IN_PLACE_BYTES = 1 << 20
"""Bytes of a blob from which it is exchanged where it is: another call costs less than two copies of it."""


@in_place_kernels
@register
@operator_class(frozen=True)
class AllreduceBucket(InPlace):
    """Output i is the sum of input i over the processes.

    Small blobs are copied into one buffer and exchanged together; those of 1 MiB or more are exchanged where they are.
    With another ``precision`` than float32, float32 blobs are rounded to it on the way, added in float32, and the sums
    are rounded once. With ``deterministic``, processes are added in the order of their ranks, so that the sum is the
    same to the bit in each run.

    Inputs:
        common_world: object
        X+ (*S): float|int
    Outputs:
        Y+ (*S): as X
    """

    precision: str = "float32"
    deterministic: bool = False

    def check(self) -> None:
        super().check()
        if self.precision not in FLOAT_TYPES:
            raise ArgumentError(
                f"AllreduceBucket: precision must be one of {', '.join(FLOAT_TYPES)}, got {self.precision!r}"
            )

    def flops(self, *inputs: TensorSpec) -> int:
        return sum(x.size for x in inputs[1:])

    def terms(self) -> str:
        return f"precision={self.precision}, deterministic={self.deterministic}"

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array]) -> Work:
        parts = _parts(blobs, FLOAT_TYPES[self.precision]) if world.size > 1 else []

        def work(communicator: Communicator) -> None:
            for part in parts:
                part.load()
                communicator.allreduce(part.buffer, bfloat16=part.bfloat16, deterministic=self.deterministic)
                part.store()

        return work


@dataclass(frozen=True)
class _Part:
    """What one call exchanges.

    Args:
        buffer: the memory.
        blobs: the blobs that are copied into it, each with its part of the buffer; () if it is a blob itself.
    """

    buffer: Array
    blobs: Sequence[tuple[Array, Array]] = ()
    bfloat16: bool = False

    def load(self) -> None:
        for blob, staged in self.blobs:
            if blob.dtype == staged.dtype:
                np.copyto(staged, blob)
            else:
                narrow(blob, staged)

    def store(self) -> None:
        for blob, staged in self.blobs:
            if blob.dtype == staged.dtype:
                np.copyto(blob, staged)
            else:
                widen(staged, blob)


def _parts(blobs: Sequence[Array], wire: np.dtype[Any]) -> list[_Part]:
    """Return the calls for blobs; float32 ones are exchanged as ``wire``."""
    large, small = [], defaultdict(list)
    for blob in blobs:
        rounded = blob.dtype == np.float32 and wire != np.float32
        if rounded or 0 < blob.nbytes < IN_PLACE_BYTES:
            small[blob.dtype].append(blob)
        elif blob.size:
            large.append(_Part(blob))
    return [*(_staged(group, wire if dtype == np.float32 else dtype) for dtype, group in small.items()), *large]


def _staged(blobs: Sequence[Array], dtype: np.dtype[Any]) -> _Part:
    if len(blobs) == 1 and blobs[0].dtype == dtype:
        return _Part(blobs[0])
    buffer = aligned_empty(sum(blob.size for blob in blobs) * dtype.itemsize).view(dtype)
    pairs, start = [], 0
    for blob in blobs:
        pairs.append((blob, buffer[start : start + blob.size]))
        start += blob.size
    return _Part(buffer, pairs, bfloat16=dtype == np.uint16 and blobs[0].dtype == np.float32)
