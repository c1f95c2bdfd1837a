"""Allreduce, Reduce, Broadcast, Allgather and ReduceScatter over the processes of a common world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.nccl_communicator import GpuRanks, NcclCommunicator
from netbuilder.distributed.transport.reductions import sum_rows
from netbuilder.distributed.worlds.session import Collective
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.engines.gpu import copy_into, gpu, gpu_of, to_host
from netbuilder.engines.nccl import BoundGroup, NcclCall, type_of
from netbuilder.ops.collectives.in_place import GpuExchange, InPlace, Work, in_place_kernels, same_shape_and_type
from netbuilder.ops.collectives.worlds import OverWorld, world_of
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import STRING, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, NetError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Allgather", "Allreduce", "Broadcast", "Reduce", "ReduceScatter"]

Array = Any


def check_root(op: Any, world: CommonWorld) -> None:
    if not 0 <= op.root < world.size:
        raise ArgumentError(
            f"{op.type}: root must lie in [0, {world.size}), the ranks of the common world, got {op.root}"
        )


@in_place_kernels
@register
@dataclass(frozen=True)
class Allreduce(InPlace):
    """Every output is the sum of all inputs of all processes.

    float16 is added in float32 and rounded once. With ``deterministic``, processes are added in the order of their
    ranks, so that the sum is the same to the bit in each run.
    """

    signature = "common_world: object, X+ (*S): float|int -> Y+ (*S): as X"
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

    def gpu_calls(self, ranks: GpuRanks, rank: int, blobs: Sequence[Array]) -> list[NcclCall] | None:
        kind = type_of(blobs[0].dtype, sums=True)
        return None if kind is None else [NcclCall("allReduce", blobs[:1], blobs[:1], kind, blobs[0].size)]

    def gpu_exchange(self, common: CommonWorld, call: Collective, blobs: Sequence[Array]) -> GpuExchange | None:
        made = super().gpu_exchange(common, call, blobs)
        return None if made is None else _of_first(made, blobs, add=True)

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        first = blobs[0]

        def work(communicator: Communicator) -> None:
            if len(blobs) > 1:
                sum_rows(blobs, first)
            communicator.allreduce(first, deterministic=self.deterministic)
            for blob in blobs[1:]:
                np.copyto(blob, first)

        return work


def _of_first(exchange: GpuExchange, blobs: Sequence[Array], *, add: bool) -> GpuExchange:
    """Return an exchange of the first of some arrays of a GPU, or of their sum, whose result all of them get."""
    first, here = blobs[0], gpu(blobs[0].device.id)
    if len(blobs) == 1:
        return exchange

    def mark() -> None:
        with here:
            for blob in blobs[1:] if add else ():
                first[...] += blob
        exchange.mark()

    def wait() -> None:
        exchange.wait()
        for blob in blobs[1:]:
            copy_into(blob, first)

    return GpuExchange(mark, exchange.start, wait)


@in_place_kernels
@register
@dataclass(frozen=True)
class Reduce(InPlace):
    """On the process with rank ``root``, the sum over the processes; on the others, Y = X.

    With ``deterministic``, processes are added in the order of their ranks.
    """

    signature = "common_world: object, X (*S): float|int -> Y (*S): as X"
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

    def gpu_exchange(self, common: CommonWorld, call: Collective, blobs: Sequence[Array]) -> GpuExchange | None:
        check_root(self, common)
        return super().gpu_exchange(common, call, blobs)

    def gpu_calls(self, ranks: GpuRanks, rank: int, blobs: Sequence[Array]) -> list[NcclCall] | None:
        kind, (x,) = type_of(blobs[0].dtype, sums=True), blobs
        received = x if rank == self.root else None
        return None if kind is None else [NcclCall("reduce", [x], [received], kind, x.size, ranks.first[self.root])]

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        check_root(self, world)
        return lambda communicator: communicator.reduce(blobs[0], self.root, deterministic=self.deterministic)


@in_place_kernels
@register
@dataclass(frozen=True)
class Broadcast(InPlace):
    """Every output is the first input of the process with rank ``root``.

    The blobs have the same shape and type on all processes. Strings may be of other lengths.
    """

    signature = "common_world: object, X+ (*S): any -> Y+ (*S): as X"
    sums = False
    one_layout = True
    root: int = 0
    status_blob: str = ""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_shape_and_type(self, inputs[1:])
        return super().infer(*inputs)

    def terms(self) -> str:
        return f"root={self.root}"

    def gpu_exchange(self, common: CommonWorld, call: Collective, blobs: Sequence[Array]) -> GpuExchange | None:
        check_root(self, common)
        made = super().gpu_exchange(common, call, blobs)
        return None if made is None else _of_first(made, blobs, add=False)

    def gpu_calls(self, ranks: GpuRanks, rank: int, blobs: Sequence[Array]) -> list[NcclCall] | None:
        kind, first = type_of("uint8"), blobs[:1]
        return [NcclCall("broadcast", first, first, kind or "", first[0].nbytes, ranks.first[self.root])]

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        check_root(self, world)
        first = blobs[0]

        def work(communicator: Communicator) -> None:
            if first.dtype == STRING:
                broadcast_strings(communicator, first, self.root)
            else:
                communicator.broadcast(first, self.root)
            for blob in blobs[1:]:
                np.copyto(blob, first)

        return work


def broadcast_strings(communicator: Communicator, strings: Array, root: int) -> None:
    lengths = np.array([len(each) for each in strings], np.int64)
    communicator.broadcast(lengths, root)
    joined = np.empty(int(lengths.sum()), np.uint8)
    if communicator.rank == root:
        joined[:] = np.frombuffer(b"".join(strings), np.uint8)
    communicator.broadcast(joined, root)
    ends = lengths.cumsum().tolist()
    strings[:] = [joined[end - length : end].tobytes() for end, length in zip(ends, lengths.tolist())]


@register
@dataclass(frozen=True)
class Allgather(OverWorld):
    """Y = the inputs of all processes, joined along the first axis: in the order of the ranks, then of the inputs.

    Only the first extent may differ between processes; a scalar counts as a vector of one element.
    """

    signature = """
        common_world: object
        X+ (...): any
        -> Y (...): as X, with the rows of all inputs and processes
    """
    inputs_on_host = (0,)
    outputs_on_host: ClassVar[bool] = False
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
    given = [x.reshape(1) if x.ndim == 0 else x for x in xs]
    first = given[0]
    for i, x in enumerate(given, start=1):
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype or x.dtype == STRING:
            raise ShapeError(
                f"Allgather: input {i} of shape {x.shape}, type {x.dtype} must have the type of input 1 and its "
                f"extents except the first, {first.shape}, {first.dtype}, and no strings"
            )
    own = ctx.xp.ascontiguousarray(ctx.xp.concatenate(given) if len(given) > 1 else first)
    if common.size == 1:
        return (own.copy(),)
    terms = f"(N, {', '.join(map(str, first.shape[1:]))}) {first.dtype}"
    call = common.call("Allgather", ctx.op_def.input[1], terms, nbytes=own.nbytes * common.size)
    ranks = common.communicator.over([gpu_of(own)]) if isinstance(common.communicator, NcclCommunicator) else None
    if ranks is not None:
        return (_gathered_on_gpu(ctx, common, call, ranks, own),)
    there, row = ctx.host(own), int(np.prod(first.shape[1:], dtype=np.int64))

    def work(communicator: Communicator, _: bool) -> Any:
        counts = communicator.allgather(np.array([len(there)], np.int64))
        return communicator.allgather(there, (counts * row).tolist())

    return (ctx.xp.asarray(common.run(call, work).reshape(-1, *first.shape[1:])),)


def _gathered_on_gpu(ctx: RunContext, common: CommonWorld, call: Collective, ranks: GpuRanks, own: Array) -> Array:
    """Return the rows of all processes, each of which NCCL copies from its GPU to all others."""
    number = common.call("Allgather", call.blob, f"{call.terms}, number of rows")
    counts = common.run(number, lambda communicator, _: communicator.allgather(np.array([len(own)], np.int64)))
    whole = ctx.xp.empty((int(counts.sum()), *own.shape[1:]), own.dtype)
    ends = counts.cumsum().tolist()
    parts = [whole[end - count : end] for end, count in zip(ends, counts.tolist())]
    kind = type_of("uint8") or ""
    calls = [
        NcclCall("broadcast", [own if rank == common.rank else part], [part], kind, part.nbytes, ranks.first[rank])
        for rank, part in enumerate(parts)
    ]
    bound = ranks.group.bind(calls)
    bound.mark()
    common.run(call, lambda *_: bound.start())
    bound.wait()
    return whole


@in_place_kernels
@register
@dataclass(frozen=True)
class ReduceScatter(InPlace):
    """The first elements of every X become this process's part of the sum of all X over all processes.

    ``counts`` has the number of elements of each rank's part, in the order of the ranks; together they are the size of
    X. The other elements of X keep their values. X and counts are the outputs too. With ``deterministic``, processes
    are added in the order of their ranks, also on GPUs that NCCL connects.
    """

    signature = """
        common_world: object
        X+ (...): float|int, and last counts (ranks), int32
        -> Y+ (...): float|int, with type and shape of X
    """
    any_layout = False
    status_blob: str = ""
    deterministic: bool = False

    def check(self) -> None:
        super().check()
        if self.n_in < 3:
            raise ArgumentError(f"ReduceScatter takes a common world, blobs, and counts last; got {self.n_in} inputs")

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

    def terms(self) -> str:
        return f"deterministic={self.deterministic}"

    def gpu_exchange(self, common: CommonWorld, call: Collective, blobs: Sequence[Array]) -> GpuExchange | None:
        *xs, counts = blobs
        communicator, kind = common.communicator, type_of(xs[0].dtype, sums=True)
        if not isinstance(communicator, NcclCommunicator) or self.in_order:
            return None
        ranks = communicator.over([gpu_of(xs[0])])
        return None if ranks is None or kind is None else _Scattered(common, ranks, kind, xs, counts).exchange

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        *xs, counts = blobs

        def work(communicator: Communicator) -> None:
            _require_equal(communicator, counts)
            total = np.empty_like(xs[0])
            sum_rows(xs, total)
            part = communicator.reduce_scatter(total, counts.tolist())
            for x in xs:
                x[: part.size] = part

        return work


def _require_equal(communicator: Communicator, counts: Array) -> None:
    given = communicator.allgather(counts).reshape(communicator.size, -1)
    if (given != counts).any():
        raise ShapeError(f"ReduceScatter: counts must be the same on all ranks, got {given.tolist()}")


class _Scattered:
    """ReduceScatter over arrays of a GPU, by NCCL.

    Args:
        common: the common world.
        ranks: the GPUs.
        kind: NCCL's name of the element type.
        xs: the arrays, of one GPU.
        counts: the numbers of elements of the ranks' parts, which the host reads in each run.
    """

    def __init__(self, common: CommonWorld, ranks: GpuRanks, kind: str, xs: Sequence[Array], counts: Array) -> None:
        self._common, self._ranks, self._kind, self._xs, self._counts = common, ranks, kind, xs, counts
        self._here = gpu(xs[0].device.id)
        with self._here as here:  # NCCL's result may not overlap what it reads
            self._total, self._part = (here.xp.empty(xs[0].size, xs[0].dtype) for _ in range(2))
        self._read: list[int] = []
        self._bound: BoundGroup | None = None

    @property
    def exchange(self) -> GpuExchange:
        return GpuExchange(self._mark, self._start, self._wait)

    def _mark(self) -> None:
        self._read = to_host(self._counts).tolist()
        with self._here:
            self._total[...] = self._xs[0]
            for x in self._xs[1:]:
                self._total += x
        valid = len(self._read) == self._common.size and sum(self._read) == self._total.size and min(self._read) >= 0
        self._bound = self._ranks.group.bind(self._calls()) if valid else None
        if self._bound is not None:
            self._bound.mark()

    def _calls(self) -> list[NcclCall]:
        counts, total, own = self._read, self._total, self._part[: self._read[self._common.rank]]
        if len({*counts}) == 1 and len(self._ranks.first) == self._common.size:
            return [NcclCall("reduceScatter", [total], [own], self._kind, counts[0])]
        ends = np.cumsum(counts).tolist()
        return [
            NcclCall(
                "reduce", [total[end - count : end]], [own if rank == self._common.rank else None], self._kind, count,
                self._ranks.first[rank],
            )
            for rank, (end, count) in enumerate(zip(ends, counts))
        ]  # fmt: skip

    def _start(self) -> None:
        _require_equal(self._common.communicator, np.array(self._read, np.int32))
        if self._bound is None:
            raise NetError(
                f"ReduceScatter: counts must be {self._common.size} numbers of elements, {self._total.size} together, "
                f"got {self._read}"
            )
        self._bound.start()

    def _wait(self) -> None:
        assert self._bound is not None
        self._bound.wait()
        count = self._read[self._common.rank]
        with self._here:
            for x in self._xs:
                x[:count] = self._part[:count]
