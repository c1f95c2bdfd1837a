"""AllreduceLowRank: sums over the processes of which matrices of low rank are exchanged; the rest is kept for later."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.worlds.promises import Sums, Votes
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.ops.collectives.in_place import InPlace, Work, in_place_kernels
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.core.registry import register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AllreduceLowRank", "has_low_rank", "low_rank_state"]

Array = Any


def has_low_rank(shape: Sequence[int], rank: int) -> bool:
    """Return whether two matrices of ``rank`` take less than a gradient: the first extent is that of its rows.

    >>> [has_low_rank(shape, 2) for shape in ((64, 32, 3, 3), (4, 4), (64,))]
    [True, False, False]
    """
    rows, columns = _extents(shape)
    return rank * (rows + columns) < rows * columns


def low_rank_state(shape: Sequence[int], rank: int, *, residual: bool) -> tuple[int, ...]:
    """Return the shape of what a process keeps of a gradient: the residual, and then ``rank`` rows of its last factor.

    >>> low_rank_state((64, 32, 3, 3), 2, residual=True), low_rank_state((64,), 2, residual=True)
    ((66, 32, 3, 3), (0,))
    """
    return (shape[0] * residual + rank, *shape[1:]) if has_low_rank(shape, rank) else (0,)


def _extents(shape: Sequence[int]) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


@in_place_kernels
@register
@dataclass(frozen=True)
class AllreduceLowRank(InPlace):
    """Output i is an approximation, of rank ``rank`` or less, of the sum of X_i over the processes.

    X_i is a matrix M with the rows of its first extent. After each X there is its state, of the shape that
    ``low_rank_state`` returns, which begins as zero: the residual, which is added to X before and keeps what the
    output lacks, divided by the number of processes, unless ``residual`` is False; and the factor Q of the last run. P
    is the sum of M Q over the processes, with orthonormal columns; then Q is the sum of M' P, and the output P Q'. So
    two calls exchange ``rank`` columns and rows of each. The first Q is random, and with ``warm_start=False`` each.
    Blobs of which this would be as much or more are summed whole; their state is empty. If a sum is not finite, the
    output is NaN, and the state begins anew.

    Source: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
    optimization", 2019, arXiv:1905.13727, algorithms 1 and 2.
    """

    signature = """
        common_world: object
        X+ (...): float32, and then the states of all of them
        -> Y+ (...): float32, with the shape of X
    """
    any_layout = False
    rank: int = 4
    warm_start: bool = True
    residual: bool = True

    def check(self) -> None:
        super().check()
        if self.rank < 1:
            raise ArgumentError(f"AllreduceLowRank: rank must be at least 1, got {self.rank}")
        if self.n_out % 2:
            raise ArgumentError(f"AllreduceLowRank takes as many states as blobs, after them; got {self.n_out} blobs")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        half = self.n_out // 2
        for i, x in enumerate(inputs[1:], start=1):
            require(x.dtype == np.float32, self, f"exchanges float32, got input {i} of type {x.dtype}")
        for i, (x, state) in enumerate(zip(inputs[1:], inputs[1 + half :]), start=1 + half):
            shape = low_rank_state(x.shape, self.rank, residual=self.residual)
            require(state.shape == shape, self, f"input {i}, a state, must have shape {shape}, got {state.shape}")
        return super().infer(*inputs)

    def flops(self, *inputs: TensorSpec) -> int:
        half = self.n_out // 2
        return sum(6 * self.rank * x.size if state.size else x.size for x, state in zip(inputs[1:], inputs[1 + half :]))

    def terms(self) -> str:
        return f"rank={self.rank}, warm_start={self.warm_start}, residual={self.residual}"

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        return _Exchange(self, list(zip(names, blobs, blobs[len(blobs) // 2 :])), world.communicator)

    def votes(self, work: Work) -> Votes | None:
        assert isinstance(work, _Exchange)
        return work if work.promised.kinds[0][1] else None


class _Exchange:
    """The exchange of blobs, over memory that stays the same; see ``Votes``.

    Args:
        op: the operator.
        given: name, blob and state of each.
        communicator: of the common world.
    """

    stops = False

    def __init__(
        self, op: AllreduceLowRank, given: Sequence[tuple[str, Array, Array]], communicator: Communicator
    ) -> None:
        self._whole = [blob for _, blob, state in given if not state.size]
        self._matrices = [_Matrix(op, *each) for each in given if each[-1].size]
        self._first = _Staged([*(blob.shape for blob in self._whole), *(each.p_shape for each in self._matrices)])
        self._second = _Staged([each.q_shape for each in self._matrices])
        self._before: list[tuple[Array, Array]] = []
        kinds = tuple((each.memory.dtype.str, each.memory.size) for each in (self._first, self._second))
        self.promised = Sums(communicator, kinds)

    @np.errstate(invalid="ignore", over="ignore")
    def __call__(self, communicator: Communicator) -> None:
        first, second, matrices = self._first, self._second, self._matrices
        whole_parts, p_parts = first.parts[: len(self._whole)], first.parts[len(self._whole) :]
        for blob, part in zip(self._whole, whole_parts):
            np.copyto(part, blob)
        for each, p in zip(matrices, p_parts):
            each.project(p)
        communicator.allreduce(first.memory)
        if self.doubtful:
            self._before = [(blob, blob.copy()) for blob in self._whole]
            self._before += [pair for each in matrices for pair in each.before()]
        for blob, part in zip(self._whole, whole_parts):
            np.copyto(blob, part)
        for each, p, q in zip(matrices, p_parts, second.parts):
            np.matmul(_orthonormal(p).T, each.values, out=q)
        communicator.allreduce(second.memory)
        for each, p, q in zip(matrices, p_parts, second.parts):
            each.replace(p, q, communicator.size)

    @property
    def doubtful(self) -> bool:
        return bool(np.isnan(self._first.memory[:1]).any())

    def restore(self, keep: bool) -> None:
        for blob, value in self._before:  # each rank gives its own once more, whoever keeps a sum
            np.copyto(blob, value)


class _Staged:
    """Memory of one call, and its parts of some shapes."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
        self.memory = np.zeros(ends[-1], np.float32)
        self.parts = [self.memory[a:b].reshape(shape) for a, b, shape in zip(ends, ends[1:], shapes)]


