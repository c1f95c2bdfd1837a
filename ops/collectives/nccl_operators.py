"""NCCL's collectives over the GPUs of one process; the operator's inputs are the arrays of the replicas.

Inputs and outputs stay on the GPUs of their replicas. On the host, and where several inputs are on one GPU or a type is
not NCCL's, sums and copies on the operator's device compute the same; so they do for sums in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.gpu import copy_into, gpu, here
from netbuilder.engines.nccl import NcclCall, bind_collectives, type_of
from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.extensions import SplitKernel, Warned
from netbuilder.ops.core.operator import Exchange, Operator, TensorSpec, require
from netbuilder.ops.core.registry import GPU, kernel, prepare, prepare_joined, register
from netbuilder.proto import PROTO_CUDA, ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NCCLAllGather", "NCCLAllreduce", "NCCLBroadcast", "NCCLReduce"]

Array = Any

_MAX_REPLICAS = 16  # as in Caffe2


class _Collective(Operator):
    """Base: one input per replica, all of the same shape and dtype."""

    signature = "X+ -> Y+"
    flops_per_element = 0
    colocate_outputs_with: ClassVar[int | Literal["one-to-one"] | None] = "one-to-one"
    exchanges: ClassVar[Exchange] = Exchange.ALWAYS
    one_output: ClassVar[bool] = False
    what: ClassVar[str]  # NCCL's call
    sums: ClassVar[bool] = False

    def check(self) -> None:
        if self.n_in > _MAX_REPLICAS:
            raise ArgumentError(f"{self.type} takes at most {_MAX_REPLICAS} inputs, got {self.n_in}")
        expected = 1 if self.one_output else self.n_in
        if self.n_out != expected:
            raise ArgumentError(f"{self.type}: {self.n_in} inputs need {expected} outputs, got {self.n_out}")
        root = getattr(self, "root", 0)
        if not 0 <= root < self.n_in:
            raise ArgumentError(f"{self.type}: root must lie in [0, {self.n_in}), got {root}")

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any"  # NCCL reads each on its own GPU

    def infer(self, *xs: TensorSpec) -> tuple[TensorSpec, ...]:
        first = xs[0]
        for i, x in enumerate(xs):
            require(
                x.shape == first.shape and x.dtype == first.dtype,
                self,
                f"input {i} of shape {x.shape}, type {x.dtype} must have shape and type of input 0, {first.shape}, "
                f"{first.dtype}",
            )
        return (self.result(first),) * self.n_out

    def result(self, x: TensorSpec) -> TensorSpec:
        return x.plain

    def compute(self, xp: Any, xs: Sequence[Array]) -> Array:
        """Return the result, from arrays of ``xp`` that are all on the operator's device."""
        raise NotImplementedError


class _Sum(_Collective):
    """Base: the result is the sum of the inputs."""

    sums = True

    def flops(self, *xs: TensorSpec) -> int:
        return (len(xs) - 1) * xs[0].size

    def compute(self, xp: Any, xs: Sequence[Array]) -> Array:
        total = xs[0].copy()
        for x in xs[1:]:
            total += x
        return total


@register
@dataclass(frozen=True)
class NCCLAllreduce(_Sum):
    """Every output is the sum of the inputs."""

    signature = "X+ (*S): any -> Y+ (*S): as X"
    inplace = "one-to-one"
    what = "allReduce"


@register
@dataclass(frozen=True)
class NCCLReduce(_Sum):
    """The output, on the device of replica ``root``, is the sum of the inputs."""

    signature = "X+ (*S): any -> Y (*S): as X"
    one_output = True
    inplace = tuple((i, 0) for i in range(_MAX_REPLICAS))
    what = "reduce"
    root: int = 0

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "colocate_outputs_with", self.root)
        return super().with_arity(n_in, n_out)


@register
@dataclass(frozen=True)
class NCCLBroadcast(_Collective):
    """Every output is the input of replica ``root``."""

    signature = "X+ (*S): any -> Y+ (*S): as X"
    inplace = "one-to-one"
    what = "broadcast"
    root: int = 0

    def compute(self, xp: Any, xs: Sequence[Array]) -> Array:
        return xs[self.root]


@register
@dataclass(frozen=True)
class NCCLAllGather(_Collective):
    """Every output holds all inputs, stacked along a new first axis."""

    signature = "X+ (*S): any -> Y+ (len(X), *S): as X"
    what = "allGather"

    def result(self, x: TensorSpec) -> TensorSpec:
        return x.with_shape((self.n_in, *x.shape))

    def compute(self, xp: Any, xs: Sequence[Array]) -> Array:
        return xp.stack(xs)


def _kernel(op: _Collective, ctx: RunContext, *xs: Array) -> tuple[Array, ...]:
    if ctx.is_gpu:
        number = ctx.op_def.device_option.device_id
        xs = tuple(here(x, number) for x in xs)
    return (op.compute(ctx.xp, xs),) * op.n_out


