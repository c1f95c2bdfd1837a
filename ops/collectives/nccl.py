"""NCCL's collectives on one host; the operator's inputs are the arrays of the replicas.

They are computed by sums and copies: there is no engine for NCCL yet.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import Exchange, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError

__all__ = ["NCCLAllGather", "NCCLAllreduce", "NCCLBroadcast", "NCCLReduce"]

_MAX_REPLICAS = 16  # as in Caffe2


class _Collective(Operator):
    """Base: one input per replica, all of the same shape and dtype."""

    inputs = ("X+",)
    outputs = ("Y+",)
    colocate_outputs_with: ClassVar[int | Literal["one-to-one"] | None] = "one-to-one"
    exchanges: ClassVar[Exchange] = Exchange.ALWAYS
    one_output: ClassVar[bool] = False

    def check(self) -> None:
        if self.n_in > _MAX_REPLICAS:
            raise ArgumentError(f"{self.type}: takes at most {_MAX_REPLICAS} inputs, got {self.n_in}")
        expected = 1 if self.one_output else self.n_in
        if self.n_out != expected:
            raise ArgumentError(f"{self.type}: {self.n_in} inputs need {expected} outputs, got {self.n_out}")
        root = getattr(self, "root", 0)
        if not 0 <= root < self.n_in:
            raise ArgumentError(f"{self.type}: root must lie in [0, {self.n_in}), got {root}")

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

    def flops(self, *xs: TensorSpec) -> int:
        return 0


def _sum(xs: tuple[Any, ...]) -> Any:
    total = xs[0].copy()
    for x in xs[1:]:
        total += x
    return total


@register
@operator_class(frozen=True)
class NCCLAllreduce(_Collective):
    """Every output is the sum of the inputs.

    Inputs:
        X+ (*S): any
    Outputs:
        Y+ (*S): as X
    """

    inplace = "one-to-one"

    def flops(self, *xs: TensorSpec) -> int:
        return (len(xs) - 1) * xs[0].size


@kernel(NCCLAllreduce)
def nccl_allreduce(op: NCCLAllreduce, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (_sum(xs),) * op.n_out


@register
@operator_class(frozen=True)
class NCCLReduce(_Collective):
    """The output, on the device of replica ``root``, is the sum of the inputs.

    Inputs:
        X+ (*S): any
    Outputs:
        Y (*S): as X
    """

    outputs = ("Y",)
    one_output = True
    inplace = tuple((i, 0) for i in range(_MAX_REPLICAS))
    root: int = 0

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "colocate_outputs_with", self.root)
        return super().with_arity(n_in, n_out)

    def flops(self, *xs: TensorSpec) -> int:
        return (len(xs) - 1) * xs[0].size


@kernel(NCCLReduce)
def nccl_reduce(op: NCCLReduce, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (_sum(xs),)


@register
@operator_class(frozen=True)
class NCCLBroadcast(_Collective):
    """Every output is the input of replica ``root``.

    Inputs:
        X+ (*S): any
    Outputs:
        Y+ (*S): as X
    """

    inplace = "one-to-one"
    root: int = 0


@kernel(NCCLBroadcast)
def nccl_broadcast(op: NCCLBroadcast, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (xs[op.root],) * op.n_out


@register
@operator_class(frozen=True)
class NCCLAllGather(_Collective):
    """Every output holds all inputs, stacked along a new first axis.

    Inputs:
        X+ (*S): any
    Outputs:
        Y+ (len(X), *S): as X
    """

    def result(self, x: TensorSpec) -> TensorSpec:
        return x.with_shape((self.n_in, *x.shape))


@kernel(NCCLAllGather)
def nccl_all_gather(op: NCCLAllGather, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (ctx.xp.stack(xs),) * op.n_out
