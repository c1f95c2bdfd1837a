"""ZeroGradient: a gradient of zeros for a blob that may have none."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ZeroGradient"]


@register
@dataclass(frozen=True)
class ZeroGradient(Operator):
    """Do nothing; in the backward pass, give X a gradient of zeros, as it may have no other."""

    signature = "X (...): any ->"
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ConstantFill", [g.input("X")], [g.d_input("X")], value=0.0)]


@kernel(ZeroGradient)
def zero_gradient(op: ZeroGradient, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return ()
