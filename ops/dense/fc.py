"""Fully connected layers and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.core.half import narrow, one_float_type, widen
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FC", "FCGradient", "FCTransposed", "FCTransposedGradient"]


@dataclass(frozen=True)
class FCArguments(Operator):
    """The arguments of fully connected layers and their gradients, and the checks of X and W."""

    axis: int = 1
    axis_w: int = 1
    _transposed = False

    def sizes(self, x: TensorSpec, w: TensorSpec) -> tuple[int, int, int]:
        """Return M, N and K of the product (M, K) by (K, N) of X and W, flattened to matrices.

        Raises:
            ShapeError: the shapes of X and W do not match.
        """
        a, b = self.split_x(x), self.split_w(w)
        m, k, n, k_w = math.prod(x.shape[:a]), math.prod(x.shape[a:]), math.prod(w.shape[:b]), math.prod(w.shape[b:])
        if self._transposed:
            n, k_w = k_w, n
        require(
            k == k_w,
            self,
            f"X {x.shape} flattened at axis {self.axis} has rows of {k}, but W {w.shape} flattened at axis "
            f"{self.axis_w} takes rows of {k_w}{_fitting_axis(x, k_w)}",
        )
        return m, n, k

    def check_inputs(self, x: TensorSpec, w: TensorSpec, *others: TensorSpec) -> None:
        self.sizes(x, w)

    def split_x(self, x: TensorSpec) -> int:
        return self.axis if self.axis >= 0 else self.axis + x.ndim

    def split_w(self, w: TensorSpec) -> int:
        return self.axis_w if self.axis_w >= 0 else self.axis_w + w.ndim

    def y_shape(self, x: TensorSpec, n: int) -> tuple[int, ...]:
        return (*x.shape[: self.split_x(x)], n)


def _fitting_axis(x: TensorSpec, rows: int) -> str:
    """Return the end of the message: the axis that gives X rows of this many elements, if there is one."""
    axes = [axis for axis in range(x.ndim) if math.prod(x.shape[axis:]) == rows]
    return f"; axis={axes[-1]} gives X such rows" if axes else ""


@dataclass(frozen=True)
class _Forward(FCArguments):
    signature = "X, W, b -> Y"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("W"), g.d_output("Y")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("W"), g.d_input("b"), g.d_input("X")])]

    def flops(self, x: TensorSpec, w: TensorSpec, b: TensorSpec) -> int:
        m, n, k = self.sizes(x, w)
        return 2 * m * n * k + m * n


@dataclass(frozen=True)
class _Backward(FCArguments):
    signature = "X, W, dY -> dW, db, dX?"

    def flops(self, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> int:
        m, n, k = self.sizes(x, w)
        return 2 * (self.n_out - 1) * m * n * k + m * n


@register
@dataclass(frozen=True)
class FC(_Forward):
    """Y = X W^T + b, with X flattened to a matrix at ``axis``, and W, (outputs, inputs), at ``axis_w``."""

    signature = """
        X (*A, *B @ axis): float
        W (*C, *D @ axis_w): as X, prod(D) = prod(B)
        b (prod(C)): as X
        -> Y (*A, prod(C)): as X
    """
    in_batch = InBatch.ROW_BY_ROW


@register
@dataclass(frozen=True)
class FCGradient(_Backward):
    """Gradients of FC: dW = dY^T X, db = the column sums of dY and, if it is an output, dX = dY W."""


@register
@dataclass(frozen=True)
class FCTransposed(_Forward):
    """Y = X W + b, with X flattened to a matrix at ``axis``, and W, (inputs, outputs), at ``axis_w``."""

    signature = """
        X (*A, *B @ axis): float
        W (*C, *D @ axis_w): as X, prod(C) = prod(B)
        b (prod(D)): as X
        -> Y (*A, prod(D)): as X
    """
    in_batch = InBatch.ROW_BY_ROW
    _transposed = True


@register
@dataclass(frozen=True)
class FCTransposedGradient(_Backward):
    """Gradients of FCTransposed: dW = X^T dY, db = the column sums of dY and, if it is an output, dX = dY W^T."""

    _transposed = True


def _matrices(op: FCArguments, x: Any, w: Any) -> tuple[Any, Any]:
    """Return X as (rows, inputs) and W as (outputs, inputs)."""
    m, n, k = op.sizes(spec_of(x), spec_of(w))
    filters = w.reshape(k, n).T if op._transposed else w.reshape(n, k)
    return x.reshape(m, k), filters


def _fc(op: FC | FCTransposed, ctx: RunContext, x: Any, w: Any, b: Any) -> tuple[Any, ...]:
    rows, filters = _matrices(op, widen(x), widen(w))
    y = rows @ filters.T
    y += b
    return (narrow(y.reshape(op.y_shape(spec_of(x), filters.shape[0])), x),)


def _fc_gradient(op: FCGradient | FCTransposedGradient, ctx: RunContext, x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    rows, filters = _matrices(op, widen(x), widen(w))
    d_rows = widen(dy).reshape(rows.shape[0], filters.shape[0])
    dw = rows.T @ d_rows if op._transposed else d_rows.T @ rows
    results = [narrow(dw.reshape(w.shape), w), narrow(d_rows.sum(axis=0), w)]
    if op.n_out == 3:
        results.append(narrow((d_rows @ filters).reshape(x.shape), x))
    return tuple(results)


kernel(FC)(_fc)
kernel(FCTransposed)(_fc)
kernel(FCGradient)(_fc_gradient)
kernel(FCTransposedGradient)(_fc_gradient)


def _prepare_fc(
    op: FC | FCTransposed, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec
) -> Prepared | None:
    if not one_float_type(x, w, b):
        return None
    m, n, _ = op.sizes(x, w)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        rows, filters = _matrices(op, inputs[0], inputs[1])
        columns, bias, y, dot, add = filters.T, inputs[2], outputs[0].reshape(m, n), np.dot, np.add

        def call() -> None:
            dot(rows, columns, y)
            add(y, bias, y)

        return call

    return Prepared([x.plain, w.plain, b.plain], op.infer(x, w, b), bind, name="numpy")


def _prepare_fc_gradient(
    op: FCGradient | FCTransposedGradient, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec
) -> Prepared | None:
    if not one_float_type(x, w, dy):
        return None
    m, n, k = op.sizes(x, w)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        rows, filters = _matrices(op, inputs[0], inputs[1])
        d_rows = inputs[2].reshape(m, n)
        left, right = (rows.T, d_rows) if op._transposed else (d_rows.T, rows)
        dw, db, ones, dot = (
            outputs[0].reshape((k, n) if op._transposed else (n, k)),
            outputs[1],
            np.ones(m, x.dtype),
            np.dot,
        )

        def parameters() -> None:
            dot(left, right, dw)
            dot(ones, d_rows, db)

        if op.n_out < 3:
            return parameters
        dx = outputs[2].reshape(m, k)

        def call() -> None:
            dot(left, right, dw)
            dot(ones, d_rows, db)
            dot(d_rows, filters, dx)

        return call

    return Prepared([x.plain, w.plain, dy.plain], op.infer(x, w, dy), bind, name="numpy")


prepare(FC, device=CPU)(_prepare_fc)
prepare(FCTransposed, device=CPU)(_prepare_fc)
prepare(FCGradient, device=CPU)(_prepare_fc_gradient)
prepare(FCTransposedGradient, device=CPU)(_prepare_fc_gradient)
