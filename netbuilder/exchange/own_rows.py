"""Some rows of a blob of a checkpoint file, of which a process reads no more records than have them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.data.stored_blobs import BlobParts
from netbuilder.exchange.divided import Divided
from netbuilder.proto import BlobProto, ParseError

__all__ = ["OwnRows", "hash_of", "record_digest"]

Array = np.ndarray[Any, np.dtype[Any]]


def hash_of(dtype: Any, shape: Sequence[int]) -> Any:
    """Return a checksum to which the elements of an array are to be added."""
    return hashlib.sha256(f"{'strings' if dtype.kind == 'O' else dtype.name} {tuple(shape)} ".encode())


def record_digest(shape: Sequence[int], number: int, values: Array) -> str:
    """Return the checksum of a record.

    Args:
        shape: of the whole blob.
        number: of the record.
        values: its elements.
    """
    found = hash_of(values.dtype, (*shape, number))
    found.update(np.ascontiguousarray(values).view(np.uint8).data)
    return str(found.hexdigest())


class OwnRows:
    """Assembles some rows of a blob from its records, which come in their order.

    Args:
        choose: see ``read_checkpoint``.

    Attributes:
        shape: of the whole; None: no record has come.
        digests: the checksum of each record; (): the file has only that of the whole, so all records are needed.
    """

    def __init__(self, choose: Callable[[tuple[int, ...]], slice]) -> None:
        self._choose, self._hash, self._next = choose, hashlib.sha256(), 0
        self._kept: list[Array] = []
        self._bounds = (0, 0)  # elements that are kept
        self._each = 1  # elements of a record
        self._dtype: Any = None
        self.shape: tuple[int, ...] | None = None
        self.digests: Sequence[str] = ()

    def passes_over(self, number: int) -> bool:
        """Whether a record is not needed; the first one is, as it has the shape."""
        if not self.digests or self.shape is None:
            return False
        first, last = self._bounds
        return (number + 1) * self._each <= first or number * self._each >= last

    def add(self, blob: BlobProto, where: str, number: int) -> None:
        """Add a record.

        Raises:
            ParseError: it is damaged, or does not continue the one before.
        """
        part = BlobParts()
        part.add(blob.name, blob, where)
        shape, begin, values = part.only_chunk(blob.name)
        if self.shape is None:
            self.shape, self._dtype, self._hash = shape, values.dtype, hash_of(values.dtype, shape)
            chosen, width = self._choose(shape), math.prod(shape[1:])
            self._bounds, self._each = (chosen.start * width, chosen.stop * width), max(values.size, 1)
        self._next = self._after(self._next)
        if (shape, values.dtype, number, begin) != (self.shape, self._dtype, self._next, self._next * self._each):
            raise ParseError(f"{where} does not continue the record of {blob.name!r} before it")
        if self.digests and record_digest(shape, number, values) not in self.digests[number : number + 1]:
            raise ParseError(f"{where}: blob {blob.name!r} is damaged: its checksum is wrong")
        self._hash.update(np.ascontiguousarray(values).view(np.uint8).data)
        first, last = (min(max(bound - begin, 0), values.size) for bound in self._bounds)
        self._kept.append(values[first:last].copy())
        self._next += 1

    def _after(self, number: int) -> int:
        """Return the next record from this one on that is needed, or the number of records."""
        while number and number < self._count and self.passes_over(number):
            number += 1
        return number

    @property
    def _count(self) -> int:
        assert self.shape is not None
        return max(-(-math.prod(self.shape) // self._each), 1)

    def problem(self, name: str) -> str:
        """Return what is missing; "" if nothing is."""
        if self.shape is None or (number := self._after(self._next)) >= self._count:
            return ""
        return f"elements {number * self._each} to {math.prod(self.shape)} of blob {name!r} are missing"

    @property
    def digest(self) -> str:
        """The checksum of the whole, if all records have come."""
        return str(self._hash.hexdigest())

    def value(self) -> Divided:
        """Return the rows that are kept."""
        assert self.shape is not None
        own = np.concatenate([np.empty(0, self._dtype), *self._kept])
        return Divided(self.shape, self._dtype, [(0, math.prod(self.shape))], own)
