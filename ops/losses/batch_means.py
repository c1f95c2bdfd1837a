"""Means over the samples of several shares: MeanDivisor and WholeBatchMean.

A mean whose divisor the data determine, such as a sum of weights or a count of valid labels, has another divisor on
each share of a batch, so that the mean of the shares' means is not that of the batch. The shares add up their divisors,
and each scales its mean so that their mean is the mean over the whole batch.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["MeanDivisor", "WholeBatchMean"]

_KINDS = ("sum", "labels", "rows", "elements")


@register
@dataclass(frozen=True)
class MeanDivisor(Operator):
    """Y = the number by which a share of a batch divides a mean; 0 for a share without samples.

    Args:
        of: "sum": the sum of X; "labels": how many elements of X are not negative, or the sum of their weights, which
            the second input has; "rows": the number of rows of X, which are the axes before ``axis``; "elements": the
            product of the extents of ``axes``, by default of all.
        weighted: the last input is the weight of the share, 0 for one without samples, whose X takes their place.
    """

    signature = """
        X (*S): any
        others* (...): float, the weights of labels, then the weight of the share
        -> Y (1): float32|float64
    """
    of: str = "elements"
    axis: int = 1
    axes: tuple[int, ...] = ()
    weighted: bool = False

    def check(self) -> None:
        if self.of not in _KINDS:
            raise ArgumentError(f"MeanDivisor: of must be one of {', '.join(_KINDS)}, got {self.of!r}")

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any" if index == 0 and self.of in ("rows", "elements") else "here"

    def infer(self, x: TensorSpec, *others: TensorSpec) -> tuple[TensorSpec, ...]:
        weights = others[: len(others) - self.weighted]
        require(len(others) >= self.weighted, self, "needs the weight of the share as its last input")
        require(
            len(weights) <= (self.of == "labels"), self, f"of={self.of!r} takes one input and the weight of a share"
        )
        for index, other in enumerate(weights):
            require(other.size == x.size, self, f"input {index + 1} must have a weight for each label of X {x.shape}")
        if self.weighted:
            require(others[-1].size == 1, self, f"the weight of a share must be one number, got {others[-1].shape}")
        if self.of == "rows":
            require(-x.ndim <= self.axis <= x.ndim, self, f"axis must be one of X {x.shape}, got {self.axis}")
        for axis in self.axes:
            require(-x.ndim <= axis < x.ndim, self, f"axes must be those of X {x.shape}, got {self.axes}")
        return (TensorSpec((1,), _wide(*weights, *([x] if self.of != "labels" else []))),)


def _wide(*values: Any) -> np.dtype[Any]:
    """Return the type of a divisor that is computed from arrays or specs."""
    double = any(value.dtype == np.float64 for value in values)
    return np.dtype(np.float64 if double else np.float32)


@kernel(MeanDivisor)
def mean_divisor(op: MeanDivisor, ctx: RunContext, x: Any, *others: Any) -> tuple[Any, ...]:
    xp, weights = ctx.xp, others[: len(others) - op.weighted]
    dtype = _wide(*weights, *([x] if op.of != "labels" else []))
    if op.of == "sum":
        found = x.sum(dtype=dtype)
    elif op.of == "labels":
        valid = x >= 0
        found = xp.where(valid, weights[0].reshape(x.shape), 0).sum(dtype=dtype) if weights else valid.sum(dtype=dtype)
    elif op.of == "rows":
        found = math.prod(x.shape[: op.axis % x.ndim if op.axis != x.ndim else None])
    else:
        found = math.prod(x.shape[axis] for axis in op.axes) if op.axes else x.size
    result = xp.asarray(found, dtype=dtype).reshape(1)
    if op.weighted:
        result = xp.where(others[-1].reshape(1) > 0, result, dtype.type(0))
    return (result,)


@register
@dataclass(frozen=True)
class WholeBatchMean(Operator):
    """Y = X * parts * d(divisor) / (part * weight * d(total)), d(v) = max(v, least) + offset; 0 if d(v) or weight is 0.

    X is the mean over a share of a batch, or a gradient of it. The mean of the Y of all shares, weighted by their
    weights, is then the mean over the whole batch.

    Args:
        parts, part: the inverse of the weight of the share that is the same in each run: whole numbers.
        least, offset: what the mean makes of its divisor.
    """

    signature = """
        X (*S): float
        divisor {1}: float, that of this share
        total {1}: float, the sum over all shares
        weight? {1}: float, the weight of the share in the mean over the shares, on average 1
        -> Y (*S): as X
    """
    inplace = ((0, 0),)
    flops_per_element = 1
    parts: float = 1.0
    part: float = 1.0
    least: float = 0.0
    offset: float = 0.0

    def check(self) -> None:
        for name in ("least", "offset"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"WholeBatchMean: {name} must not be negative, got {getattr(self, name)}")
        for name in ("parts", "part"):
            if not 0 < getattr(self, name) < math.inf:
                raise ArgumentError(f"WholeBatchMean: {name} must be positive, got {getattr(self, name)}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        others = [g.input(index) for index in range(1, self.n_in)]
        return [make_op("WholeBatchMean", [g.d_output("Y"), *others], [g.d_input("X")])]


@kernel(WholeBatchMean)
def whole_batch_mean(
    op: WholeBatchMean, ctx: RunContext, x: Any, divisor: Any, total: Any, weight: Any = None
) -> tuple[Any, ...]:
    xp, values = ctx.xp, widen(x)
    like = values.dtype.type
    own, whole = (
        xp.maximum(given.reshape(()).astype(values.dtype), like(op.least)) + like(op.offset)
        for given in (divisor, total)
    )
    if weight is not None:
        whole = whole * xp.maximum(weight.reshape(()).astype(values.dtype), like(0))
    empty = (own <= 0) | (whole <= 0)
    factor = own * like(op.parts) / (like(op.part) * xp.where(empty, like(1), whole))
    return (narrow(xp.asarray(xp.where(empty, like(0), values) * factor), x),)
