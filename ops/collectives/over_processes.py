"""Allreduce, Reduce, Broadcast, Allgather and ReduceScatter over the processes of a common world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.collectives.in_place import InPlace, Work, in_place_kernels, same_shape_and_type
from netbuilder.ops.collectives.worlds import OverWorld, world_of
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import STRING, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.engines.collectives.communicator import Communicator
from netbuilder.ops.engines.collectives.reductions import sum_rows
from netbuilder.ops.engines.collectives.world import CommonWorld
from netbuilder.ops.engines.nccl import NcclCall, type_of
from netbuilder.proto import ArgumentError, ShapeError

__all__ = ["Allgather", "Allreduce", "Broadcast", "Reduce", "ReduceScatter"]

Array = Any


def _check_root(op: Any, world: CommonWorld) -> None:
    if not 0 <= op.root < world.size:
        raise ArgumentError(
            f"{op.type}: root must lie in [0, {world.size}), the ranks of the common world, got {op.root}"
        )


@in_place_kernels
@register
@operator_class(frozen=True)
class Allreduce(InPlace):
    """Every output is the sum of all inputs of all processes.

    float16 is added in float32 and rounded once. With ``deterministic``, processes are added in the order of their
    ranks, so that the sum is the same to the bit in each run.

    Inputs:
        common_world: object
        X+ (*S): float|int
    Outputs:
        Y+ (*S): as X
    """

    one_layout = True
    deterministic: bool = False
    status_blob: str = ""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_shape_and_type(self, inputs[1:])
        return super().infer(*inputs)

    def flops(self, *inputs: TensorSpec) -> int:
        return sum(x.size for x in inputs[1:])

    def terms(self) -> str:
        return f"deterministic={self.deterministic}"

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        first = blobs[0]

        def work(communicator: Communicator) -> None:
            if len(blobs) > 1:
                sum_rows(blobs, first)
            communicator.allreduce(first, deterministic=self.deterministic)
            for blob in blobs[1:]:
                np.copyto(blob, first)

        return work


@in_place_kernels
@register
@operator_class(frozen=True)
class Reduce(InPlace):
    """On the process with rank ``root``, the sum over the processes; on the others, Y = X.

    With ``deterministic``, processes are added in the order of their ranks.

    Inputs:
        common_world: object
        X (*S): float|int
    Outputs:
        Y (*S): as X
    """

    inputs = ("common_world", "X")
    outputs = ("Y",)
    inplace = ((1, 0),)
    must_inplace = ()
    root: int = 0
    status_blob: str = ""
    deterministic: bool = False

    def check(self) -> None:
        pass

    def flops(self, *inputs: TensorSpec) -> int:
        return inputs[1].size

    def terms(self) -> str:
        return f"root={self.root}, deterministic={self.deterministic}"

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        _check_root(self, world)
        return lambda communicator: communicator.reduce(blobs[0], self.root, deterministic=self.deterministic)


@in_place_kernels
@register
@operator_class(frozen=True)
class Broadcast(InPlace):
    """Every output is the first input of the process with rank ``root``.

    The blobs have the same shape and type on all processes. Strings may be of other lengths.

    Inputs:
        common_world: object
        X+ (*S): any
    Outputs:
        Y+ (*S): as X
    """

    sums = False
    one_layout = True
    root: int = 0
    status_blob: str = ""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_shape_and_type(self, inputs[1:])
        return super().infer(*inputs)

    def terms(self) -> str:
        return f"root={self.root}"

    def gpu_calls(self, world: CommonWorld, blobs: Sequence[Array]) -> list[NcclCall] | None:
        _check_root(self, world)
        kind = type_of("uint8")
        if len(blobs) > 1 or kind is None:
            return None
        return [NcclCall("broadcast", blobs, blobs, kind, blobs[0].nbytes, self.root)]

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        _check_root(self, world)
        first = blobs[0]

        def work(communicator: Communicator) -> None:
            if first.dtype == STRING:
                _broadcast_strings(communicator, first, self.root)
            else:
                communicator.broadcast(first, self.root)
            for blob in blobs[1:]:
                np.copyto(blob, first)

        return work


def _broadcast_strings(communicator: Communicator, strings: Array, root: int) -> None:
    lengths = np.array([len(each) for each in strings], np.int64)
    communicator.broadcast(lengths, root)
    joined = np.empty(int(lengths.sum()), np.uint8)
    if communicator.rank == root:
        joined[:] = np.frombuffer(b"".join(strings), np.uint8)
    communicator.broadcast(joined, root)
    ends = lengths.cumsum().tolist()
    strings[:] = [joined[end - length : end].tobytes() for end, length in zip(ends, lengths.tolist())]


@register
@operator_class(frozen=True)
class Allgather(OverWorld):
    """Y = the inputs of all processes, joined along the first axis: in the order of the ranks, then of the inputs.

    Only the first extent may differ between processes; a scalar counts as a vector of one element.

    Inputs:
        common_world: object
        X+ (...): any
    Outputs:
        Y (...): as X, with the rows of all inputs and processes
    """

    inputs = ("common_world", "X+")
    outputs = ("Y",)
    dynamic = True
    status_blob: str = ""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        super().infer(*inputs)
        first = inputs[1]
        for i, x in enumerate(inputs[1:], start=1):
            require(x.dtype != STRING, self, f"input {i} must be a tensor of numbers or bools, got strings")
            require(
                x.shape[1:] == first.shape[1:] and x.dtype == first.dtype,
                self,
                f"input {i} of shape {x.shape}, type {x.dtype} must have the type of input 1 and its extents except "
                f"the first, {first.shape}, {first.dtype}",
            )
        raise NotImplementedError("Allgather: the first extent depends on the other processes")


@kernel(Allgather)
def allgather(op: Allgather, ctx: RunContext, world: Any, *xs: Any) -> tuple[Any, ...]:
    common = world_of(op, world)
    given = [np.atleast_1d(ctx.host(x)) for x in xs]
    first = given[0]
    for i, x in enumerate(given, start=1):
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype or x.dtype == STRING:
            raise ShapeError(
                f"Allgather: input {i} of shape {x.shape}, type {x.dtype} must have the type of input 1 and its "
                f"extents except the first, {first.shape}, {first.dtype}, and no strings"
            )
    own = np.ascontiguousarray(np.concatenate(given) if len(given) > 1 else first)
    row = int(np.prod(first.shape[1:], dtype=np.int64))
    terms = f"(N, {', '.join(map(str, first.shape[1:]))}) {first.dtype}"
    if common.size == 1:
        return (own.copy(),)

    def work(communicator: Communicator, _: bool) -> Any:
        counts = communicator.allgather(np.array([len(own)], np.int64))
        return communicator.allgather(own, (counts * row).tolist())

    call = common.call("Allgather", ctx.op_def.input[1], terms, nbytes=own.nbytes * common.size)
    return (common.run(call, work).reshape(-1, *first.shape[1:]),)


@in_place_kernels
@register
@operator_class(frozen=True)
class ReduceScatter(InPlace):
    """The first elements of every X become this process's part of the sum of all X over all processes.

    ``counts`` has the number of elements of each rank's part, in the order of the ranks; together they are the size of
    X. The other elements of X keep their values. X and counts are the outputs too.

    Inputs:
        common_world: object
        X+ (...): float|int, and last counts (ranks), int32
    Outputs:
        Y+ (...): float|int, with type and shape of X
    """

    any_layout = False
    status_blob: str = ""

    def check(self) -> None:
        super().check()
        if self.n_in < 3:
            raise ArgumentError(f"ReduceScatter: takes a common world, blobs, and counts last; got {self.n_in} inputs")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        *xs, counts = inputs[1:]
        same_shape_and_type(self, xs)
        require(
            counts.ndim == 1 and counts.dtype == np.int32,
            self,
            f"the last input must be counts, one int32 per rank, got shape {counts.shape} of type {counts.dtype}",
        )
        return super().infer(*inputs)

    def flops(self, *inputs: TensorSpec) -> int:
        return sum(x.size for x in inputs[1:-1])

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        *xs, counts = blobs

        def work(communicator: Communicator) -> None:
            given = communicator.allgather(counts).reshape(communicator.size, -1)
            if (given != counts).any():
                raise ShapeError(f"ReduceScatter: counts must be the same on all ranks, got {given.tolist()}")
            total = np.empty_like(xs[0])
            sum_rows(xs, total)
            part = communicator.reduce_scatter(total, counts.tolist())
            for x in xs:
                x[: part.size] = part

        return work