class _Matrix:
    """A blob that is exchanged by its factors P, of shape (rows, rank), and Q, stored as (rank, columns).

    Args:
        op: the operator.
        name: of the blob, by which the first factor is drawn: all processes have the same.
        blob, state: one-dimensional.
    """

    def __init__(self, op: AllreduceLowRank, name: str, blob: Array, state: Array) -> None:
        columns = (state.size - op.residual * blob.size) // op.rank
        self._op, self._seed = op, zlib.crc32(name.encode())
        self._blob, self._state = blob.reshape(-1, columns), state.reshape(-1, columns)
        rows = len(self._blob)
        self._residual, self._factor = self._state[: rows * op.residual], self._state[rows * op.residual :]
        self._count = self._factor[0, 0]
        self.p_shape, self.q_shape = (rows, op.rank), (op.rank, columns)

    @property
    def values(self) -> Array:
        """What this process gives: the blob, with the residual where there is one."""
        return self._residual if self._op.residual else self._blob

    def project(self, p: Array) -> None:
        """Write M Q, after the residual, if there is one, has become M."""
        self._count = self._factor[0, 0]
        if self._op.residual:
            self._residual += self._blob
        np.matmul(self.values, self._last_factor().T, out=p)

    def before(self) -> list[tuple[Array, Array]]:
        """Return blob and state with their values before ``project``; the residual's may be off by rounding."""
        state = self._state.copy()
        residual, factor = state[: len(self._residual)], state[len(self._residual) :]
        residual -= self._blob[: len(residual)]
        factor[0, 0] = self._count
        return [(self._blob, self._blob.copy()), (self._state, state)]

    def _last_factor(self) -> Array:
        count = 0 if self._op.warm_start else int(self._factor[0, 0])
        if self._op.warm_start and self._factor.any():
            return self._factor
        self._factor[0, 0] = count + 1
        return np.random.default_rng([self._seed, count]).standard_normal(self.q_shape, np.float32)

    def replace(self, p: Array, q: Array, ranks: int) -> None:
        """Make the blob P Q', and the residual what it lacks."""
        if not np.isfinite(q).all():
            self._blob[:], self._state[:] = np.nan, 0
            return
        np.matmul(p, q, out=self._blob)
        if self._op.residual:
            self._residual -= self._blob / np.float32(ranks)
        if self._op.warm_start:
            np.copyto(self._factor, q)


def _orthonormal(p: Array) -> Array:
    """Return ``p`` after its columns were made orthonormal; NaN if they are not finite."""
    p[:] = np.linalg.qr(p)[0] if np.isfinite(p).all() else np.nan
    return p
