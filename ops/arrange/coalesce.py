"""AsyncNetBarrier, which orders the operators of a net, and UnsafeCoalesce, which makes blobs share memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import STRING, Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import NetError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AsyncNetBarrier", "UnsafeCoalesce"]

_MAX_BLOBS = 1000


@register
@dataclass(frozen=True)
class AsyncNetBarrier(Operator):
    """Return the inputs unchanged; what reads an output waits for the writers of all inputs, on all their devices."""

    signature = """
        X+ (...): any
        -> X+ (...): any, the inputs
    """
    must_inplace = tuple((i, i) for i in range(_MAX_BLOBS))
    dynamic = True
    stateful = True
    colocate_outputs_with = "one-to-one"
    flops_per_element = 0
    cross_device: int = 0

    def check(self) -> None:
        if self.n_in != self.n_out or self.n_in > _MAX_BLOBS:
            raise NetError(
                f"{self.type}: output i is input i, up to {_MAX_BLOBS}; got {self.n_in} inputs, {self.n_out} outputs"
            )

    def input_location(self, index: int) -> Any:
        return "any"


@kernel(AsyncNetBarrier)
def async_net_barrier(op: AsyncNetBarrier, ctx: RunContext, *values: Any) -> tuple[Any, ...]:
    return values


@register
@dataclass(frozen=True)
class UnsafeCoalesce(Operator):
    """Concatenate tensors into one vector, the last output, and make the other outputs views of its parts.

    From then on an operator of a net, or a feed of the same shape and type, that writes into the vector writes into the
    parts, and the other way round. A feed of another shape, or a plan that stores a value in another layout, ends this
    for its blob.
    """

    signature = """
        X+ (...): any, all of the same type
        -> Y+ (...): as X, the inputs, then the vector
    """
    inplace = "one-to-one"
    dynamic = True
    stateful = True
    flops_per_element = 0

    def check(self) -> None:
        if self.n_out != self.n_in + 1:
            raise NetError(
                f"{self.type} must have one output per input, and one more for the vector, got "
                f"{counted(self.n_in, 'input')}, {counted(self.n_out, 'output')}"
            )


@kernel(UnsafeCoalesce)
def unsafe_coalesce(op: UnsafeCoalesce, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    types = [str(x.dtype) for x in xs]
    same = all(x.dtype == xs[0].dtype and x.dtype != STRING for x in xs)
    require(same, op, f"all inputs must be numeric tensors of the same type, got {types}")
    values = ctx.xp.concatenate([x.reshape(-1) for x in xs])
    vector = _in_previous_vector(ctx, values)
    ends = np.cumsum([x.size for x in xs]).tolist()
    views = [vector[end - x.size : end].reshape(x.shape) for end, x in zip(ends, xs)]
    if ctx.workspace is None:
        return (*views, vector)
    return tuple(ctx.workspace.share(dict(zip(ctx.op_def.output, [*views, vector]))))


def _in_previous_vector(ctx: RunContext, values: Any) -> Any:
    """Return these values in the vector of the previous run, if it fits, so that the buffers of plans stay valid."""
    blob = ctx.workspace.find(ctx.op_def.output[-1]) if ctx.workspace is not None else None
    if blob is None or blob.spec is None or blob.lazy is not None or blob.spec.layout is not None:
        return values
    old = blob.buffer
    if type(old) is not type(values) or old.shape != values.shape or old.dtype != values.dtype:
        return values
    old[...] = values
    return old
