"""MergeDim, which merges the first two axes, and PrependDim, which splits the first axis in two."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["MergeDim", "PrependDim"]


@dataclass(frozen=True)
class _Leading(Operator):
    signature = "data -> reshaped"
    inplace = ((0, 0),)
    flops_per_element = 0


@register
@dataclass(frozen=True)
class MergeDim(_Leading):
    """reshaped = data with its first two axes merged. No gradient."""

    signature = "data (M, N, *S): any -> reshaped (M * N, *S): as data"


@register
@dataclass(frozen=True)
class PrependDim(_Leading):
    """reshaped = data with its first axis split in two, of extents ``dim_size`` and N / ``dim_size``."""

    signature = "data (N, *S): any -> reshaped (dim_size, N // dim_size, *S): as data"
    copy_arguments = False
    dim_size: int = 0

    def check(self) -> None:
        if self.dim_size < 1:
            raise ArgumentError(f"PrependDim: dim_size must be given, and be 1 or more, got {self.dim_size}")

    def check_inputs(self, data: TensorSpec) -> None:
        first = data.shape[0]
        text = f"the first extent, {first}, must be a multiple of dim_size={self.dim_size}"
        require(first % self.dim_size == 0, self, text)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("MergeDim", [g.d_output(0)], [g.d_input(0)])]


@kernel(MergeDim)
def merge_dim(op: MergeDim, ctx: RunContext, data: Any) -> tuple[Any, ...]:
    return (data.reshape(data.shape[0] * data.shape[1], *data.shape[2:]),)


@kernel(PrependDim)
def prepend_dim(op: PrependDim, ctx: RunContext, data: Any) -> tuple[Any, ...]:
    return (data.reshape(op.dim_size, data.shape[0] // op.dim_size, *data.shape[1:]),)
