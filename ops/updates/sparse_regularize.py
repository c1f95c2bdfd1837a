"""Regularizers of updated rows of a table: SparseNormalize, Float16SparseNormalize, SparseLpRegularizer."""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.ops.updates.update_rules import check_range, distinct_rows, updating_rows
from netbuilder.proto import ArgumentError

__all__ = ["Float16SparseNormalize", "SparseLpRegularizer", "SparseNormalize"]

_TINY = 1e-12  # added to norms, so that rows of zeros stay zeros


@operator_class(frozen=True)
class _RowRegularizer(Operator, abc.ABC):
    """Base: changes the rows ``indices`` of a table in place. No gradient.

    A row whose index occurs several times is regularized each time.

    Inputs:
        param (R, *S): float
        indices (I): int32|int64
        grad? (I, *S): any, not read
    Outputs:
        output_param (R, *S): as param
    """

    inputs = ("param", "indices", "grad?")
    outputs = ("output_param",)
    must_inplace = ((0, 0),)

    def infer(self, param: TensorSpec, indices: TensorSpec, grad: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        require(param.ndim >= 1, self, f"param must have rows, got shape {param.shape}")
        self.check_type(param)
        require(indices.dtype in (np.int32, np.int64), self, f"indices must be int32 or int64, got {indices.dtype}")
        return (param.plain,)

    def check_type(self, param: TensorSpec) -> None:
        require(param.dtype.kind == "f", self, f"param must be of a floating type, got {param.dtype}")

    @abc.abstractmethod
    def regularized(self, xp: Any, rows: Any) -> Any:
        """Return the new values of ``rows``, all distinct, (K, ...), in float32 or float64."""

    def flops(self, param: TensorSpec, indices: TensorSpec, *others: TensorSpec) -> int:
        return 3 * indices.size * math.prod(param.shape[1:])


@operator_class(frozen=True)
class _Normalize(_RowRegularizer):
    use_max_norm: bool = True
    norm: float = 1.0

    def check(self) -> None:
        check_range(self, 0, math.inf, norm=self.norm)

    def regularized(self, xp: Any, rows: Any) -> Any:
        flat = rows.reshape(rows.shape[0], -1)
        lengths = xp.sqrt((flat * flat).sum(axis=1, keepdims=True))
        scale = self.norm / (lengths + _TINY)
        if self.use_max_norm:
            scale = xp.where(lengths > self.norm, scale, 1.0)
        return (flat * scale).astype(rows.dtype, copy=False).reshape(rows.shape)


@register
@operator_class(frozen=True)
class SparseNormalize(_Normalize):
    """The rows ``indices``, scaled to the L2 norm ``norm``; with ``use_max_norm``, only those with a greater norm.

    Inputs:
        param (R, *S): float32|float64
        indices (I): int32|int64
        grad? (I, *S): any, not read
    Outputs:
        output_param (R, *S): as param
    """

    def check_type(self, param: TensorSpec) -> None:
        super().check_type(param)
        require(
            param.dtype != np.float16,
            self,
            "param must be float32 or float64, got float16; use Float16SparseNormalize",
        )


@register
@operator_class(frozen=True)
class Float16SparseNormalize(_Normalize):
    """SparseNormalize of a float16 table, computed in float32.

    Inputs:
        param (R, *S): float16
        indices (I): int32|int64
        grad? (I, *S): any, not read
    Outputs:
        output_param (R, *S): float16
    """

    def check_type(self, param: TensorSpec) -> None:
        require(param.dtype == np.float16, self, f"param must be float16, got {param.dtype}; use SparseNormalize")


@register
@operator_class(frozen=True)
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

    def regularized(self, xp: Any, rows: Any) -> Any:
        if self.p == 2:
            return rows * (1 - self.reg_lambda)
        return xp.sign(rows) * xp.maximum(xp.abs(rows) - self.reg_lambda, 0)


def _change_rows(op: _RowRegularizer, ctx: RunContext, param: Any, indices: Any) -> None:
    indices = indices.reshape(-1)
    for positions in distinct_rows(op, ctx, indices, param.shape[0]):
        rows = indices[positions]
        param[rows] = narrow(op.regularized(ctx.xp, widen(param[rows])), param)


def _plain(op: _RowRegularizer, ctx: RunContext, param: Any, indices: Any, grad: Any = None) -> tuple[Any, ...]:
    param = param.copy()
    _change_rows(op, ctx, param, indices)
    return (param,)


def _prepare(op: _RowRegularizer, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    return updating_rows(op, specs, lambda given, tables: _change_rows(op, ctx.run, tables[0], given[1]))


for _cls in (SparseNormalize, Float16SparseNormalize, SparseLpRegularizer):
    kernel(_cls)(_plain)
    prepare(_cls, device=CPU)(_prepare)
