"""SparseMomentumSGDUpdate: momentum SGD on some rows of a table."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import widen
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.ops.updates.sgd import momentum_step
from netbuilder.ops.updates.update_rules import check_rate, check_rows, check_same, distinct_rows, in_place, rate_as

__all__ = ["SparseMomentumSGDUpdate"]


@register
@operator_class(frozen=True)
class SparseMomentumSGDUpdate(Operator):
    """MomentumSGDUpdate on the rows ``indices``; a row that occurs several times is updated each time, in order.

    The first output holds the steps, in the shape of ``grad``. Other rows keep their moment.

    Inputs:
        grad (I, *S): float
        moment (R, *S): as grad
        lr (1) or (): float
        param (R, *S): as grad
        indices (I): int32|int64
    Outputs:
        output_grad (I, *S): as grad
        output_moment (R, *S): as grad
        output_param (R, *S): as grad
    """

    inputs = ("grad", "moment", "lr", "param", "indices")
    outputs = ("output_grad", "output_moment", "output_param")
    inplace = ((0, 0),)
    must_inplace = ((1, 1), (3, 2))
    momentum: float = 0.0
    nesterov: bool = False

    def infer(
        self, grad: TensorSpec, moment: TensorSpec, lr: TensorSpec, param: TensorSpec, indices: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        check_same(self, param=param, moment=moment)
        check_rows(self, param, indices, grad)
        check_rate(self, lr)
        return grad.plain, moment.plain, param.plain

    def flops(self, grad: TensorSpec, *others: TensorSpec) -> int:
        return (7 if self.nesterov else 4) * grad.size


def _update_rows(
    op: SparseMomentumSGDUpdate, ctx: RunContext, grad: Any, lr: Any, indices: Any, steps: Any, moment: Any, param: Any
) -> None:
    """Write ``steps``, which may be ``grad``, and update rows of ``moment`` and ``param`` in place."""
    indices = indices.reshape(-1)
    rows_of = (-1, *param.shape[1:])
    grad, steps = grad.reshape(rows_of), steps.reshape(rows_of)
    for positions in distinct_rows(op, ctx, indices, param.shape[0], width=math.prod(param.shape[1:])):
        rows, g = indices[positions], widen(grad[positions])
        step, new = momentum_step(op, g, widen(moment[rows]), rate_as(lr, g))
        moment[rows] = new
        param[rows] = widen(param[rows]) - step
        steps[positions] = step


@kernel(SparseMomentumSGDUpdate)
def sparse_momentum_sgd_update(
    op: SparseMomentumSGDUpdate, ctx: RunContext, grad: Any, moment: Any, lr: Any, param: Any, indices: Any
) -> tuple[Any, ...]:
    steps, moment, param = ctx.xp.empty(grad.shape, grad.dtype), moment.copy(), param.copy()
    _update_rows(op, ctx, grad, lr, indices, steps, moment, param)
    return steps, moment, param


@prepare(SparseMomentumSGDUpdate, device=CPU)
def prepare_sparse_momentum_sgd_update(
    op: SparseMomentumSGDUpdate,
    ctx: PlanContext,
    grad: TensorSpec,
    moment: TensorSpec,
    lr: TensorSpec,
    param: TensorSpec,
    indices: TensorSpec,
) -> Prepared | None:
    specs = [spec.plain for spec in (grad, moment, lr, param, indices)]

    def bind(inputs: Any, outputs: Any, scratch: Any) -> Any:
        grad, moment, lr, param, indices = inputs
        steps, new_moment, new_param = outputs
        return in_place(
            [moment, param],
            [new_moment, new_param],
            lambda: _update_rows(op, ctx.run, grad, lr, indices, steps, new_moment, new_param),
        )

    return Prepared(
        specs,
        [specs[0], specs[1], specs[3]],
        bind,
        inplace=((0, 0), (1, 1), (3, 2)),
        name="numpy rows",
    )
