"""Kernels of collectives that work on blobs in place: one for plans, which begins and waits, and one outside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.nccl_communicator import GpuRanks, NcclCommunicator
from netbuilder.distributed.worlds.promises import Votes
from netbuilder.distributed.worlds.session import Collective
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.engines.arrays import as_flat
from netbuilder.engines.buffer_rows import new_row, part_of_row
from netbuilder.engines.gpu import copy_into, gpu, gpu_of, here, to_host
from netbuilder.engines.layouts import convert
from netbuilder.engines.nccl import NcclCall
from netbuilder.ops.collectives.worlds import OverWorld, world_of
from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.extensions import SplitKernel, Together
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import CPU, GPU, kernel, prepare
from netbuilder.proto import PROTO_CUDA, ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "MAX_BLOBS",
    "GpuExchange",
    "InPlace",
    "WithResiduals",
    "Work",
    "begin_on_host",
    "in_place_kernels",
    "prepare_on_gpu",
    "same_shape_and_type",
]

Array = Any
T = TypeVar("T")
Work = Callable[[Communicator], None]

MAX_BLOBS = 1000
"""The most blobs that one operator exchanges."""


@dataclass(frozen=True)
class GpuExchange:
    """An exchange of arrays of GPUs.

    Args:
        mark: called before ``start``, by the thread that computes: what the GPUs have to compute then comes before.
        start: begins it, in the lane of collectives.
        wait: makes what the GPUs compute later wait for it.
    """

    mark: Callable[[], object]
    start: Callable[[], object]
    wait: Callable[[], object]


@dataclass(frozen=True)
class InPlace(OverWorld):
    """Base: blobs X after the common world, which are the outputs too.

    Attributes:
        sums: whether it adds, so that the blobs must hold numbers.
        one_layout: whether the blobs are added to one another, so that they must be stored in the same way.
        any_layout: whether the order of the elements does not matter.
    """

    signature = "common_world, X+ -> Y+"
    must_inplace: ClassVar[tuple[tuple[int, int], ...]] = tuple((i + 1, i) for i in range(MAX_BLOBS))
    sums: ClassVar[bool] = True
    one_layout: ClassVar[bool] = False
    any_layout: ClassVar[bool] = True
    outputs_on_host: ClassVar[bool] = False

    def copies(self) -> int:
        """Return how many consecutive blobs are one quantity, on as many devices of this process."""
        return 1

    def with_arity(self, n_in: int, n_out: int) -> Any:
        if self.copies() > 1:
            object.__setattr__(self, "colocate_outputs_with", "one-to-one")
        return super().with_arity(n_in, n_out)

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 0 else "here" if self.copies() == 1 else "any"

    def check(self) -> None:
        if self.n_out != self.n_in - 1 or self.n_in > MAX_BLOBS + 1:
            raise ArgumentError(
                f"{self.type} takes a common world and 1 to {MAX_BLOBS} blobs, which are its outputs too; got "
                f"{self.n_in} inputs and {self.n_out} outputs"
            )
        if self.copies() < 1 or self.n_out % self.copies():
            raise ArgumentError(
                f"{self.type}: the number of blobs must be a multiple of devices={self.copies()}, got {self.n_out}"
            )

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        super().infer(*inputs)
        for group in self.quantities(inputs[1:]) if self.copies() > 1 else ():
            same_shape_and_type(self, group)
        for i, x in enumerate(inputs[1:], start=1):
            if self.sums:
                require(x.dtype.kind in "iuf", self, f"adds numbers, got input {i} of type {_type_name(x)}")
        return tuple(x.plain for x in inputs[1:])

    def over_ranks(self, world: CommonWorld, blobs: Sequence[Array], names: Sequence[str]) -> Work:
        """Return what the operator does, over memory that stays the same.

        Args:
            world: the common world.
            blobs: one-dimensional arrays, to be overwritten.
            names: those of the blobs, for messages.
        """
        raise NotImplementedError

    def votes(self, work: Work) -> Votes | None:
        """Return how the ranks make what ``over_ranks`` has returned without a header; None: they do not."""
        return None

    def together(self, specs: Sequence[TensorSpec]) -> list[list[int]]:
        """Return the indices of blobs that one call would exchange if they were next to each other in memory."""
        return []

    def in_rows(self, blobs: Sequence[Array]) -> list[list[int]]:
        """Return the indices of those of them that are, in the order in which they are stored."""
        return []

    def quantities(self, blobs: Sequence[T]) -> list[Sequence[T]]:
        """Return the blobs of each quantity, one for each device."""
        return [blobs[i : i + self.copies()] for i in range(0, len(blobs), self.copies())]

    def gpu_calls(self, ranks: GpuRanks, rank: int, blobs: Sequence[Array]) -> list[NcclCall] | None:
        """Return what the operator does over arrays of GPUs, as calls of NCCL; None: it goes through the host.

        Args:
            ranks: the GPUs.
            rank: the number of this process.
            blobs: one-dimensional arrays, to be overwritten, of each quantity one on each GPU.
        """
        return None

    def gpu_exchange(self, common: CommonWorld, call: Collective, blobs: Sequence[Array]) -> GpuExchange | None:
        """Return how NCCL exchanges arrays where they are; None: it does not connect the ranks, or cannot."""
        communicator = common.communicator
        if not isinstance(communicator, NcclCommunicator) or self.in_order:
            return None
        places = {tuple(map(gpu_of, group)) for group in self.quantities(blobs)}
        ranks = communicator.over(places.pop()) if len(places) == 1 else None
        calls = None if ranks is None else self.gpu_calls(ranks, common.rank, blobs)
        if ranks is None or calls is None:
            return None
        bound = ranks.group.bind(calls)
        return GpuExchange(bound.mark, bound.start, bound.wait)

    @property
    def in_order(self) -> bool:
        """Whether the processes are added in the order of their ranks, which NCCL does not promise."""
        return bool(getattr(self, "deterministic", False))

    def terms(self) -> str:
        """Return the arguments that all ranks must agree on, for the description of the collective."""
        return ""


@dataclass(frozen=True)
class WithResiduals(InPlace):
    """Base: float32 blobs X, and after them as many residuals, which begin as zero and keep what is not exchanged.

    Attributes:
        remedy: what else the error about their number advises.
    """

    any_layout = False
    remedy: ClassVar[str] = ""

    @property
    def has_residuals(self) -> bool:
        return True

    @property
    def count(self) -> int:
        """The number of blobs X."""
        return self.n_out // 2 if self.has_residuals else self.n_out

    def check(self) -> None:
        super().check()
        if self.has_residuals and self.n_out % 2:
            raise ArgumentError(
                f"{self.type} takes as many residuals as blobs, after them{self.remedy}; got {self.n_out} blobs"
            )

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        for i, x in enumerate(inputs[1:], start=1):
            require(x.dtype == np.float32, self, f"exchanges float32, got input {i} of type {x.dtype}")
            shape = inputs[1 + (i - 1) % self.count].shape
            require(x.shape == shape, self, f"residual {i} must have the shape of its blob, {shape}, got {x.shape}")
        return super().infer(*inputs)


def same_shape_and_type(op: OverWorld, xs: Sequence[TensorSpec]) -> None:
    """Raise ShapeError unless all blobs have the same shape and dtype."""
    for i, x in enumerate(xs, start=1):
        require(
            x.shape == xs[0].shape and x.dtype == xs[0].dtype,
            op,
            f"input {i} of shape {x.shape}, type {_type_name(x)} must have shape and type of input 1, {xs[0].shape}, "
            f"{_type_name(xs[0])}",
        )


def _type_name(spec: TensorSpec) -> str:
    return "string" if spec.dtype == STRING else str(spec.dtype)


def described(op: InPlace, names: Sequence[str], specs: Sequence[TensorSpec]) -> str:
    """Return the blobs with shapes and types, one of each quantity, and the arguments, to describe a collective."""
    step = op.copies()
    first, *others = (f"{spec.shape} {_type_name(spec)}" for spec in specs[::step])
    more = [f"{name!r} {text}" for name, text in zip(names[step::step], others)]
    return ", ".join(each for each in (first, *more, op.terms()) if each)


def _stored(op: InPlace, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return how blobs are exchanged: as they are stored, unless that rounds or padding is stored in another way."""
    firsts = [specs[0] if op.one_layout else specs[i - i % op.copies()] for i in range(len(specs))]
    plain = [not op.any_layout or wanted.layout is None or wanted.rounds for wanted in firsts]
    return [x.plain if p else x.with_layout(wanted.layout) for x, wanted, p in zip(specs, firsts, plain)]


