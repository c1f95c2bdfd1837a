"""Values whose elements are in several processes: how one of them gets all, a piece at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from netbuilder.data.stored_blobs import CHUNK_SIZE, blob_records, chunk_record
from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import DeviceOption, NetError
from netbuilder.runtime import Workspace

__all__ = ["Divided", "give_divided", "records_of", "refuse_divided", "rows_divided", "taken", "value_in"]

Array = np.ndarray[Any, np.dtype[Any]]


class Divided:
    """An array whose elements are in several processes: the rows of a divided table, or what one process owns.

    Args:
        shape, dtype: of the whole.
        parts: rank and number of elements of each part, in row-major order.
        own: the elements that this process has, or a function that returns them when they are needed.
        world: the processes; None: the elements of others are not to be had.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        parts: Sequence[tuple[int, int]],
        own: Array | Callable[[], Array],
        world: CommonWorld | None = None,
    ) -> None:
        self.shape, self.dtype, self._own = tuple(shape), np.dtype(dtype), own
        self._parts, self._world = list(parts), world
        assert sum(count for _, count in parts) == self.size

    def __repr__(self) -> str:
        return f"Divided({self.shape}, {self.dtype.name}, in {len(self._parts)} parts)"

    @property
    def own(self) -> Array:
        """The elements that this process has, flat."""
        return (self._own() if callable(self._own) else self._own).reshape(-1)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def records(self) -> int:
        """The number of records that it has in a file."""
        return max(-(-self.size // CHUNK_SIZE), 1)

    @property
    def is_taker(self) -> bool:
        """Whether this process is the one that gets all pieces."""
        return self._world is None or self._world.rank == 0

    def pieces(self) -> Iterator[Array]:
        """Yield all elements, flat, in the first process; all others call ``give`` at the same time."""
        assert self._world is not None
        for rank, count in self._parts:
            own = self.own if rank == self._world.rank else None
            for start, stop in _steps(count):
                if own is not None:
                    yield own[start:stop]
                    continue
                piece = np.empty(stop - start, self.dtype)
                self._between_two(piece, partial(_receive, piece, rank))
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
            if rank == self._world.rank:
                own = self.own
                for start, stop in _steps(count):
                    piece = np.ascontiguousarray(own[start:stop])
                    self._between_two(piece, partial(_send, piece))

    def _between_two(self, piece: Array, work: Callable[[Communicator], object]) -> None:
        assert self._world is not None
        self._world.run_between_two(self._world.call("Checkpoint, part", "", nbytes=piece.nbytes), work)

    def whole(self, pieces: Iterator[Array]) -> Array:
        """Return the array that its pieces are."""
        result, start = np.empty(self.size, self.dtype), 0
        for piece in pieces:
            result[start : start + piece.size] = piece
            start += piece.size
        return result.reshape(self.shape)


def _receive(out: Array, source: int, communicator: Communicator) -> None:
    communicator.receive(out, source)


def _send(given: Array, communicator: Communicator) -> None:
    communicator.send(given, 0)


def records_of(
    name: str,
    value: Any,
    pieces: Mapping[str, Iterator[Array]],
    *,
    device: DeviceOption | None = None,
    note: Callable[[Array], object] | None = None,
) -> Iterator[tuple[str, bytes]]:
    """Yield the records of a blob, as ``blob_records`` does, also of a divided one, of which one is in memory.

    Args:
        name, value, device: as for ``blob_records``.
        pieces: see ``taken``.
        note: called with the elements of each record of a divided value.
    """
    if name not in pieces:
        yield from blob_records(name, value, device=device)
        return
    begin = 0
    for chunk in value.chunks(pieces[name]):
        if note is not None:
            note(chunk)
        yield chunk_record(name, chunk, value.shape, begin, device=device)
        begin += chunk.size


def _steps(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + CHUNK_SIZE, count)) for start in range(0, count, CHUNK_SIZE))


def rows_divided(rows: int, shard: TensorSpec, world: CommonWorld, fetch: Callable[[], Array]) -> Divided:
    """Return the table of so many rows of which each process has a shard.

    Args:
        rows: of the table.
        shard: shape and type of a shard.
        world: the processes.
        fetch: returns the shard of this process.
    """
    each, width = shard.shape[0], math.prod(shard.shape[1:])
    counts = [min(each, max(0, rows - number * each)) for number in range(world.size)]
    parts = [(number, count * width) for number, count in enumerate(counts)]
    return Divided((rows, *shard.shape[1:]), shard.dtype, parts, lambda: fetch()[: counts[world.rank]], world)


def value_in(workspace: Workspace, blob: str) -> Array:
    """Return the value of a blob, not a copy if it is an array of the host."""
    plain = workspace.get(blob).plain()
    return plain if isinstance(plain, np.ndarray) else np.asarray(workspace.fetch(blob))


def give_divided(values: Mapping[str, Any]) -> bool:
    """Send what this process has of divided values, if it is not the one that takes them; return whether it did."""
    divided = [value for value in values.values() if isinstance(value, Divided)]
    if not divided or divided[0].is_taker:
        return False
    for value in divided:
        value.give()
    return True


def refuse_divided(values: Mapping[str, Any]) -> None:
    """Raise NetError if a value is divided, where only whole ones can be exported."""
    if found := [name for name, value in values.items() if isinstance(value, Divided)]:
        raise NetError(
            f"tables {found} are divided over processes, each of which has some of their rows; export them by "
            "save_predictor or save_to_db, which all processes call, load that in one process, and export it from there"
        )


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
