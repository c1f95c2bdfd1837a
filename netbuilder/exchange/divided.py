"""Values whose elements are in several processes: how one of them gets all, a piece at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from netbuilder.data.blob_records import CHUNK_SIZE
from netbuilder.distributed.worlds.world import CommonWorld

__all__ = ["Divided", "give_divided", "taken"]

Array = np.ndarray[Any, np.dtype[Any]]


class Divided:
    """An array whose elements are in several processes: the rows of a divided table, or what one process owns.

    Args:
        shape, dtype: of the whole.
        parts: rank and number of elements of each part, in row-major order.
        own: the elements that this process has, flat.
        world: the processes; None: the elements of others are not to be had.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        parts: Sequence[tuple[int, int]],
        own: Array,
        world: CommonWorld | None = None,
    ) -> None:
        self.shape, self.dtype, self.own = tuple(shape), np.dtype(dtype), own.reshape(-1)
        self._parts, self._world = list(parts), world
        assert sum(count for _, count in parts) == self.size

    def __repr__(self) -> str:
        return f"Divided({self.shape}, {self.dtype.name}, {self.own.size} elements here)"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_taker(self) -> bool:
        """Whether this process is the one that gets all pieces."""
        return self._world is None or self._world.rank == 0

    def pieces(self) -> Iterator[Array]:
        """Yield all elements, flat, in the first process; all others call ``give`` at the same time."""
        assert self._world is not None
        for rank, count in self._parts:
            for start, stop in _steps(count):
                if rank == self._world.rank:
                    yield self.own[start:stop]
                    continue
                piece = np.empty(stop - start, self.dtype)
                call = self._world.call("Checkpoint, part", "", nbytes=piece.nbytes)
                self._world.run_between_two(call, lambda comm, out=piece, of=rank: comm.receive(out, of))
                yield piece

    def chunks(self, pieces: Iterator[Array]) -> Iterator[Array]:
        """Yield the elements of pieces as records of a file have them; one empty array if there are none."""
        pending, filled = list[Array](), 0
        for piece in pieces:
            while filled + piece.size >= CHUNK_SIZE:
                head = CHUNK_SIZE - filled
                yield np.concatenate([*pending, piece[:head]])
                pending, filled, piece = [], 0, piece[head:]
            if piece.size:
                pending.append(piece.copy())
                filled += piece.size
        if pending or not self.size:
            yield np.concatenate([np.empty(0, self.dtype), *pending])

    def give(self) -> None:
        """Send the elements of this process to the first one."""
        assert self._world is not None
        for rank, count in self._parts:
            for start, stop in _steps(count) if rank == self._world.rank else ():
                piece = np.ascontiguousarray(self.own[start:stop])
                call = self._world.call("Checkpoint, part", "", nbytes=piece.nbytes)
                self._world.run_between_two(call, lambda comm, given=piece: comm.send(given, 0))


def _steps(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + CHUNK_SIZE, count)) for start in range(0, count, CHUNK_SIZE))


def give_divided(values: Mapping[str, Any]) -> bool:
    """Send what this process has of divided values, if it is not the one that takes them; return whether it did."""
    divided = [value for value in values.values() if isinstance(value, Divided)]
    if not divided or divided[0].is_taker:
        return False
    for value in divided:
        value.give()
    return True


@contextmanager
def taken(values: Mapping[str, Any]) -> Iterator[dict[str, Iterator[Array]]]:
    """Give the pieces of divided values by name, to be read in their order.

    At the end of the block what has not been read is, so that after an error the others do not wait for it.
    """
    pieces = {name: value.pieces() for name, value in values.items() if isinstance(value, Divided)}
    try:
        yield pieces
    finally:
        for each in pieces.values():
            for _ in each:
                pass
