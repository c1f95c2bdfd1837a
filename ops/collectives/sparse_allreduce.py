"""AllreduceTopK and AllreduceThreshold: sums of large elements over the processes; the others are kept for later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.worlds.promises import Gather, Votes
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.ops.collectives.in_place import WithResiduals, Work, in_place_kernels
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import register
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["MOST", "AllreduceThreshold", "AllreduceTopK", "top_k_count"]

Array = Any

MOST = 1 << 32
"""Elements of one operator, whose positions are exchanged as uint32."""

_REFUSAL = MOST - 1  # no position


def top_k_count(size: int, fraction: float) -> int:
    """Return how many of ``size`` elements a fraction is: rounded up, at least one of those there are.

    >>> [top_k_count(size, 0.1) for size in (0, 1, 10, 11)]
    [0, 1, 1, 2]
    """
    exact = float(f"{fraction:.6g}")  # arguments of operators are float32
    return min(size, max(1, math.ceil(round(size * exact, 3))))


@dataclass(frozen=True)
class _SparseAllreduce(WithResiduals):
    """Base: each process gives some elements of each X, and output i is their sum over the processes.

    Attributes:
        counts_differ: whether processes may give different numbers of elements.
    """

    counts_differ: ClassVar[bool] = False
    remedy = ", or residual=False"
    residual: bool = True

    @property
    def has_residuals(self) -> bool:
        return self.residual

    def flops(self, *inputs: TensorSpec) -> int:
        return sum(x.size for x in inputs[1:])

    def chosen(self, values: Array) -> Array:
        """Return the ascending positions of the elements that are exchanged, of a one-dimensional array."""
        raise NotImplementedError

    def count_of(self, size: int) -> int:
        """Return how many elements of a blob are exchanged, unless ``counts_differ``."""
        raise NotImplementedError

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        values, residuals = blobs[: self.count], blobs[self.count :] or [None] * self.count
        if (size := sum(value.size for value in values)) >= MOST:
            raise NetError(f"{self.type}: exchanges fewer than {MOST} elements at a time, got {size}")
        return _Exchange(self, values, residuals, world.communicator)

    def votes(self, work: Work) -> Votes | None:
        assert isinstance(work, _Exchange)
        return work if work.promised.size else None


class _Exchange:
    """The exchange of blobs, over memory that stays the same; see ``Votes``.

    Args:
        op: the operator.
        values, residuals: one-dimensional; None: there is no residual.
        communicator: of the common world.
    """

    stops = True

    def __init__(
        self,
        op: _SparseAllreduce,
        values: Sequence[Array],
        residuals: Sequence[Array | None],
        communicator: Communicator,
    ) -> None:
        self._op, self._values, self._residuals = op, values, residuals
        self._ends = np.cumsum([0, *(each.size for each in values)])
        self.doubtful = False
        if op.counts_differ:
            self.promised = Gather(communicator, "int64", 1, -1)
        else:
            size = 2 * sum(op.count_of(each.size) for each in values)
            self.promised = Gather(communicator, "uint32", size, _REFUSAL)

    def __call__(self, communicator: Communicator) -> None:
        given = [_take(self._op, *pair) for pair in zip(self._values, self._residuals)]
        places = np.concatenate([each + start for (each, _), start in zip(given, self._ends)])
        message = np.concatenate([places.astype(np.uint32), np.concatenate([v for _, v in given]).view(np.uint32)])
        parts = self._of_ranks(communicator, message)
        self.doubtful = parts is None
        if parts is None:
            self._give_back(given)
            return
        for part in parts:
            where, what = part[: len(part) // 2], part[len(part) // 2 :].view(np.float32)
            cuts = np.searchsorted(where, self._ends)
            for value, start, first, last in zip(self._values, self._ends, cuts, cuts[1:]):
                value[where[first:last] - np.uint32(start)] += what[first:last]

    def _of_ranks(self, communicator: Communicator, message: Array) -> list[Array] | None:
        """Return the messages of all ranks; None: one has refused."""
        if not self._op.counts_differ:
            rows = communicator.allgather(message).reshape(communicator.size, -1)
            return None if communicator.unasked is not None and (rows[:, 0] == _REFUSAL).any() else list(rows)
        counts = communicator.allgather(np.array([message.size], np.int64))
        if (counts < 0).any():
            return None
        return np.split(communicator.allgather(message, counts.tolist()), np.cumsum(counts)[:-1])

    def _give_back(self, given: Sequence[tuple[Array, Array]]) -> None:
        """Put the elements back, so that the same ones are taken once more."""
        for (where, what), value, residual in zip(given, self._values, self._residuals):
            (value if residual is None else residual)[where] = what

    def restore(self, keep: bool) -> None:
        raise AssertionError("nothing was replaced")


def _take(op: _SparseAllreduce, value: Array, residual: Array | None) -> tuple[Array, Array]:
    """Return positions and values of the elements that are exchanged; the others are added to the residual.

    ``value`` becomes zero.
    """
    source = value
    if residual is not None:
        np.add(residual, value, out=residual)
        source = residual
    where = op.chosen(source)
    what = source[where]
    source[where] = 0
    value[:] = 0
    return where, what


@in_place_kernels
@register
@dataclass(frozen=True)
class AllreduceTopK(_SparseAllreduce):
    """Output i is the sum, over the processes, of the elements of X_i with the largest magnitudes, and zero elsewhere.

    Each process gives ``fraction`` of the elements of each blob, rounded up. With ``residual``, there is a residual for
    each blob: it is added to the blob before the elements are chosen, and keeps those that are not given. Processes are
    added in the order of their ranks, so all of them have the same sums to the bit. NaN count as the largest.
    """

    signature = """
        common_world: object
        X+ (...): float32, and then the residuals of all of them, if residual
        -> Y+ (...): float32, with the shape of X
    """
    fraction: float = 0.01

    def check(self) -> None:
        super().check()
        if not 0 < self.fraction <= 1:
            raise ArgumentError(f"AllreduceTopK: fraction must lie in (0, 1], got {self.fraction!r}")

    def terms(self) -> str:
        return f"fraction={self.fraction:g}, residual={self.residual}"

    def count_of(self, size: int) -> int:
        return top_k_count(size, self.fraction)

    def chosen(self, values: Array) -> Array:
        count = self.count_of(values.size)
        if count == values.size:
            return np.arange(count)
        return np.sort(np.argpartition(np.abs(values), values.size - count)[values.size - count :])


@in_place_kernels
@register
@dataclass(frozen=True)
class AllreduceThreshold(_SparseAllreduce):
    """Output i is the sum, over the processes, of the elements of X_i with magnitudes of ``bound`` or more.

    The other elements are zero, or kept in residuals, as in AllreduceTopK. NaN are exchanged.
    """

    signature = """
        common_world: object
        X+ (...): float32, and then the residuals of all of them, if residual
        -> Y+ (...): float32, with the shape of X
    """
    counts_differ = True
    bound: float = 0.0

    def check(self) -> None:
        super().check()
        if not 0 <= self.bound < math.inf:
            raise ArgumentError(f"AllreduceThreshold: bound must be finite and not negative, got {self.bound!r}")

    def terms(self) -> str:
        return f"bound={self.bound:g}, residual={self.residual}"

    def chosen(self, values: Array) -> Array:
        return np.flatnonzero(~(np.abs(values) < np.float32(self.bound)))
