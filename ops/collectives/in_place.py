"""Kernels of collectives that work on blobs in place: one for plans, which begins and waits, and one outside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.collectives.worlds import OverWorld, world_of
from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import CPU, GPU, kernel, prepare
from netbuilder.ops.engines.arrays import as_flat
from netbuilder.ops.engines.collectives.communicator import Communicator
from netbuilder.ops.engines.collectives.nccl import NcclCommunicator
from netbuilder.ops.engines.collectives.session import Collective
from netbuilder.ops.engines.collectives.world import CommonWorld
from netbuilder.ops.engines.gpu import copy_into
from netbuilder.ops.engines.layouts import convert
from netbuilder.ops.engines.nccl import NcclCall
from netbuilder.proto import ArgumentError

__all__ = ["MAX_BLOBS", "InPlace", "Work", "in_place_kernels", "same_shape_and_type"]

Array = Any
Work = Callable[[Communicator], None]

MAX_BLOBS = 1000
"""The most blobs that one operator exchanges."""


@operator_class(frozen=True)
class InPlace(OverWorld):
    """Base: blobs X after the common world, which are the outputs too.

    Attributes:
        sums: whether it adds, so that the blobs must hold numbers.
        one_layout: whether the blobs are added to one another, so that they must be stored in the same way.
        any_layout: whether the order of the elements does not matter.
    """

    inputs: ClassVar[tuple[str, ...]] = ("common_world", "X+")
    outputs: ClassVar[tuple[str, ...]] = ("Y+",)
    must_inplace: ClassVar[tuple[tuple[int, int], ...]] = tuple((i + 1, i) for i in range(MAX_BLOBS))
    sums: ClassVar[bool] = True
    one_layout: ClassVar[bool] = False
    any_layout: ClassVar[bool] = True
    outputs_on_host: ClassVar[bool] = False

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 0 else "here"

    def check(self) -> None:
        if self.n_out != self.n_in - 1 or self.n_in > MAX_BLOBS + 1:
            raise ArgumentError(
                f"{self.type}: takes a common world and 1 to {MAX_BLOBS} blobs, which are its outputs too; got "
                f"{self.n_in} inputs and {self.n_out} outputs"
            )

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        super().infer(*inputs)
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

    def gpu_calls(self, world: CommonWorld, blobs: Sequence[Array]) -> list[NcclCall] | None:
        """Return what the operator does over arrays of a GPU, as calls of NCCL; None: it goes through the host.

        Args:
            world: the common world.
            blobs: one-dimensional arrays on the GPU, to be overwritten.
        """
        return None

    def terms(self) -> str:
        """Return the arguments that all ranks must agree on, for the description of the collective."""
        return ""


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
    """Return the blobs with shapes and types, and the arguments, for the description of a collective."""
    first, *others = (f"{spec.shape} {_type_name(spec)}" for spec in specs)
    more = [f"{name!r} {text}" for name, text in zip(names[1:], others)]
    return ", ".join(each for each in (first, *more, op.terms()) if each)


def _layout(op: InPlace, spec: TensorSpec, first: TensorSpec) -> TensorSpec:
    """Return how a blob is exchanged: as it is stored, unless that rounds it or padding is stored in another way."""
    wanted = first if op.one_layout else spec
    plain = wanted.layout is None or wanted.rounds or not op.any_layout
    return spec.plain if plain else spec.with_layout(wanted.layout)


def _prepare(op: InPlace, ctx: PlanContext, world: TensorSpec, *xs: TensorSpec) -> Prepared:
    specs = [_layout(op, x, xs[0]) for x in xs]
    names = list(ctx.op_def.output)
    terms = described(op, names, xs)
    layouts = "" if all(spec.layout is None for spec in specs) else repr([spec.layout for spec in specs])

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], Any]:
        common = world_of(op, ins[0])
        call = common.call(op.type, names[0], terms, layouts, nbytes=sum(out.nbytes for out in outs))
        direct = op.over_ranks(common, [as_flat(out, spec.dtype) for out, spec in zip(outs, specs)], names)
        copies = [(out, given) for out, given in zip(outs, ins[1:]) if out is not given]

        def work(communicator: Communicator, same_layouts: bool) -> None:
            if same_layouts:
                direct(communicator)
            else:
                _in_plain_order(op, ctx, common, specs, outs)

        def begin() -> Any:
            for out, given in copies:
                np.copyto(out, given)
            return common.begin(call, work)

        return begin

    pairs = [(i + 1, i) for i in range(len(xs))]
    return Prepared([world, *specs], specs, bind, inplace=pairs, split=True, name="mpi")


def _prepare_on_gpu(op: InPlace, ctx: PlanContext, world: TensorSpec, *xs: TensorSpec) -> Prepared | None:
    """Return the kernel over blobs of a GPU: by NCCL where they are, or through the memory of the host."""
    if any(x.dtype == STRING for x in xs):
        return None
    names, specs = list(ctx.op_def.output), [x.plain for x in xs]
    terms = described(op, names, xs)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], Any]:
        common = world_of(op, ins[0])
        call = common.call(op.type, names[0], terms, "", nbytes=sum(out.nbytes for out in outs))
        copies = [(out, given) for out, given in zip(outs, ins[1:]) if out is not given]
        flat = [as_flat(out, spec.dtype) for out, spec in zip(outs, specs)]
        exchange = _by_nccl(op, common, call, flat) or _through_host(op, common, call, flat, names)

        def begin() -> Any:
            for out, given in copies:
                copy_into(out, given)
            return exchange()

        return begin

    pairs = [(i + 1, i) for i in range(len(xs))]
    return Prepared([world, *specs], specs, bind, inplace=pairs, split=True, name="nccl")


_Exchange = Callable[[], Callable[[], None]]


def _by_nccl(op: InPlace, common: CommonWorld, call: Collective, blobs: Sequence[Any]) -> _Exchange | None:
    """Return what begins the exchange of arrays where they are; None if NCCL does not connect the ranks, or cannot."""
    communicator = common.communicator
    calls = op.gpu_calls(common, blobs) if isinstance(communicator, NcclCommunicator) else None
    if calls is None:
        return None
    assert isinstance(communicator, NcclCommunicator)
    start = communicator.group.bind(calls)

    def begin() -> Callable[[], None]:
        started = common.begin(call, lambda communicator, same: start())
        return lambda: started()()

    return begin


def _through_host(
    op: InPlace, common: CommonWorld, call: Collective, blobs: Sequence[Any], names: Sequence[str]
) -> _Exchange:
    hosts = [np.empty(blob.shape, blob.dtype) for blob in blobs]
    work = op.over_ranks(common, hosts, names)

    def begin() -> Callable[[], None]:
        for host, blob in zip(hosts, blobs):
            copy_into(host, blob)
        ended = common.begin(call, lambda communicator, same: work(communicator))

        def wait() -> None:
            ended()
            for host, blob in zip(hosts, blobs):
                copy_into(blob, host)

        return wait

    return begin


def _in_plain_order(
    op: InPlace, ctx: PlanContext, world: CommonWorld, specs: Sequence[TensorSpec], buffers: Sequence[Any]
) -> None:
    """Exchange copies in plain order: the ranks store the values in different layouts."""
    plain = [
        buffer if spec.layout is None else convert(buffer, spec, spec.plain, ctx)
        for buffer, spec in zip(buffers, specs)
    ]
    op.over_ranks(world, [copy.reshape(-1) for copy in plain], list(ctx.op_def.output))(world.communicator)
    for buffer, spec, copy in zip(buffers, specs, plain):
        if spec.layout is not None:
            convert(copy, spec.plain, spec, ctx, out=buffer)


def _run(op: InPlace, ctx: RunContext, world: Any, *xs: Any) -> tuple[Any, ...]:
    common = world_of(op, world)
    results = tuple(np.array(ctx.host(x), order="C") for x in xs)
    specs = [spec_of(x) for x in results]
    op.infer(spec_of(np.array(world, object)), *specs)
    names = list(ctx.op_def.output)
    work = op.over_ranks(common, [result.reshape(-1) for result in results], names)
    nbytes = sum(result.nbytes for result in results)
    call = common.call(op.type, names[0], described(op, names, specs), nbytes=nbytes)
    common.run(call, lambda communicator, _: work(communicator))
    return tuple(map(ctx.xp.asarray, results)) if ctx.is_gpu else results


def in_place_kernels(cls: type[Operator]) -> type[Operator]:
    """Class decorator: register the kernels of an ``InPlace`` operator."""
    kernel(cls)(_run)
    prepare(cls, device=CPU)(_prepare)
    prepare(cls, device=GPU)(_prepare_on_gpu)
    return cls
