"""SparseMomentumSGDUpdate: momentum SGD on some rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import register
from netbuilder.ops.updates.row_updates import RowUpdate, add_row_kernels
from netbuilder.ops.updates.sgd import momentum_step
from netbuilder.ops.updates.update_rules import rate_as
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SparseMomentumSGDUpdate"]

Rows = Sequence[Any]


@register
@dataclass(frozen=True)
class SparseMomentumSGDUpdate(RowUpdate):
    """MomentumSGDUpdate on the rows ``indices``; a row that occurs several times is updated each time, in order.

    The first output holds the steps, in the shape of ``grad``. Other rows keep their moment.
    """

    signature = """
        grad (*I, *S): float
        moment (R, *S): as grad
        lr {1}: float|int
        param (R, *S): as grad
        indices (*I): int32|int64
        -> output_grad (*I, *S): as grad
        -> output_moment (R, *S): as grad
        -> output_param (R, *S): as grad
    """
    inplace = ((0, 0),)
    must_inplace = ((1, 1), (3, 2))
    momentum: float = 0.0
    nesterov: bool = False

    def flops(self, grad: TensorSpec, *others: TensorSpec) -> int:
        return (7 if self.nesterov else 4) * grad.size

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        m, p = rows
        step, new = momentum_step(self, g, m, rate_as(numbers[0], g))
        return new, p - step, step


add_row_kernels(SparseMomentumSGDUpdate)
