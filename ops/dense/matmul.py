"""Matrix products: MatMul of two matrices, BatchMatMul of stacks of matrices. Their gradients are products too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.core.half import narrow, one_float_type, require_one_float_type, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchMatMul", "MatMul"]


@register
@dataclass(frozen=True)
class MatMul(Operator):
    """Y = A B, with A and B flattened to matrices at ``axis_a`` and ``axis_b``.

    ``trans_a`` and ``trans_b`` transpose the matrices. With a third input, Y has the shape of that.
    """

    signature = """
        A (...): float
        B (...): as A
        like? (...): any
        -> Y (M, N) or (...): as A, the latter with like
    """
    copy_arguments = False
    axis_a: int = 1
    axis_b: int = 1
    trans_a: bool = False
    trans_b: bool = False

    def sizes(self, a: TensorSpec, b: TensorSpec) -> tuple[int, int, int]:
        """Return M, N and K of the product (M, K) by (K, N).

        Raises:
            ShapeError: the shapes of A and B do not match.
        """
        m, k = self._matrix("a", a, self.axis_a, self.trans_a)
        k_b, n = self._matrix("b", b, self.axis_b, self.trans_b)
        require(
            k == k_b,
            self,
            f"the inner extents must be equal; A {a.shape} is a matrix of ({m}, {k}), B {b.shape} one of ({k_b}, {n})",
        )
        return m, n, k

    def _matrix(self, which: str, spec: TensorSpec, axis: int, transposed: bool) -> tuple[int, int]:
        require(
            -spec.ndim <= axis <= spec.ndim and spec.ndim > 0,
            self,
            f"axis_{which} must lie in [{-spec.ndim}, {spec.ndim}] for an input of shape {spec.shape}, got {axis}",
        )
        axis = axis if axis >= 0 else axis + spec.ndim
        rows, columns = math.prod(spec.shape[:axis]), math.prod(spec.shape[axis:])
        return (columns, rows) if transposed else (rows, columns)

    def infer(self, a: TensorSpec, b: TensorSpec, like: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, A=a, B=b)
        m, n, _ = self.sizes(a, b)
        if like is None:
            return (a.with_shape((m, n)),)
        text = f"like must have {m} x {n} elements, as the product has, got shape {like.shape}"
        require(like.size == m * n, self, text)
        return (a.with_shape(like.shape),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        a, b, dy = g.input("A"), g.input("B"), g.d_output("Y")
        to_a, to_b = [g.d_input("A")], [g.d_input("B")]
        if self.trans_a:
            one = make_op("MatMul", [b, dy, a], to_a, axis_a=self.axis_b, trans_a=self.trans_b or None, trans_b=1)
        else:
            one = make_op("MatMul", [dy, b, a], to_a, axis_b=self.axis_b, trans_b=None if self.trans_b else 1)
        if self.trans_b:
            two = make_op("MatMul", [dy, a, b], to_b, axis_b=self.axis_a, trans_a=1, trans_b=self.trans_a or None)
        else:
            two = make_op("MatMul", [a, dy, b], to_b, axis_a=self.axis_a, trans_a=None if self.trans_a else 1)
        return [one, two]

    def flops(self, a: TensorSpec, b: TensorSpec, like: TensorSpec | None = None) -> int:
        m, n, k = self.sizes(a, b)
        return 2 * m * n * k


def _matrices(op: MatMul, a: Any, b: Any) -> tuple[Any, Any]:
    m, n, k = op.sizes(spec_of(a), spec_of(b))
    left = a.reshape(k, m).T if op.trans_a else a.reshape(m, k)
    return left, b.reshape(n, k).T if op.trans_b else b.reshape(k, n)


@kernel(MatMul)
def mat_mul(op: MatMul, ctx: RunContext, a: Any, b: Any, like: Any = None) -> tuple[Any, ...]:
    left, right = _matrices(op, widen(a), widen(b))
    y = narrow(left @ right, a)
    return (y if like is None else y.reshape(like.shape),)


@prepare(MatMul, device=CPU)
def _prepare_mat_mul(op: MatMul, ctx: PlanContext, a: TensorSpec, b: TensorSpec, *like: TensorSpec) -> Prepared | None:
    if not one_float_type(a, b):
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        left, right = _matrices(op, inputs[0], inputs[1])
        return partial(np.dot, left, right, outputs[0].reshape(len(left), -1))

    return Prepared([a.plain, b.plain, *(None for _ in like)], op.infer(a, b, *like), bind, name="numpy.dot")


@register
@dataclass(frozen=True)
class BatchMatMul(Operator):
    """Y[i] = A[i] B[i] for stacks of matrices, which ``trans_a`` and ``trans_b`` transpose.

    With ``broadcast``, the leading axes are broadcast as by NumPy. A vector A is a row, a vector B a column, which is
    multiplied with each matrix of the other input; Y does not have its axis. The product of two vectors is (1,).
    Gradients are those of stacks of matrices, not of vectors.
    """

    signature = """
        A (..., M, K) or (..., K, M) or (K): float, the second with trans_a
        B (..., K, N) or (..., N, K) or (K): as A, the second with trans_b
        -> Y (..., M, N) or (...): as A
    """
    copy_arguments = False
    trans_a: bool = False
    trans_b: bool = False
    broadcast: bool = False

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, A=a, B=b)
        require(a.ndim >= 1 and b.ndim >= 1, self, f"A and B must not be scalars, got {a.shape} and {b.shape}")
        left, right = self._row(a.shape), self._column(b.shape)
        (m, k), (k_b, n) = left[-2:], right[-2:]
        require(k == k_b, self, f"the inner extents of A {a.shape} and B {b.shape} must be equal, got {k} and {k_b}")
        if a.ndim == 1 or b.ndim == 1:
            stack, extents = left[:-2] + right[:-2], ((m,) if a.ndim > 1 else ()) + ((n,) if b.ndim > 1 else ())
            return (a.with_shape(stack + extents if stack + extents else (1,)),)
        return (a.with_shape((*self._stack(left[:-2], right[:-2]), m, n)),)

    def _row(self, a: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of A as a stack of matrices, after ``trans_a``."""
        return (1, *a) if len(a) == 1 else (*a[:-2], *a[-2:][:: -1 if self.trans_a else 1])

    def _column(self, b: tuple[int, ...]) -> tuple[int, ...]:
        return (*b, 1) if len(b) == 1 else (*b[:-2], *b[-2:][:: -1 if self.trans_b else 1])

    def _stack(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        if not self.broadcast:
            require(a == b, self, f"the leading extents must be equal, got {a} and {b}; or set broadcast=1")
            return a
        ndim = max(len(a), len(b))
        wide_a, wide_b = (1,) * (ndim - len(a)) + a, (1,) * (ndim - len(b)) + b
        require(
            all(p == q or p == 1 or q == 1 for p, q in zip(wide_a, wide_b)),
            self,
            f"the leading extents {a} and {b} cannot be broadcast together",
        )
        return tuple(q if p == 1 else p for p, q in zip(wide_a, wide_b))

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        a, b, dy = g.input("A"), g.input("B"), g.d_output("Y")
        left, right = bool(self.trans_a), bool(self.trans_b)
        factors_a = ([b, dy], {"trans_a": right, "trans_b": True}) if left else ([dy, b], {"trans_b": not right})
        factors_b = ([dy, a], {"trans_a": True, "trans_b": left}) if right else ([a, dy], {"trans_a": not left})
        made = []
        for name, blob, (factors, turned) in (("A", a, factors_a), ("B", b, factors_b)):
            result = g.d_input(name)
            arguments: dict[str, Any] = {key: 1 for key, value in turned.items() if value}
            if not self.broadcast:
                made.append(make_op("BatchMatMul", factors, [result], **arguments))
                continue
            whole = f"{result}_of_all"  # not summed over the axes along which the factor was broadcast
            made.append(make_op("BatchMatMul", factors, [whole], broadcast=1, **arguments))
            made.append(make_op("ExpandGradient", [whole, blob], [result]))
        return made

    def flops(self, a: TensorSpec, b: TensorSpec) -> int:
        return 2 * self.infer(a, b)[0].size * self._row(a.shape)[-1]


@kernel(BatchMatMul)
def batch_mat_mul(op: BatchMatMul, ctx: RunContext, a: Any, b: Any) -> tuple[Any, ...]:
    left, right = widen(a), widen(b)
    left = left.swapaxes(-1, -2) if op.trans_a and a.ndim > 1 else left
    right = right.swapaxes(-1, -2) if op.trans_b and b.ndim > 1 else right
    y = ctx.xp.matmul(left, right)
    return (narrow(y.reshape(1) if a.ndim == b.ndim == 1 else y, a),)
