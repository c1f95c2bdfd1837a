"""AverageChunk: the mean over the processes of one part of the parameters after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.ops.collectives.in_place import InPlace, Work, in_place_kernels
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.core.registry import register
from netbuilder.proto import ArgumentError, DistributedError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AverageChunk"]

Array = Any


@in_place_kernels
@register
@dataclass(frozen=True)
class AverageChunk(InPlace):
    """Replace one chunk of the elements of all X, one after the other, by its mean over the processes.

    The chunks have ``chunk`` elements each, the last one what remains; ``counter`` says which is next, and is increased
    by 1: after as many runs as there are chunks, each has been averaged once. Processes are added in the order of their
    ranks, so all of them have the same mean to the bit.
    """

    signature = """
        common_world: object
        X+ (...): float32|int64, first the counter, one int64, then the blobs
        -> Y+ (...): float32|int64, with type and shape of X
    """
    any_layout = False
    chunk: int = 0

    def check(self) -> None:
        super().check()
        if self.n_out < 2:
            raise ArgumentError("AverageChunk takes a common world, a counter and at least one blob; got no blob")
        if self.chunk < 1:
            raise ArgumentError(f"AverageChunk: chunk must be a positive number of elements, got {self.chunk}")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        counter = inputs[1]
        require(
            counter.size == 1 and counter.dtype == np.int64,
            self,
            f"input 1 must be the counter, one int64, got shape {counter.shape} of type {counter.dtype}",
        )
        for i, x in enumerate(inputs[2:], start=2):
            require(x.dtype == np.float32, self, f"averages float32, got input {i} of type {x.dtype}")
        return super().infer(*inputs)

    def flops(self, *inputs: TensorSpec) -> int:
        return 2 * min(self.chunk, sum(x.size for x in inputs[2:]))

    def terms(self) -> str:
        return f"chunk={self.chunk}"

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        counter, *values = blobs
        total = sum(each.size for each in values)
        chunks = max(1, -(-total // self.chunk))

        def work(communicator: Communicator) -> None:
            number = int(counter[0]) % chunks
            _require_same(communicator, number, names[0])
            parts = list(_parts(values, number * self.chunk, min(total, (number + 1) * self.chunk)))
            if communicator.size > 1 and parts:
                mean = np.concatenate(parts)
                communicator.allreduce(mean, deterministic=True)
                mean /= np.float32(communicator.size)
                for part, result in zip(parts, np.split(mean, np.cumsum([part.size for part in parts])[:-1])):
                    part[:] = result
            counter[0] += 1

        return work


def _parts(values: Sequence[Array], start: int, stop: int) -> Iterator[Array]:
    """Yield the parts of arrays that hold the elements from ``start`` to ``stop`` of all of them together."""
    for value in values:
        if start < value.size and stop > 0 and value.size:
            yield value[max(start, 0) : stop]
        start, stop = start - value.size, stop - value.size


def _require_same(communicator: Communicator, number: int, name: str) -> None:
    """Raise DistributedError on all ranks unless all of them are to average the same chunk."""
    given = communicator.allgather(np.array([number], np.int64)).tolist()
    if len(set(given)) > 1:
        raise DistributedError(
            f"AverageChunk: the ranks would average the chunks {given}, but it must be the same on all of them; set "
            f"the counter {name!r} to the same value, for example by FinalizeAfterCheckpoint"
        )
