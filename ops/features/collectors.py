"""Rows collected over many runs: ReservoirSampling, LastNWindowCollector; and DataCouple, which makes readers wait."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.data.key_map import KeyMap
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["DataCouple", "LastNWindowCollector", "ReservoirSampling"]

Arrays = tuple[Any, ...]
_Specs = Sequence[TensorSpec | None]


@dataclass(frozen=True)
class _Collector(Operator, abc.ABC):
    """Base: the collected rows are stored on the host, whatever the device."""

    dynamic = True
    stateful = True
    outputs_on_host = True
    may_be_empty = (0,)
    inputs_on_host = True
    flops_per_element = 0
    num_to_collect: int = -1
    overwritten: ClassVar[tuple[int, ...]] = ()  # in-place input of each output
    mutex: ClassVar[int] = 3

    def check(self) -> None:
        if self.num_to_collect < 1:
            raise ArgumentError(f"{self.type}: num_to_collect must be at least 1, got {self.num_to_collect}")

    def run(self, ctx: RunContext, inputs: Arrays) -> Arrays:
        """Return the outputs; with a mutex, lock it and use the values that the blobs have then."""
        mutex = inputs[self.mutex] if len(inputs) > self.mutex else None
        require(
            mutex is None or hasattr(mutex, "__enter__"),
            self,
            f"input {self.mutex} must be what CreateMutex makes",
        )
        with nullcontext() if mutex is None else mutex:
            given = list(inputs)
            if mutex is not None and ctx.workspace is not None:  # another thread may have stored new values
                for index in self.overwritten[: self.n_out]:
                    name = ctx.op_def.input[index]
                    if not ctx.workspace.get(name).is_empty:
                        given[index] = ctx.workspace.fetch(name)
            self.check_rows(given[0], given[2])
            made = self.collect(ctx, given)
            if mutex is not None and ctx.workspace is not None:
                for name, value in zip(ctx.op_def.output, made):
                    blob = ctx.workspace.make(name)
                    blob.store(value, blob.location)
                return tuple(ctx.workspace.get(name).buffer for name in ctx.op_def.output)
        return made

    @abc.abstractmethod
    def collect(self, ctx: RunContext, given: list[Any]) -> Arrays:
        """Return the outputs."""

    def count(self, name: str, value: Any, kind: Any) -> int:
        """Return the only number in a blob."""
        require(
            value.size == 1 and value.dtype == kind,
            self,
            f"{name} must hold one {np.dtype(kind)}, got shape {value.shape} of {value.dtype}",
        )
        return int(value.reshape(-1)[0])

    def check_rows(self, rows: Any, data: Any) -> None:
        """Raise ShapeError unless DATA has rows like those collected, if there are any."""
        require(data.ndim >= 1, self, "DATA must have rows, got a scalar")
        require(
            not rows.size or (rows.dtype == data.dtype and rows.shape[1:] == data.shape[1:]),
            self,
            f"DATA must have rows like those collected, of shape {rows.shape[1:]} and {rows.dtype}, got "
            f"{data.shape[1:]} and {data.dtype}",
        )


def _resized(op: Operator, rows: Any, data: Any, size: int) -> Any:
    """Return a copy of the collected rows with space for ``size`` rows."""
    check_extents(f"{op.type}: the collected rows", (size, *data.shape[1:]), data.dtype)
    made = np.zeros((size, *data.shape[1:]), data.dtype)
    if rows.size:
        made[: min(len(rows), size)] = rows[:size]
    return made


@register
@dataclass(frozen=True)
class ReservoirSampling(_Collector):
    """Keep a uniform random sample of ``num_to_collect`` of the rows of DATA in all runs so far.

    NUM_VISITED counts the rows. With OBJECT_ID, a row whose id is in the reservoir is skipped and not counted;
    OBJECT_TO_POS_MAP then maps ids to positions in the reservoir, and POS_TO_OBJECT has the id at each position.

    Source: Vitter, "Random Sampling with a Reservoir", 1985.
    """

    signature = """
        RESERVOIR (M, *S): any, no value before the first run
        NUM_VISITED (1) or (): int64
        DATA (N, *S): any
        MUTEX: object
        OBJECT_ID? (N): int64
        OBJECT_TO_POS_MAP?: object
        POS_TO_OBJECT? (K): int64
        -> RESERVOIR (num_to_collect, *S): as DATA
        -> NUM_VISITED (1) or (): int64
        -> OBJECT_TO_POS_MAP?: object
        -> POS_TO_OBJECT? (K): int64
    """
    must_inplace = ((0, 0), (1, 1), (5, 2), (6, 3))
    draws = True
    overwritten = (0, 1, 5, 6)

    def check(self) -> None:
        super().check()
        if (self.n_in, self.n_out) not in ((4, 2), (7, 4)):
            raise NetError(
                "ReservoirSampling takes 4 inputs and has 2 outputs, or with ids 7 and 4, "
                f"got {self.n_in} and {self.n_out}"
            )

    def collect(self, ctx: RunContext, given: list[Any]) -> Arrays:
        rows, data = given[0], given[2]
        visited = self.count("NUM_VISITED", given[1], np.int64)
        require(visited >= 0, self, f"NUM_VISITED must not be negative, got {visited}")
        uniform = ctx.host(ctx.uniform(data.shape[:1]))
        if len(given) == 4:
            order = visited + np.arange(len(data))
            positions = np.where(order < self.num_to_collect, order, np.floor(uniform * (order + 1)).astype(np.int64))
            which = np.flatnonzero(positions < self.num_to_collect)
            positions, visited, more = positions[which], visited + len(data), ()
        else:
            which, positions, visited, more = self._objects(given, visited, uniform)
        made = _resized(self, rows, data, min(visited, self.num_to_collect))
        _, last = np.unique(positions[::-1], return_index=True)  # the later of two rows for one position is kept
        chosen = len(positions) - 1 - last
        made[positions[chosen]] = data[which[chosen]]
        return (made, np.full(given[1].shape, visited, np.int64), *more)

    def _objects(self, given: list[Any], visited: int, uniform: Any) -> tuple[Any, Any, int, Arrays]:
        """Return the rows to store, their positions, the number of visited rows, and both maps of ids."""
        ids, entries = given[4], shared_object(self, given[5], KeyMap, "CreateMap")
        require(
            ids.shape == given[2].shape[:1] and ids.dtype == np.int64,
            self,
            f"OBJECT_ID must hold an int64 for each of {len(given[2])} rows, got shape {ids.shape} of {ids.dtype}",
        )
        where = given[6].tolist()
        which, positions = [], []
        for row, name in enumerate(ids.tolist()):
            if name in entries:
                continue
            position = visited if visited < self.num_to_collect else int(uniform[row] * (visited + 1))
            visited += 1
            if position >= self.num_to_collect:
                continue
            if position < len(where):
                entries.pop(where[position], None)
                where[position] = name
            else:
                where.append(name)
            entries[name] = position
            which.append(row)
            positions.append(position)
        return np.array(which, int), np.array(positions, int), visited, (entries, np.array(where, np.int64))


@kernel(ReservoirSampling)
def reservoir_sampling(op: ReservoirSampling, ctx: RunContext, *inputs: Any) -> Arrays:
    return op.run(ctx, inputs)


@register
@dataclass(frozen=True)
class LastNWindowCollector(_Collector):
    """Keep the last ``num_to_collect`` rows of DATA of all runs so far; a new row replaces the oldest one.

    NEXT is the position of the next new row; NUM_VISITED counts the rows.
    """

    signature = """
        LAST_N (M, *S): any, no value before the first run
        NEXT (1) or (): int32
        DATA (N, *S): any
        MUTEX?: object
        NUM_VISITED? (1) or (): int64
        -> LAST_N (num_to_collect, *S): as DATA
        -> NEXT (1) or (): int32
        -> NUM_VISITED? (1) or (): int64
    """
    must_inplace = ((0, 0), (1, 1), (4, 2))
    overwritten = (0, 1, 4)

    def check(self) -> None:
        super().check()
        if (self.n_out == 3) != (self.n_in == 5):
            raise NetError(
                "LastNWindowCollector: NUM_VISITED is both the last input and the last output, "
                f"got {self.n_in} inputs and {self.n_out} outputs"
            )

    def infer_partial(self, inputs: _Specs, outputs: _Specs) -> tuple[_Specs, _Specs]:
        """Infer the maximum number of rows, as Caffe2 does; there are fewer until that many were collected."""
        if inputs[2] is None or not inputs[2].shape:
            return inputs, outputs
        rows = inputs[2].with_shape((self.num_to_collect, *inputs[2].shape[1:]))
        return inputs, (rows, *(inputs[index] for index in self.overwritten[1 : self.n_out]))

    def collect(self, ctx: RunContext, given: list[Any]) -> Arrays:
        size, data = self.num_to_collect, given[2]
        begin = self.count("NEXT", given[1], np.int32)
        require(0 <= begin < size, self, f"NEXT must lie in [0, {size}), got {begin}")
        count = len(data)
        new = data[-size:]
        begin = begin if count <= size else 0
        positions = (begin + np.arange(len(new))) % size
        collected = min(len(given[0]), size)
        made = _resized(self, given[0], data, max(collected, min(begin + len(new), size)))
        made[positions] = new
        end = np.full(given[1].shape, (begin + len(new)) % size, np.int32)
        if self.n_out == 2:
            return made, end
        visited = self.count("NUM_VISITED", given[4], np.int64) + count
        return made, end, np.full(given[4].shape, visited, np.int64)


@kernel(LastNWindowCollector)
def last_n_window_collector(op: LastNWindowCollector, ctx: RunContext, *inputs: Any) -> Arrays:
    return op.run(ctx, inputs)


@register
@dataclass(frozen=True)
class DataCouple(Operator):
    """Leave all blobs unchanged, but count as a writer of each: a reader of one runs after the writers of all."""

    signature = """
        X* (...): any
        -> Y* (...): any, the inputs
    """
    must_inplace = tuple((i, i) for i in range(100))
    dynamic = True
    stateful = True
    flops_per_element = 0

    def check(self) -> None:
        if self.n_out > min(self.n_in, 100):
            raise NetError(f"DataCouple: output i is input i, up to 100; got {self.n_in} inputs, {self.n_out} outputs")

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any"


@kernel(DataCouple)
def data_couple(op: DataCouple, ctx: RunContext, *values: Any) -> Arrays:
    return values[: op.n_out]
