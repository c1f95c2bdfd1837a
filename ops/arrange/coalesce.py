"""Operators that tie blobs together: in the order of a net, AsyncNetBarrier, and in memory, UnsafeCoalesce."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import NetError

__all__ = ["AsyncNetBarrier", "UnsafeCoalesce"]

_MOST = 1000


@register
@operator_class(frozen=True)
class AsyncNetBarrier(Operator):
    """Leave blobs as they are, so that what follows waits for the writers of all of them, also on several devices.

    Inputs:
        X+ (...): any
    Outputs:
        X+ (...): any, the inputs
    """

    inputs = ("X+",)
    outputs = ("X+",)
    must_inplace = tuple((i, i) for i in range(_MOST))
    dynamic = True
    stateful = True
    colocate_outputs_with = "one-to-one"
    cross_device: int = 0

    def check(self) -> None:
        if self.n_in != self.n_out or self.n_in > _MOST:
            raise NetError(
                f"{self.type}: output i is input i, up to {_MOST}; got {self.n_in} inputs, {self.n_out} outputs"
            )

    def input_location(self, index: int) -> Any:
        return "any"

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@kernel(AsyncNetBarrier)
def async_net_barrier(op: AsyncNetBarrier, ctx: RunContext, *values: Any) -> tuple[Any, ...]:
    return values


@register
@operator_class(frozen=True)
class UnsafeCoalesce(Operator):
    """Put tensors one after another into one vector, the last output, and make the other outputs parts of it.

    From then on who writes into the vector's memory writes into the parts, and the other way round: a net's operators,
    and feeds of the same shape and type. A feed of another shape, or a plan that keeps a value in another layout, ends
    that for its blob.

    Inputs:
        X+ (...): any, of one type
    Outputs:
        Y+ (...): as X, the inputs and after them the vector
    """

    inputs = ("X+",)
    outputs = ("Y+",)
    inplace = "one-to-one"
    dynamic = True
    stateful = True

    def check(self) -> None:
        if self.n_out != self.n_in + 1:
            raise NetError(
                f"{self.type}: has an output for each input, and one for all, got {self.n_in} inputs, "
                f"{self.n_out} outputs"
            )

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@kernel(UnsafeCoalesce)
def unsafe_coalesce(op: UnsafeCoalesce, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    types = [str(x.dtype) for x in xs]
    alike = all(x.dtype == xs[0].dtype and x.dtype != STRING for x in xs)
    require(alike, op, f"all inputs must be tensors of numbers of one type, got {types}")
    values = ctx.xp.concatenate([x.reshape(-1) for x in xs])
    whole = _memory(ctx, values)
    ends = np.cumsum([x.size for x in xs]).tolist()
    made = [whole[end - x.size : end].reshape(x.shape) for end, x in zip(ends, xs)]
    if ctx.workspace is None:
        return (*made, whole)
    return tuple(ctx.workspace.share(dict(zip(ctx.op_def.output, [*made, whole]))))


def _memory(ctx: RunContext, values: Any) -> Any:
    """Return the vector of the run before with these values, so that plans find their buffers where they were."""
    blob = ctx.workspace.find(ctx.op_def.output[-1]) if ctx.workspace is not None else None
    if blob is None or blob.spec is None or blob.lazy is not None or blob.spec.layout is not None:
        return values
    old = blob.buffer
    if type(old) is not type(values) or old.shape != values.shape or old.dtype != values.dtype:
        return values
    old[...] = values
    return old
