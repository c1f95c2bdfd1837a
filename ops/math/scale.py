"""Scale and WeightedSum: tensors times scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.data_types import exact_reciprocal
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Scale", "WeightedSum", "WeightedSumGradient"]


@register
@dataclass(frozen=True)
class Scale(Operator):
    """Y = scale * X.

    A saved operator stores its scale as float32. If that is the float32 nearest to 1/n, as the loss scale of n devices
    is, float64 X are multiplied by the float64 nearest to 1/n.
    """

    signature = "X (*S): float -> Y (*S): as X"
    inplace = ((0, 0),)
    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW
    scale: float = 1.0

    def factor(self, dtype: np.dtype[Any]) -> Any:
        """Return the scale in the type of X."""
        return dtype.type(exact_reciprocal(self.scale) if dtype == np.float64 else self.scale)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Scale", [g.d_output("Y")], [g.d_input("X")])]


@kernel(Scale)
def scale(op: Scale, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x * op.factor(x.dtype),)


def _check_pairs(op: Operator, pairs: Sequence[TensorSpec]) -> None:
    for i in range(0, len(pairs), 2):
        x, w = pairs[i], pairs[i + 1]
        require(
            x.shape == pairs[0].shape and x.dtype == pairs[0].dtype,
            op,
            f"X{i // 2} must have the shape and type of X0, {pairs[0].shape} {pairs[0].dtype}; got {x.shape} {x.dtype}",
        )
        require(w.size == 1, op, f"weight {i // 2} must have one element, got shape {w.shape}")
    require(pairs[0].dtype.kind == "f", op, f"the tensors must have floating-point numbers, got {pairs[0].dtype}")


@register
@dataclass(frozen=True)
class WeightedSum(Operator):
    """Y = w0 * X0 + w1 * X1 + ...; the inputs are X0, w0, X1, w1, ..., each weight of one element.

    With ``grad_on_w`` the weights have gradients too.
    """

    signature = """
        X0 (*S): float
        w0 {1}: float|int
        more* (...): float|int, tensors of X0's shape and type, each followed by its weight
        -> Y (*S): as X0
    """
    inplace = ((0, 0),)
    in_batch = InBatch.ROW_BY_ROW
    grad_on_w: bool = False

    def check(self) -> None:
        if self.n_in % 2:
            raise NetError(f"WeightedSum takes pairs of a tensor and its weight, got {self.n_in} inputs")

    def check_inputs(self, *pairs: TensorSpec) -> None:
        _check_pairs(self, pairs)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        count = len(g.op.input)
        inputs = [g.d_output("Y"), *(g.input(i) for i in range(count))]
        outputs = [g.d_input(i) for i in range(0, count, 2)]
        if self.grad_on_w:
            outputs += [g.d_input(i) for i in range(1, count, 2)]
        return [make_op("WeightedSumGradient", inputs, outputs)]

    def flops(self, *pairs: TensorSpec) -> int:
        return (len(pairs) - 1) * pairs[0].size


@kernel(WeightedSum)
def weighted_sum(op: WeightedSum, ctx: RunContext, *pairs: Any) -> tuple[Any, ...]:
    kind = pairs[0].dtype
    wide = np.dtype(np.float32) if kind == np.float16 else kind
    terms = [
        x.astype(wide, copy=False) * w.astype(wide, copy=False).reshape(()) for x, w in zip(pairs[::2], pairs[1::2])
    ]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return (total.astype(kind, copy=False),)


@register
@dataclass(frozen=True)
class WeightedSumGradient(Operator):
    """dXi = wi * dY for each i and, with ``grad_on_w``, dwi = sum(Xi * dY); inputs are dY, X0, w0, X1, w1, ..."""

    signature = "dY, X0, w0, more* -> dX+"
    grad_on_w: bool = False

    def check(self) -> None:
        if self.n_in % 2 == 0:
            raise NetError(f"WeightedSumGradient takes dY and pairs of a tensor and its weight, got {self.n_in} inputs")
        count = (self.n_in - 1) // 2 * (2 if self.grad_on_w else 1)
        if self.n_out != count:
            raise NetError(
                f"WeightedSumGradient: makes {count} outputs of {self.n_in} inputs with grad_on_w={self.grad_on_w}, "
                f"got {self.n_out}"
            )

    def infer(self, dy: TensorSpec, *pairs: TensorSpec) -> tuple[TensorSpec, ...]:
        _check_pairs(self, pairs)
        require(dy.shape == pairs[0].shape, self, f"dY {dy.shape} must have the shape of X0, {pairs[0].shape}")
        tensors = tuple(s.plain for s in pairs[::2])
        return tensors + tuple(s.plain for s in pairs[1::2]) if self.grad_on_w else tensors


@kernel(WeightedSumGradient)
def weighted_sum_gradient(op: WeightedSumGradient, ctx: RunContext, dy: Any, *pairs: Any) -> tuple[Any, ...]:
    d_tensors = tuple(dy * w.astype(dy.dtype, copy=False).reshape(()) for w in pairs[1::2])
    if not op.grad_on_w:
        return d_tensors
    wide = np.float32 if dy.dtype == np.float16 else dy.dtype
    d_weights = ((x * dy).sum(dtype=wide).astype(w.dtype).reshape(w.shape) for x, w in zip(pairs[::2], pairs[1::2]))
    return d_tensors + tuple(d_weights)