def _exchanged(op: _Collective, xs: Sequence[TensorSpec]) -> TensorSpec:
    """Return how the inputs are read: in plain order, unless all are stored alike in a layout that does not round."""
    first = xs[0]
    alike = not first.rounds and all(x.layout == first.layout for x in xs)
    return first if alike and op.what != "allGather" else first.plain


def _call(op: _Collective, spec: TensorSpec, ins: Sequence[Array], outs: Sequence[Array]) -> NcclCall:
    """Return NCCL's call for the arrays of an operator."""
    root = getattr(op, "root", 0)
    receives = [outs[0] if i == root else None for i in range(len(ins))] if op.one_output else outs
    kind = type_of(spec.dtype, sums=True) if op.sums else type_of(np.uint8)
    assert kind is not None
    count = spec.nbytes // spec.dtype.itemsize if op.sums else spec.nbytes
    return NcclCall(op.what, ins, receives, kind, count, root)


def _copied(op: _Collective, spec: TensorSpec, ins: Sequence[Array], outs: Sequence[Array], number: int) -> None:
    """Compute what an operator does on one GPU, and copy the result to where the outputs are."""
    xs = [here(x, number) for x in ins]
    stored = spec.layout is not None  # then the arrays are the bytes of the elements
    result = op.compute(gpu(number).xp, [as_flat(x, spec.dtype) for x in xs] if stored else xs)
    for out in outs:
        if out is not result:
            copy_into(as_flat(out, spec.dtype) if stored else out, result)


def _why_not_by_nccl(op: _Collective, ctx: PlanContext, spec: TensorSpec) -> str:
    """Return what keeps several GPUs from exchanging values by NCCL, and the remedy; "" if nothing does."""
    if op.n_in == 1:
        return ""
    if not type_of(spec.dtype, sums=op.sums):
        verb = "sum" if op.sums else "copy"
        return f"NCCL does not {verb} elements of type {spec.dtype}; give it another type, or another operator"
    if op.sums and spec.dtype.kind == "f" and not ctx.enabled("atomic_sums"):
        return (
            "the net must be deterministic, or is without 'gpu', and NCCL adds in an order of its own; drop "
            "deterministic=True (or allow 'gpu'), or set use_nccl=False"
        )
    where = [ctx.location(i) for i in range(op.n_in)]
    if len({*where}) < op.n_in or any(kind != PROTO_CUDA for kind, _ in where):
        found = ", ".join("the CPU" if kind != PROTO_CUDA else f"GPU {number}" for kind, number in where)
        return (
            f"each input must be on a GPU of its own, and they are on {found}; place each on its own GPU, or use "
            "Sum and Copy"
        )
    return ""


def _prepare_several(ops: Sequence[_Collective], ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    first = [sum(op.n_in for op in ops[:i]) for i in range(len(ops) + 1)]
    first_out = [sum(op.n_out for op in ops[:i]) for i in range(len(ops) + 1)]
    read = [_exchanged(op, specs[a:b]) for op, a, b in zip(ops, first, first[1:])]
    written = [spec if spec.layout is not None else op.result(spec) for op, spec in zip(ops, read)]
    why = next(filter(None, (_why_not_by_nccl(op, ctx, spec) for op, spec in zip(ops, read))), "")
    if why and len(ops) > 1:
        return None
    number, devices = ctx.device_id, [ctx.location(i)[1] for i in range(ops[0].n_in)]

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], Any]:
        arrays = [(op, spec, ins[a:b], outs[c:d])
                  for op, spec, a, b, c, d in zip(ops, read, first, first[1:], first_out, first_out[1:])]  # fmt: skip
        if not why and ops[0].n_in > 1:
            return bind_collectives(devices, [_call(*each) for each in arrays]).begin

        def copied() -> Callable[[], None]:
            for each in arrays:
                _copied(*each, number)
            return _done

        return copied

    inputs = [spec for op, spec in zip(ops, read) for _ in range(op.n_in)]
    outputs = [spec for op, spec in zip(ops, written) for _ in range(op.n_out)]
    pairs = [
        (a + (op.root if isinstance(op, NCCLReduce) else k), b + k)
        for op, a, b in zip(ops, first, first_out)
        for k in range(op.n_out if op.inplace else 0)
    ]
    warned = (Warned(f"GPU {number} computes it, not NCCL: {why}"),) if why else ()
    return Prepared(inputs, outputs, bind, inplace=pairs, name="nccl", extensions=(SplitKernel(queue="nccl"), *warned))


def _done() -> None:
    """Wait for nothing."""


def _prepare(op: _Collective, ctx: PlanContext, *xs: TensorSpec) -> Prepared | None:
    return _prepare_several([op], ctx, *xs)


for _cls in (NCCLAllGather, NCCLAllreduce, NCCLBroadcast, NCCLReduce):
    kernel(_cls)(_kernel)
    prepare(_cls, device=GPU)(_prepare)
    prepare_joined(_cls, device=GPU)(_prepare_several)
