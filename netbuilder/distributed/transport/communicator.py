"""Communicator: the interface of an engine that exchanges arrays between the ranks of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.distributed.transport.reductions import split_evenly, sum_rows
from netbuilder.proto import NetError

__all__ = ["MOST_AT_ONCE", "Communicator", "OneRank"]

Array = np.ndarray[Any, np.dtype[Any]]

MOST_AT_ONCE = 1 << 22
"""Elements of an array whose sum is formed at a time in the order of the ranks, which bounds the memory for it."""


def _nothing() -> None:
    pass


class Communicator(ABC):
    """A group of ranks that exchange arrays; all ranks make the same calls in the same order.

    Arrays are NumPy arrays of numbers or bools, contiguous in row-major order; sums need numbers. Calls must come from
    one thread, that of the lane.

    Attributes:
        rank: the number of this process, from 0.
        size: the number of ranks.
        engine: its name.
        check: called every now and then while a call waits; what it raises ends the wait, and the communicator cannot
            be used any more.
        unasked: None where all ranks have begun the call, else seconds that it takes from then on, as far as known:
            other ranks may arrive much later.
        given_bytes: bytes of the values that this rank has given to calls with other ranks so far.
    """

    engine: ClassVar[str]

    def __init__(self, rank: int, size: int, check: Callable[[], object] = _nothing) -> None:
        self.rank, self.size, self.check = rank, size, check
        self.unasked: float | None = None
        self.given_bytes = 0

    # What an engine provides. Arrays are one-dimensional and not empty on all ranks; there are at least two ranks.

    @abstractmethod
    def clone(self) -> Communicator:
        """Return a communicator of the same ranks whose messages are apart from those of this one."""

    @abstractmethod
    def split(self, color: int, key: int) -> Communicator:
        """Return the communicator of the ranks that give the same ``color``, in the order of their ``key``."""

    @abstractmethod
    def close(self) -> None:
        """Free what the engine has for the communicator; all ranks call it."""

    @abstractmethod
    def abort(self, code: int) -> None:
        """End all processes of the run, with an exit code."""

    def failure(self) -> str:
        """Return why the engine exchanges nothing more, although no call has raised an error; "": it does."""
        return ""

    @abstractmethod
    def _allreduce(self, array: Array, maximum: bool, patient: bool) -> None: ...

    @abstractmethod
    def _reduce(self, array: Array, root: int) -> None: ...

    @abstractmethod
    def _broadcast(self, array: Array, root: int) -> None: ...

    @abstractmethod
    def _allgather(self, own: Array, out: Array, counts: Sequence[int]) -> None: ...

    @abstractmethod
    def _alltoall(self, array: Array, counts: Sequence[int], out: Array, received: Sequence[int]) -> None:
        """Send the parts of an array, of ``counts`` elements, to the ranks.

        Either array may be empty. ``out`` gets as many elements as ``received`` says of each rank, in their order.
        """

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _send(self, array: Array, to: int, tag: int) -> None: ...

    @abstractmethod
    def _receive(self, out: Array, source: int | None, tag: int | None) -> tuple[int, int]: ...

    @abstractmethod
    def post(self, data: bytes, to: int) -> None:
        """Send a few kilobytes to another rank, which gets them by ``poll``; does not wait."""

    @abstractmethod
    def poll(self) -> tuple[int, bytes] | None:
        """Return the sender and the bytes of a message that was posted to this rank; None if none has come."""

    # What callers use.

    def allreduce(
        self,
        array: Array,
        *,
        maximum: bool = False,
        bfloat16: bool = False,
        deterministic: bool = False,
        patient: bool = False,
    ) -> None:
        """Replace an array by its sum over the ranks.

        float16 and bfloat16 are summed in float32, in the order of the ranks, and rounded once.

        Args:
            array: of the same size and dtype on all ranks.
            maximum: take the largest element in place of the sum; not of 16-bit floating types.
            bfloat16: the elements are uint16 with the bits of bfloat16.
            deterministic: sum in the order of the ranks, so that the result is the same to the bit in each run.
            patient: other ranks may arrive much later.
        """
        flat = array.reshape(-1)
        assert flat.base is array or flat is array or array.base is not None, "the array must be contiguous"
        if self.size == 1 or not flat.size:
            return
        self.given_bytes += flat.nbytes
        if not maximum and (deterministic or bfloat16 or flat.dtype == np.float16):
            for start in range(0, flat.size, MOST_AT_ONCE):
                self._sum_in_order(flat[start : start + MOST_AT_ONCE], bfloat16)
        else:
            self._allreduce(flat, maximum, patient)

    def _sum_in_order(self, flat: Array, bfloat16: bool) -> None:
        counts = split_evenly(flat.size, self.size)
        part = self._sum_part(flat, counts, bfloat16)
        self._allgather(part, flat, counts)

    def _sum_part(self, flat: Array, counts: Sequence[int], bfloat16: bool) -> Array:
        """Return this rank's part of the sum over the ranks."""
        own = counts[self.rank]
        rows = np.empty((self.size, own), flat.dtype)
        self._alltoall(flat, counts, rows.reshape(-1), [own] * self.size)
        total = np.empty(own, flat.dtype)
        sum_rows(list(rows), total, bfloat16=bfloat16)
        return total

    def reduce(self, array: Array, root: int, *, bfloat16: bool = False, deterministic: bool = False) -> None:
        """Replace the array of rank ``root`` by the sum over the ranks; those of other ranks are unchanged.

        Args: see ``allreduce``.
        """
        flat = array.reshape(-1)
        if self.size == 1 or not flat.size:
            return
        if bfloat16 or deterministic or flat.dtype == np.float16:
            total = flat.copy()
            self.allreduce(total, bfloat16=bfloat16, deterministic=deterministic)
            if self.rank == root:
                flat[:] = total
        else:
            self.given_bytes += flat.nbytes
            self._reduce(flat, root)

    def broadcast(self, array: Array, root: int) -> None:
        """Replace the arrays of all ranks by that of rank ``root``; they have the same size and dtype."""
        if self.size > 1 and array.size:
            self.given_bytes += array.nbytes if self.rank == root else 0
            self._broadcast(array.reshape(-1).view(np.uint8), root)

    def allgather(self, array: Array, counts: Sequence[int] | None = None, out: Array | None = None) -> Array:
        """Return the elements of all ranks' arrays, one-dimensional, in the order of the ranks.

        Args:
            array: of the same dtype on all ranks.
            counts: the number of elements of each rank; None: all have as many as this one.
            out: is overwritten with them, and returned; None: a new array.
        """
        flat = array.reshape(-1)
        counts = [flat.size] * self.size if counts is None else counts
        if counts[self.rank] != flat.size:
            raise NetError(f"allgather: rank {self.rank} gives {flat.size} elements, and counts says {list(counts)}")
        out = np.empty(sum(counts), flat.dtype) if out is None else out
        if self.size == 1:
            out[:] = flat
        elif out.size:
            self.given_bytes += flat.nbytes
            self._allgather(flat, out, counts)
        return out

    def reduce_scatter(self, array: Array, counts: Sequence[int], *, bfloat16: bool = False) -> Array:
        """Return this rank's part of the sum over the ranks, formed in their order.

        Args:
            array: of the same size and dtype on all ranks.
            counts: the number of elements of each rank's part; together they are the size of the array.
            bfloat16: see ``allreduce``.
        """
        flat = array.reshape(-1)
        if len(counts) != self.size or sum(counts) != flat.size or min(counts) < 0:
            raise NetError(
                f"reduce_scatter: counts must be {self.size} numbers of elements, {flat.size} together, got "
                f"{list(counts)}"
            )
        if self.size == 1 or not flat.size:
            return flat.copy()
        self.given_bytes += flat.nbytes
        return self._sum_part(flat, counts, bfloat16)

    def alltoall(self, array: Array, counts: Sequence[int], received: Sequence[int]) -> Array:
        """Return the elements that the ranks give to this one, in the order of the ranks.

        Args:
            array: what this rank gives to the others, in the order of the ranks; of the same dtype on all ranks.
            counts: the number of elements for each rank.
            received: the number of elements that each rank has for this one.
        """
        flat = array.reshape(-1)
        if len(counts) != self.size or sum(counts) != flat.size or counts[self.rank] != received[self.rank]:
            raise NetError(
                f"alltoall: counts must be {self.size} numbers of elements, {flat.size} together, and agree with what "
                f"rank {self.rank} receives of itself, got {list(counts)} and {list(received)}"
            )
        if self.size == 1:
            return flat.copy()
        self.given_bytes += flat.nbytes - counts[self.rank] * flat.itemsize
        out = np.empty(sum(received), flat.dtype)
        self._alltoall(flat, counts, out, received)
        return out

    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        if self.size > 1:
            self._barrier()

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Send an array to another rank, which calls ``receive``."""
        self.given_bytes += array.nbytes
        self._send(array.reshape(-1).view(np.uint8), to, tag)

    def receive(self, out: Array, source: int | None = None, tag: int | None = None) -> tuple[int, int]:
        """Receive an array of the size and dtype of ``out``; return its sender and its tag.

        Args:
            out: is overwritten.
            source: the sender; None: any rank.
            tag: the sender's; None: any.
        """
        return self._receive(out.reshape(-1).view(np.uint8), source, tag)


class OneRank(Communicator):
    """The only rank of a run; needs no library."""

    engine = ""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def clone(self) -> Communicator:
        return OneRank()

    def split(self, color: int, key: int) -> Communicator:
        return OneRank()

    def close(self) -> None:
        pass

    def abort(self, code: int) -> None:
        raise SystemExit(code)

    def post(self, data: bytes, to: int) -> None:
        self._alone()

    def poll(self) -> tuple[int, bytes] | None:
        return None

    def _alone(self, *_: Any) -> Any:
        raise NetError("a run of one rank has no other rank to send to or receive from")

    _allreduce: Any = _alone
    _reduce: Any = _alone
    _broadcast: Any = _alone
    _allgather: Any = _alone
    _alltoall: Any = _alone
    _barrier: Any = _alone
    _send: Any = _alone
    _receive: Any = _alone
