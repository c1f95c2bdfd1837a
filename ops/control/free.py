"""Free: releases the values of blobs."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Free"]

_MAX_BLOBS = 1000


@register
@dataclass(frozen=True)
class Free(Operator):
    """Replace tensors by empty ones, of shape (0,), and other values by None."""

    signature = """
        X+ (...): any
        -> X+ (0): any, of the types before
    """
    must_inplace = tuple((i, i) for i in range(_MAX_BLOBS))
    stateful = True
    effects = ""
    flops_per_element = 0

    def check(self) -> None:
        if self.n_in != self.n_out or self.n_in > _MAX_BLOBS:
            raise ArgumentError(
                f"Free takes up to {_MAX_BLOBS} blobs and names all of them as outputs too, "
                f"got {self.n_in} inputs and {self.n_out} outputs"
            )

    def infer(self, *xs: TensorSpec) -> tuple[TensorSpec, ...]:
        return tuple(x if x.dtype == STRING else x.with_shape((0,)) for x in xs)


@kernel(Free)
def free(op: Free, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return tuple(ctx.xp.empty((0,), x.dtype) if hasattr(x, "dtype") and x.dtype != STRING else None for x in xs)
