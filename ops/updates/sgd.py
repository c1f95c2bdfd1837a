"""Stochastic gradient descent with momentum: MomentumSGD (the step alone) and MomentumSGDUpdate."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import widen
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.update_rules import rate_as
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["MomentumSGD", "MomentumSGDUpdate", "momentum_step"]


@register
@dataclass(frozen=True)
class MomentumSGD(Operator):
    """M' = momentum * M + lr * G; the step is M' or, with ``nesterov``, (1 + momentum) * M' - momentum * M.

    The step is to be subtracted from the parameter.

    Source: Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep learning",
    2013, equations 1 to 4.
    """

    signature = """
        grad (*S): float
        moment (*S): as grad
        lr {1}: float|int
        -> output_grad (*S): as grad
        -> output_moment (*S): as grad
    """
    inplace = ((0, 0), (1, 1))
    momentum: float = 0.0
    nesterov: bool = False

    def flops(self, grad: TensorSpec, *others: TensorSpec) -> int:
        return (6 if self.nesterov else 3) * grad.size


@register
@dataclass(frozen=True)
class MomentumSGDUpdate(Operator):
    """MomentumSGD, and the update of the parameter: P' = P - step."""

    signature = """
        grad (*S): float
        moment (*S): as grad
        lr {1}: float|int
        param (*S): as grad
        -> output_grad (*S): as grad
        -> output_moment (*S): as grad
        -> output_param (*S): as grad
    """
    inplace = ((0, 0), (1, 1), (3, 2))
    momentum: float = 0.0
    nesterov: bool = False

    def flops(self, grad: TensorSpec, *others: TensorSpec) -> int:
        return (7 if self.nesterov else 4) * grad.size


def momentum_step(op: Any, grad: Any, moment: Any, lr: Any) -> tuple[Any, Any]:
    """Return the step to subtract and the new moment."""
    new = op.momentum * moment + lr * grad
    step = (1 + op.momentum) * new - op.momentum * moment if op.nesterov else new
    return step, new


@kernel(MomentumSGD)
def momentum_sgd(op: MomentumSGD, ctx: RunContext, grad: Any, moment: Any, lr: Any) -> tuple[Any, ...]:
    g, m = widen(grad), widen(moment)
    step, new = momentum_step(op, g, m, rate_as(lr, g))
    return step.astype(grad.dtype), new.astype(grad.dtype)


@kernel(MomentumSGDUpdate)
def momentum_sgd_update(
    op: MomentumSGDUpdate, ctx: RunContext, grad: Any, moment: Any, lr: Any, param: Any
) -> tuple[Any, ...]:
    g, m = widen(grad), widen(moment)
    step, new = momentum_step(op, g, m, rate_as(lr, g))
    return step.astype(grad.dtype), new.astype(grad.dtype), (widen(param) - step).astype(grad.dtype)
