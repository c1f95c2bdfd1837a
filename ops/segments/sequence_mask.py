"""SequenceMask: elements of sequences masked by lengths, by windows or by the diagonal."""

from __future__ import annotations

import math
import warnings
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SequenceMask"]

_BY_NUMBERS = ("sequence", "window")
_MODES = (*_BY_NUMBERS, "upper", "lower", "upperdiag", "lowerdiag")


@register
@dataclass(frozen=True)
class SequenceMask(Operator):
    """Y = X with ``fill_val`` at masked positions of X, flattened to a matrix at ``axis``.

    With ``batch``, there is one matrix for each index of the axes up to and including that one, all with one mask.
    Row i keeps the columns j with, by ``mode``: "sequence", j < lengths[i]; "window", |j - centers[i]| <= ``radius``;
    "upper", j <= i; "lower", j >= i; "upperdiag", j < i; "lowerdiag", j > i. With ``repeat_from_axis`` (mode
    "sequence"), the axes from that one on do not belong to the columns: each column is masked for all their elements.
    With ``grad`` the fill is 0.
    """

    signature = """
        X (*S): float
        numbers? (*B): int32|int64, the lengths of rows, or the centers of windows
        -> Y (*S): as X
    """
    inplace = ((0, 0),)
    mode: str = ""
    axis: int = 1
    repeat_from_axis: int = 0
    radius: int = 10
    fill_val: float = -math.inf
    grad: bool = False
    batch: int | None = None

    def check(self) -> None:
        if self.mode not in _MODES:
            raise ArgumentError(f"SequenceMask: mode must be one of {', '.join(_MODES)}, got {self.mode!r}")
        if self.batch is not None and self.repeat_from_axis:
            raise ArgumentError("SequenceMask: give batch or repeat_from_axis, not both")
        if self.repeat_from_axis and self.mode != "sequence":
            raise ArgumentError(f"SequenceMask: repeat_from_axis is for the mode sequence, got {self.mode!r}")
        if (self.n_in == 2) != (self.mode in _BY_NUMBERS):
            raise ArgumentError(
                f"SequenceMask: a second input is for the modes {' and '.join(_BY_NUMBERS)}, "
                f"got {self.n_in} inputs for {self.mode!r}"
            )

    def check_inputs(self, x: TensorSpec, numbers: TensorSpec | None = None) -> None:
        if x.ndim > 2 and self.batch is None and self.mode not in _BY_NUMBERS and not self.grad:
            warnings.warn(
                f"SequenceMask: mode {self.mode!r} without batch takes X of shape {x.shape} for one matrix, so that "
                "all but the first rows are masked otherwise than in a matrix of their own; to mask every matrix of "
                f"the last two axes alike, give axis={x.ndim - 1}, batch={x.ndim - 3}",
                UserWarning,
                stacklevel=2,
            )
        rows = self.parts(x.shape)[1]
        if numbers is not None:
            require(
                numbers.size == rows and numbers.dtype.kind == "i",
                self,
                f"the second input must hold {rows} integers, one per row, got {numbers.shape} of {numbers.dtype}",
            )

    def parts(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """Return the extents of X as it is masked: matrices, rows, columns, and elements that share a column.


        Raises:
            ShapeError: ``axis``, ``batch`` or ``repeat_from_axis`` is not an axis of X, or they are out of order.
        """
        n = len(shape)
        for name in ("axis", "batch", "repeat_from_axis"):
            value = getattr(self, name) or 0
            require(-n <= value < n, self, f"{name} must lie in [{-n}, {n}), got {value}")
        axis, repeat = self.axis % n, self.repeat_from_axis % n
        first = 0 if self.batch is None else self.batch % n + 1
        require(first <= axis, self, f"batch must be an axis before axis {axis}, got {self.batch}")
        end = repeat if self.repeat_from_axis else n
        require(axis < end, self, f"repeat_from_axis must be an axis after axis {axis}, got {self.repeat_from_axis}")
        ends = (0, first, axis, end, n)
        matrices, rows, columns, elements = (math.prod(shape[a:b]) for a, b in zip(ends, ends[1:]))
        return matrices, rows, columns, elements

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        numbers = [g.input("numbers")] if self.n_in == 2 else []
        return [make_op("SequenceMask", [g.d_output("Y"), *numbers], [g.d_input("X")], grad=True)]


@kernel(SequenceMask)
def sequence_mask(op: SequenceMask, ctx: RunContext, x: Any, numbers: Any = None) -> tuple[Any, ...]:
    xp = ctx.xp
    shape = op.parts(x.shape)
    i, j = xp.arange(shape[1])[:, None], xp.arange(shape[2])[None, :]
    if op.mode == "sequence":
        keep = j < numbers.reshape(-1, 1)
    elif op.mode == "window":
        keep = abs(j - numbers.reshape(-1, 1)) <= op.radius
    else:
        keep = {"upper": j <= i, "lower": j >= i, "upperdiag": j < i, "lowerdiag": j > i}[op.mode]
    fill = x.dtype.type(0 if op.grad else op.fill_val)
    return (xp.where(keep[:, :, None], x.reshape(shape), fill).reshape(x.shape),)
