"""AllreduceInt8: sums over the processes of blobs that are rounded to 8 bits; what rounding lost is kept for later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.ops.collectives.in_place import WithResiduals, Work, in_place_kernels
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AllreduceInt8"]

Array = Any

_LARGEST = np.float32(127)


@in_place_kernels
@register
@dataclass(frozen=True)
class AllreduceInt8(WithResiduals):
    """Output i is the sum, over the processes, of X_i + R_i rounded to 255 levels.

    After the blobs X come their residuals R, which begin as zero. A process divides X + R by a scale, the largest
    magnitude over 127, and rounds to the nearest integers. It gives these, a byte an element, with the scale of each
    blob; what they lack of X + R is the new R (error feedback). Each process receives those of all others, and adds
    them in float32 in the order of the ranks, so all have the same sums to the bit. If X + R is not finite on a
    process, the output is NaN, and R zero there.

    Source: Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other gradient compression
    schemes", 2019, arXiv:1901.09847, algorithm 2.
    """

    signature = """
        common_world: object
        X+ (...): float32, and then the residuals of all of them
        -> Y+ (...): float32, with the shape of X
    """

    def flops(self, *inputs: TensorSpec) -> int:
        return 2 * sum(x.size for x in inputs[1:])

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        count = self.count
        values, residuals = blobs[:count], blobs[count:]
        ends = np.cumsum([0, *(each.size for each in values)]).tolist()

        def levels_of(message: Array) -> list[Array]:
            levels = message[4 * count :].view(np.int8)
            return [levels[start:end] for start, end in zip(ends, ends[1:])]

        own = np.zeros(4 * count + ends[-1], np.uint8)
        scales, levels = own[: 4 * count].view(np.float32), levels_of(own)

        def work(communicator: Communicator) -> None:
            for i, (value, rest) in enumerate(zip(values, residuals)):
                rest += value
                scales[i] = _round(rest, levels[i])
                value[:] = 0
            for message in communicator.allgather(own).reshape(communicator.size, -1):
                for value, part, scale in zip(values, levels_of(message), message[: 4 * count].copy().view(np.float32)):
                    value += part * scale

        return work


def _round(rest: Array, levels: Array) -> np.float32:
    """Write the levels of a blob, take what they stand for from it, and return their scale."""
    largest = np.max(np.abs(rest), initial=np.float32(0))
    scale = np.float32(largest / _LARGEST)
    levels[:] = 0
    if not np.isfinite(scale):
        rest[:] = 0
        return np.float32(np.nan)
    if scale:
        levels[:] = np.clip(np.rint(rest / scale), -_LARGEST, _LARGEST)
        rest -= levels * scale
    return scale
