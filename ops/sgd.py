"""Stochastic gradient descent with momentum: MomentumSGD (the step alone) and MomentumSGDUpdate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.ops.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.engines import flat
from netbuilder.ops.half import widen
from netbuilder.ops.operator import Operator, TensorSpec
from netbuilder.ops.registry import CPU, kernel, prepare, register
from netbuilder.ops.update_rules import check_rate, check_same, rate_as

__all__ = ["MomentumSGD", "MomentumSGDUpdate", "momentum_step"]


@register
@dataclass(frozen=True)
class MomentumSGD(Operator):
    """M' = momentum * M + lr * G; the step is M', with Nesterov's (1 + momentum) * M' - momentum * M.

    The step is to be subtracted from the parameter.

    Source: Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep learning",
    2013, equations 1 to 4.
    """

    inputs = ("grad", "moment", "lr")
    outputs = ("output_grad", "output_moment")
    inplace = ((0, 0), (1, 1))
    momentum: float = 0.0
    nesterov: bool = False

    def infer(self, grad: TensorSpec, moment: TensorSpec, lr: TensorSpec) -> tuple[TensorSpec, ...]:
        check_same(self, grad=grad, moment=moment)
        check_rate(self, lr)
        return grad.plain, moment.plain

    def flops(self, grad: TensorSpec, *others: TensorSpec) -> int:
        return (6 if self.nesterov else 3) * grad.size


@register
@dataclass(frozen=True)
class MomentumSGDUpdate(Operator):
    """As MomentumSGD; the step is also taken: P' = P - step."""

    inputs = ("grad", "moment", "lr", "param")
    outputs = ("output_grad", "output_moment", "output_param")
    inplace = ((0, 0), (1, 1), (3, 2))
    momentum: float = 0.0
    nesterov: bool = False

    def infer(self, grad: TensorSpec, moment: TensorSpec, lr: TensorSpec, param: TensorSpec) -> tuple[TensorSpec, ...]:
        check_same(self, param=param, grad=grad, moment=moment)
        check_rate(self, lr)
        return grad.plain, moment.plain, param.plain

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


class _Program:
    """The calls that make one momentum step on flat pieces, in place or not."""

    def __init__(self, op: Any, spec: TensorSpec) -> None:
        self.nesterov = op.nesterov
        self.momentum = flat.scalar(op.momentum, spec.dtype)
        self.more = flat.scalar(1 + op.momentum, spec.dtype)

    @property
    def temporaries(self) -> int:
        return 1 if self.nesterov else 0

    def steps(self, lr: Any, grad: Any, moment: Any, step: Any, new: Any, kept: Any = None) -> Iterator[flat.Step]:
        if self.nesterov:
            yield np.multiply, (moment, self.momentum, kept)
            yield np.multiply, (grad, lr, step)
            yield np.add, (step, kept, new)
            yield np.multiply, (new, self.more, step)
            yield np.subtract, (step, kept, step)
        else:
            yield np.multiply, (grad, lr, step)
            yield np.multiply, (moment, self.momentum, new)
            yield np.add, (step, new, step)
            yield new.__setitem__, (slice(None), step)


@prepare(MomentumSGD, device=CPU)
def prepare_momentum_sgd(
    op: MomentumSGD, ctx: PlanContext, grad: TensorSpec, moment: TensorSpec, lr: TensorSpec
) -> Prepared | None:
    spec = flat.common_spec([moment, grad])
    if spec is None or lr.dtype != spec.dtype:
        return None
    program = _Program(op, spec)

    def bind(inputs: Any, outputs: Any, scratch: Any) -> Any:
        rate = inputs[2].reshape(())
        steps: list[flat.Step] = []
        for part in flat.pieces(spec, [*inputs[:2], *outputs], scratch, program.temporaries):
            steps += program.steps(rate, *part)
        return flat.replay(steps)

    return Prepared(
        [spec, spec, lr.plain],
        [spec, spec],
        bind,
        scratch=flat.scratch_bytes(spec, program.temporaries),
        inplace=MomentumSGD.inplace,
        name="numpy",
    )


@prepare(MomentumSGDUpdate, device=CPU)
def prepare_momentum_sgd_update(
    op: MomentumSGDUpdate, ctx: PlanContext, grad: TensorSpec, moment: TensorSpec, lr: TensorSpec, param: TensorSpec
) -> Prepared | None:
    spec = flat.common_spec([param, moment, grad])
    if spec is None or lr.dtype != spec.dtype:
        return None
    program = _Program(op, spec)

    def bind(inputs: Any, outputs: Any, scratch: Any) -> Any:
        grad, moment, lr, param = inputs
        rate = lr.reshape(())
        steps: list[flat.Step] = []
        for p, p_new, g, m, step, new, *kept in flat.pieces(
            spec, [param, outputs[2], grad, moment, *outputs[:2]], scratch, program.temporaries
        ):
            steps += program.steps(rate, g, m, step, new, *kept)
            steps.append((np.subtract, (p, step, p_new)))
        return flat.replay(steps)

    return Prepared(
        [spec, spec, lr.plain, spec],
        [spec, spec, spec],
        bind,
        scratch=flat.scratch_bytes(spec, program.temporaries),
        inplace=MomentumSGDUpdate.inplace,
        name="numpy",
    )
