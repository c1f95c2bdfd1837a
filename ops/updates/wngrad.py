"""Wngrad, dense and sparse: one learning rate per parameter, divided by a running sum of squared gradient norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.row_updates import JointUpdate, RowUpdate, add_joint_kernels
from netbuilder.ops.updates.update_rules import (
    check_range,
    rate_as,
)
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SparseWngrad", "Wngrad"]


@register
@dataclass(frozen=True)
class Wngrad(Operator):
    """P' = P + r * G with the effective rate r = lr / (b + epsilon), then b' = b + |G|^2 / (b + epsilon).

    b is a scalar. The third output is r, the fourth the update r * G. The step is added, so ``lr`` is negative for
    descent. The step uses b, as in Caffe2; in the paper it uses b'.

    Source: Wu, Ward and Bottou, "WNGrad: learn the learning rate in gradient descent", 2018, arXiv:1803.02865,
    algorithm 1.
    """

    signature = """
        param (*S): float
        seq_b {1}: float
        grad (*S): as param
        lr {1}: float|int
        -> output_param (*S): as param
        -> output_seq_b: as seq_b
        -> output_effective_lr? (1): as param
        -> output_update? (*S): as param
    """
    inplace = ((0, 0), (1, 1))
    flops_per_element = 4
    epsilon: float = 1e-5

    def check(self) -> None:
        check_range(self, 0, math.inf, epsilon=self.epsilon)


@kernel(Wngrad)
def wngrad(op: Wngrad, ctx: RunContext, param: Any, seq_b: Any, grad: Any, lr: Any) -> tuple[Any, ...]:
    p, g = widen(param), widen(grad)
    divisor = rate_as(seq_b, g) + op.epsilon
    rate = rate_as(lr, g) / divisor
    b = rate_as(seq_b, g) + (g * g).sum() / divisor
    update = rate * g
    results = (
        narrow(p + update, param),
        narrow(b.reshape(seq_b.shape), seq_b),
        narrow(rate.reshape(1), param),
        narrow(update, param),
    )
    return results[: op.n_out]


@dataclass(frozen=True)
class _Step(RowUpdate):
    """P' = P + rate * G, on rows."""

    signature = "param, indices, grad, rate -> output_param"
    must_inplace = ((0, 0),)

    def update(self, ctx: RunContext, rows: Sequence[Any], g: Any, numbers: Sequence[Any], reduced: Any) -> Any:
        return (rows[0] + rate_as(numbers[0], g) * g,)


@register
@dataclass(frozen=True)
class SparseWngrad(JointUpdate):
    """Wngrad on the rows ``indices`` of a table; a row that occurs several times is updated each time.

    All rows share the scalar b, and b' = b + |G|^2 / b: as in Caffe2, without ``epsilon``.
    """

    signature = """
        param (R, *S): float
        seq_b {1}: float
        indices (*I): int32|int64
        grad (*I, *S): as param
        lr {1}: float|int
        grad_squares? {1}: float, the sum of squares of all gradients, if there are more of them elsewhere
        -> output_param (R, *S): as param
        -> output_seq_b: as seq_b
    """
    must_inplace = ((0, 0), (1, 1))
    step = _Step
    state = "seq_b"
    epsilon: float = 1e-5

    def check(self) -> None:
        check_range(self, 0, math.inf, epsilon=self.epsilon)

    def flops(
        self, param: TensorSpec, seq_b: TensorSpec, indices: TensorSpec, grad: TensorSpec, *others: TensorSpec
    ) -> int:
        return 4 * grad.size

    def numbers(self, ctx: RunContext, state: Any, squares: Any, lr: Any) -> Sequence[Any]:
        b = rate_as(state, squares)
        return rate_as(lr, squares) / (b + self.epsilon), b + squares / b


add_joint_kernels(SparseWngrad)
