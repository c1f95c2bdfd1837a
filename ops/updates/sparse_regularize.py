"""Regularizers of updated rows of a table: SparseNormalize, Float16SparseNormalize, SparseLpRegularizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import register
from netbuilder.ops.core.segment_groups import per_row
from netbuilder.ops.updates.row_updates import RowUpdate, add_row_kernels
from netbuilder.ops.updates.update_rules import check_range
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Float16SparseNormalize", "SparseLpRegularizer", "SparseNormalize"]

Rows = Sequence[Any]

_TINY = 1e-12  # added to norms, so that rows of zeros stay zeros


@dataclass(frozen=True)
class _RowRegularizer(RowUpdate):
    """Base: changes the rows ``indices`` of a table in place. No gradient.

    A row whose index occurs several times is regularized each time.
    """

    signature = """
        param (R, *S): float
        indices (*I): int32|int64
        grad? (...): any, not read
        -> output_param (R, *S): as param
    """
    must_inplace = ((0, 0),)
    reads_gradient = False

    def flops(self, param: TensorSpec, indices: TensorSpec, *others: TensorSpec) -> int:
        return 3 * indices.size * math.prod(param.shape[1:])


@dataclass(frozen=True)
class _Normalize(_RowRegularizer):
    use_max_norm: bool = True
    norm: float = 1.0

    def check(self) -> None:
        check_range(self, 0, math.inf, norm=self.norm)

    reduced = "sum"

    def measure(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows) -> Any:
        return rows[0] * rows[0]

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        lengths = ctx.xp.sqrt(reduced)
        scale = self.norm / (lengths + _TINY)
        if self.use_max_norm:
            scale = ctx.xp.where(lengths > self.norm, scale, 1.0)
        return (rows[0] * per_row(scale, rows[0]),)


@register
@dataclass(frozen=True)
class SparseNormalize(_Normalize):
    """The rows ``indices``, scaled to the L2 norm ``norm``; with ``use_max_norm``, only those with a greater norm."""

    signature = """
        param (R, *S): float32|float64
        indices (*I): int32|int64
        grad? (...): any, not read
        -> output_param (R, *S): as param
    """
    remedies: ClassVar[dict[str, str]] = {"param": "of float16, use Float16SparseNormalize"}


@register
@dataclass(frozen=True)
class Float16SparseNormalize(_Normalize):
    """SparseNormalize of a float16 table, computed in float32."""

    signature = """
        param (R, *S): float16
        indices (*I): int32|int64
        grad? (...): any, not read
        -> output_param (R, *S): float16
    """
    remedies: ClassVar[dict[str, str]] = {"param": "use SparseNormalize"}


@register
@dataclass(frozen=True)
class SparseLpRegularizer(_RowRegularizer):
    """The rows ``indices`` after a step of Lp regularization.

    w' = w * (1 - reg_lambda) with p = 2; w' = sign(w) * max(|w| - reg_lambda, 0) with p = 1.
    """

    p: float = 2.0
    reg_lambda: float = 1e-5

    def check(self) -> None:
        if self.p not in (1.0, 2.0):
            raise ArgumentError(f"SparseLpRegularizer: p must be 1 or 2, got {self.p}")
        if not self.reg_lambda > 0:
            raise ArgumentError(f"SparseLpRegularizer: reg_lambda must be positive, got {self.reg_lambda}")

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        (w,), xp = rows, ctx.xp
        if self.p == 2:
            return (w * (1 - self.reg_lambda),)
        return (xp.sign(w) * xp.maximum(xp.abs(w) - self.reg_lambda, 0),)


add_row_kernels(SparseNormalize, Float16SparseNormalize, SparseLpRegularizer)
