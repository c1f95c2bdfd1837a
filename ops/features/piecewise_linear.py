"""PiecewiseLinearTransform: predictions transformed by piecewise linear functions."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segmented_search import first_not_below
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["PiecewiseLinearTransform"]


@register
@dataclass(frozen=True)
class PiecewiseLinearTransform(Operator):
    """transforms = predictions, each column transformed by a piecewise linear function of its own.

    ``bounds`` concatenates the functions' bounds: where the pieces begin, ascending, and where the last one ends;
    ``slopes`` and ``intercepts`` have one number per piece. They may be given as inputs instead. Predictions are
    clipped to the bounds. With ``binary`` there is one function: for a vector or a single column; of two columns, it
    transforms the second, and the first becomes 1 minus the result. No gradient.
    """

    signature = """
        predictions (...): float
        bounds? (...): as predictions
        slopes? (...): as predictions
        intercepts? (...): as predictions
        -> transforms: as predictions
    """
    flops_per_element = 8
    bounds: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()
    intercepts: tuple[float, ...] = ()
    binary: bool = False

    def check(self) -> None:
        lists = (self.bounds, self.slopes, self.intercepts)
        if self.n_in not in (1, 4) or (self.n_in == 4) == all(lists) or any(lists) != all(lists):
            raise ArgumentError(
                "PiecewiseLinearTransform: bounds, slopes and intercepts must be given, all as arguments or all as "
                f"inputs; got {self.n_in} inputs and arguments with {', '.join(str(len(v)) for v in lists)} numbers"
            )

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index else "here"

    def check_inputs(self, predictions: TensorSpec, *functions: TensorSpec) -> None:
        if self.binary:
            valid = predictions.ndim == 1 or (predictions.ndim == 2 and predictions.shape[1] in (1, 2))
            require(valid, self, f"binary predictions must have one or two columns, got shape {predictions.shape}")
        else:
            require(predictions.ndim == 2, self, f"predictions must be (samples, columns), got {predictions.shape}")
        groups = 1 if self.binary else predictions.shape[1]
        lengths = [f.size for f in functions] or [len(self.bounds), len(self.slopes), len(self.intercepts)]
        valid = lengths[1] == lengths[2] and lengths[1] >= groups and lengths[1] % max(groups, 1) == 0
        expected = lengths[1] + groups
        text = f"for {groups} functions, got {lengths[0]}, {lengths[1]} and {lengths[2]} numbers"
        require(
            valid and lengths[0] == expected,
            self,
            f"bounds must have one number more than slopes and intercepts {text}",
        )


@kernel(PiecewiseLinearTransform)
def piecewise_linear_transform(
    op: PiecewiseLinearTransform, ctx: RunContext, predictions: Any, *functions: Any
) -> tuple[Any, ...]:
    xp, dtype = ctx.xp, predictions.dtype
    given: list[Any] = [ctx.host(f) for f in functions] or [op.bounds, op.slopes, op.intercepts]
    groups = 1 if op.binary else predictions.shape[1]
    if not groups:
        return (predictions.copy(),)
    bounds, slopes, intercepts = (np.array(f, dtype).reshape(groups, -1) for f in given)
    if not (np.diff(bounds, axis=1) > 0).all():
        raise ShapeError("PiecewiseLinearTransform: the bounds of each function must ascend")
    values = predictions.reshape(-1, 1) if predictions.ndim == 1 else predictions[:, -groups:]
    firsts, lasts = (xp.asarray(np.ascontiguousarray(bounds[:, side])) for side in (0, -1))
    values = xp.minimum(xp.maximum(values, firsts), lasts)
    count = bounds.shape[1]
    begin = xp.arange(groups) * count
    position = first_not_below(xp, xp.asarray(bounds.reshape(-1)), values, begin, begin + count, count) - begin
    piece = xp.clip(position - 1, 0, count - 2) + xp.arange(groups) * (count - 1)
    y = values * xp.asarray(slopes.reshape(-1))[piece] + xp.asarray(intercepts.reshape(-1))[piece]
    if predictions.ndim == 2 and groups < predictions.shape[1]:
        y = xp.concatenate([dtype.type(1) - y, y], axis=1)
    return (y.reshape(predictions.shape),)