def _prepare(op: InPlace, ctx: PlanContext, world: TensorSpec, *xs: TensorSpec) -> Prepared:
    specs = _stored(op, xs)
    names = list(ctx.op_def.output)
    terms, layouts = described(op, names, xs), _layouts(specs)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], Any]:
        common = world_of(op, ins[0])
        nbytes = sum(out.nbytes for out in outs)
        flat = [as_flat(out, spec.dtype) for out, spec in zip(outs, specs)]
        stored = f"{layouts}{op.in_rows(flat) or ''}"
        direct = op.over_ranks(common, flat, names)
        votes = op.votes(direct) if common.size > 1 else None
        call = common.call(op.type, names[0], terms, stored, nbytes=nbytes, located=ctx.run.located, votes=votes)
        in_plain_order = cache(lambda: _PlainCopies(op, ctx, common, specs, outs))
        copies = [(out, given) for out, given in zip(outs, ins[1:]) if out is not given]

        def work(communicator: Communicator, same_layouts: bool) -> None:
            if same_layouts:
                direct(communicator)
            else:
                in_plain_order().exchange(communicator)

        def begin() -> Any:
            for out, given in copies:
                np.copyto(out, given)
            return common.begin(call, work)

        return begin

    pairs = [(i + 1, i) for i in range(len(xs))]
    rows = op.together(specs)
    together = (Together(rows),) if rows else ()
    return Prepared([world, *specs], specs, bind, inplace=pairs, name="mpi", extensions=(SplitKernel(), *together))


