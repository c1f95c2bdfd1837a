"""Dropout and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.ops.contexts import GradientContext, RunContext
from netbuilder.ops.operator import Operator, TensorSpec, require
from netbuilder.ops.registry import kernel, register
from netbuilder.proto import ArgumentError, GradientError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["Dropout", "DropoutGrad"]


@dataclass(frozen=True)
class DropoutArguments(Operator):
    """What Dropout and its gradient have in common."""

    ratio: float = 0.5
    is_test: bool = False

    def check(self) -> None:
        if not 0 <= self.ratio < 1:
            raise ArgumentError(f"{self.type}: ratio, the share of X dropped, must lie in [0, 1), got {self.ratio}")


@register
@dataclass(frozen=True)
class Dropout(DropoutArguments):
    """Y = X * mask / (1 - ratio), with a random mask that is False for a share ``ratio`` of X; in test mode Y = X.

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
    """

    inputs = ("X",)
    outputs = ("Y", "mask?")
    inplace = ((0, 0),)
    stateful = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(x.dtype.kind == "f", self, f"X must be of a floating type, got {x.dtype}")
        return (x.plain, x.with_dtype(np.bool_))[: self.n_out]

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        if self.is_test:
            return [make_op("DropoutGrad", [g.d_output("Y")], [g.d_input("X")])]
        if self.n_out < 2:
            raise GradientError("Dropout: its gradient reads the mask; give the operator a second output")
        inputs = [g.d_output("Y"), g.output("mask")]
        return [make_op("DropoutGrad", inputs, [g.d_input("X")])]

    def flops(self, x: TensorSpec) -> int:
        return 0 if self.is_test else 2 * x.size


@kernel(Dropout)
def dropout(op: Dropout, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if op.is_test:
        return (x, ctx.xp.ones(x.shape, bool))
    mask = ctx.uniform(x.shape, per_sample=True) >= op.ratio
    return (_masked(op, x, mask), mask)


def _masked(op: DropoutArguments, x: Any, mask: Any) -> Any:
    return x * (mask * x.dtype.type(1.0 / (1.0 - op.ratio)))


@register
@dataclass(frozen=True)
class DropoutGrad(DropoutArguments):
    """dX = dY * mask / (1 - ratio); in test mode, dX = dY."""

    inputs = ("dY", "mask?")
    outputs = ("dX",)
    inplace = ((0, 0),)

    def infer(self, dy: TensorSpec, mask: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        if not self.is_test:
            require(mask is not None, self, "outside of test mode it takes Dropout's mask as its second input")
            assert mask is not None
            require(mask.shape == dy.shape, self, f"mask {mask.shape} and dY {dy.shape} must have one shape")
        return (dy.plain,)


@kernel(DropoutGrad)
def dropout_gradient(op: DropoutGrad, ctx: RunContext, dy: Any, mask: Any = None) -> tuple[Any, ...]:
    return (dy if op.is_test else _masked(op, dy, mask),)
