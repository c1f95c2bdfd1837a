"""Inverse square root unit, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["Isru", "IsruGradient"]


@register
@dataclass(frozen=True)
class Isru(Operator):
    """Y = X / sqrt(1 + alpha * X ** 2).

    Source: Carlile et al., "Improving Deep Learning by Inverse Square Root Linear Units", 2017, arXiv:1710.09967.
    """

    signature = "X (*S): float -> Y: as X"
    flops_per_element = 5
    alpha: float = 1.0

    def check(self) -> None:
        if not self.alpha > 0:
            raise ArgumentError(f"Isru: alpha must be positive, got {self.alpha}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("IsruGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Isru)
def isru(op: Isru, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x / ctx.xp.sqrt(1 + op.alpha * x * x),)


@register
@dataclass(frozen=True)
class IsruGradient(Operator):
    """dX = dY / (1 + alpha * X ** 2) ** 1.5."""

    signature = "X, dY -> dX"
    inplace = ((1, 0),)
    flops_per_element = 5
    alpha: float = 1.0


@kernel(IsruGradient)
def isru_gradient(op: IsruGradient, ctx: RunContext, x: Any, dy: Any) -> tuple[Any, ...]:
    return (dy / (1 + op.alpha * x * x) ** 1.5,)