def _layouts(specs: Sequence[TensorSpec]) -> str:
    return "" if all(spec.layout is None for spec in specs) else repr([spec.layout for spec in specs])


def prepare_on_gpu(op: InPlace, ctx: PlanContext, world: TensorSpec, *xs: TensorSpec) -> Prepared | None:
    """Return the kernel over blobs of GPUs: by NCCL where they are, or through the memory of the host."""
    if any(x.dtype == STRING for x in xs):
        return None
    names, specs = list(ctx.op_def.output), _stored(op, xs)
    terms, layouts = described(op, names, xs), _layouts(specs)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], Any]:
        common = world_of(op, ins[0])
        nbytes = sum(out.nbytes for out in outs)
        call = common.call(op.type, names[0], terms, layouts, nbytes=nbytes, located=ctx.run.located)
        copies = [(out, given) for out, given in zip(outs, ins[1:]) if out is not given]
        flat = [as_flat(out, spec.dtype) for out, spec in zip(outs, specs)]
        direct = op.gpu_exchange(common, call, flat)
        plain = partial(_in_plain_order_on_host, op, ctx, common, specs, outs, names)
        begin_exchange = (
            _through_host(op, common, call, flat, names, plain)
            if direct is None
            else _by_nccl(common, call, direct, plain)
        )

        def begin() -> Any:
            for out, given in copies:
                copy_into(out, given)
            return begin_exchange()

        return begin

    pairs = [(i + 1, i) for i in range(len(xs))]
    return Prepared([world, *specs], specs, bind, inplace=pairs, name="nccl", extensions=(SplitKernel(),))


def _by_nccl(
    common: CommonWorld, call: Collective, exchange: GpuExchange, plain: Callable[[], object]
) -> Callable[[], Callable[[], None]]:
    """Return what begins an exchange where the blobs are; ``plain`` exchanges where ranks have different layouts."""

    def begin() -> Callable[[], None]:
        exchange.mark()
        started = common.begin(call, lambda _, same_layouts: exchange.start() if same_layouts else plain())

        def wait() -> None:
            started()
            exchange.wait()

        return wait

    return begin


def _through_host(
    op: InPlace,
    common: CommonWorld,
    call: Collective,
    blobs: Sequence[Any],
    names: Sequence[str],
    plain: Callable[[], object],
) -> Callable[[], Callable[[], None]]:
    """Return what begins an exchange of copies on the host; ``plain`` exchanges where ranks have different layouts."""
    hosts = [np.empty(blob.shape, blob.dtype) for blob in blobs]
    exchange = op.over_ranks(common, hosts, names)

    def begin() -> Callable[[], None]:
        for host, blob in zip(hosts, blobs):
            copy_into(host, blob)

        def work(communicator: Communicator, same_layouts: bool) -> bool:
            if same_layouts:
                exchange(communicator)
            else:
                plain()
            return same_layouts

        ended = common.begin(call, work)

        def wait() -> None:
            if ended():
                for host, blob in zip(hosts, blobs):
                    copy_into(blob, host)

        return wait

    return begin


def _in_plain_order_on_host(
    op: InPlace,
    ctx: PlanContext,
    world: CommonWorld,
    specs: Sequence[TensorSpec],
    buffers: Sequence[Any],
    names: Sequence[str],
) -> None:
    """Exchange copies of values of GPUs on the host, in plain order."""
    places = [(PROTO_CUDA, int(buffer.device.id)) for buffer in buffers]
    hosts = []
    for buffer, spec, place in zip(buffers, specs, places):
        with gpu(place[1]):
            plain = buffer if spec.layout is None else convert(buffer, spec, spec.plain, ctx, location=place)
        hosts.append(np.ascontiguousarray(to_host(plain)))
    op.over_ranks(world, [host.reshape(-1) for host in hosts], names)(world.communicator)
    for buffer, spec, host, place in zip(buffers, specs, hosts, places):
        with gpu(place[1]) as there:
            if spec.layout is None:
                copy_into(buffer, host)
            else:
                convert(there.xp.asarray(host), spec.plain, spec, ctx, out=buffer, location=place)


class _PlainCopies:
    """Copies in plain order, for ranks that store the values in different layouts, or not all of them in rows."""

    def __init__(
        self, op: InPlace, ctx: PlanContext, world: CommonWorld, specs: Sequence[TensorSpec], buffers: Sequence[Any]
    ) -> None:
        plain, in_rows = [spec.plain for spec in specs], dict[int, Array]()
        for same in op.together(plain):
            in_rows |= zip(same, new_row([plain[i].nbytes for i in same])[1])
        copies = [
            part_of_row(in_rows[i], spec) if i in in_rows else np.empty(spec.shape, spec.dtype)
            for i, spec in enumerate(plain)
        ]
        self._ctx, self._values = ctx, list(zip(buffers, specs, copies))
        self._work = op.over_ranks(world, [copy.reshape(-1) for copy in copies], list(ctx.op_def.output))

    def exchange(self, communicator: Communicator) -> None:
        for buffer, spec, copy in self._values:
            if spec.layout is None:
                np.copyto(copy, buffer)
            else:
                convert(buffer, spec, spec.plain, self._ctx, out=copy)
        self._work(communicator)
        for buffer, spec, copy in self._values:
            if spec.layout is None:
                np.copyto(buffer, copy)
            else:
                convert(copy, spec.plain, spec, self._ctx, out=buffer)


def begin_on_host(op: InPlace, world: Any, names: Sequence[str], arrays: Sequence[Array]) -> Callable[[], None]:
    """Begin to exchange arrays in place, in the lane of collectives; return a function that waits.

    Args:
        op: the operator.
        world: its first input.
        names: of its outputs.
        arrays: on the host, in plain order; nothing else may use them until the function has returned.
    """
    common, specs = world_of(op, world), [spec_of(x) for x in arrays]
    op.infer(spec_of(np.array(world, object)), *specs)
    work = op.over_ranks(common, [array.reshape(-1) for array in arrays], names)
    call = common.call(op.type, names[0], described(op, names, specs), nbytes=sum(array.nbytes for array in arrays))
    return common.begin(call, lambda communicator, _: work(communicator))


def _run(op: InPlace, ctx: RunContext, world: Any, *xs: Any) -> tuple[Any, ...]:
    results = tuple(np.array(to_host(x), order="C") for x in xs)
    begin_on_host(op, world, list(ctx.op_def.output), results)()
    return tuple(as_given(result, x) for result, x in zip(results, xs)) if ctx.is_gpu else results


def as_given(result: Any, x: Any) -> Any:
    """Return an array of the host on the device of another one."""
    number = gpu_of(x)
    return result if number is None else here(result, number)


def in_place_kernels(cls: type[Operator]) -> type[Operator]:
    """Class decorator: register the kernels of an ``InPlace`` operator."""
    kernel(cls)(_run)
    prepare(cls, device=CPU)(_prepare)
    prepare(cls, device=GPU)(prepare_on_gpu)
    return cls
