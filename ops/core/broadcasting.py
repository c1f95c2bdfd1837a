"""Broadcasting of two operands: Caffe2's older rule (``broadcast``, ``axis``) and NumPy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["MOST_AXES", "Broadcasting", "broadcast_shape", "placed_shape", "start_axis", "sum_to"]

Shape = tuple[int, ...]
MOST_AXES = 32  # that NumPy broadcasts


def start_axis(op_type: str, axis: int, axis_str: str, order: str, a: Shape, b: Shape) -> int:
    """Return the axis of ``a`` that the first axis of ``b`` corresponds to; by default, ``b`` is a suffix of ``a``.

    Raises:
        ArgumentError: both ``axis`` and ``axis_str`` are given, or ``axis_str`` is not an axis of ``order``.
    """
    if axis_str:
        if axis != -1:
            raise ArgumentError(f"{op_type}: give axis or axis_str, not both; got axis={axis}, axis_str={axis_str!r}")
        if len(axis_str) != 1 or axis_str not in order:
            raise ArgumentError(f"{op_type}: axis_str must be one letter of order {order!r}, got {axis_str!r}")
        return order.index(axis_str)
    return len(a) - len(b) if axis == -1 else axis


def placed_shape(op: Operator, a: Shape, b: Shape, start: int) -> Shape:
    """Return the shape of ``b`` with which NumPy's rule aligns it with ``a`` at axis ``start``.

    Raises:
        ShapeError: the extents of ``b``, without leading and trailing ones of 1, are not those of ``a`` at that axis.
    """
    leading = next((i for i, n in enumerate(b) if n != 1), len(b))
    core = b[leading:]
    while core and core[-1] == 1:
        core = core[:-1]
    first = start + leading
    require(
        0 <= start and first + len(core) <= len(a) and a[first : first + len(core)] == core,
        op,
        f"with broadcast=1 the shape of B must equal consecutive axes of A, from axis {start} on: A is {a}, B is {b}",
    )
    return core + (1,) * (len(a) - first - len(core))


@dataclass(frozen=True)
class Broadcasting(Operator):
    """Base of operators on two operands A and B.

    Without ``broadcast``, shapes broadcast as in NumPy. With it, B's shape equals consecutive axes of A: from ``axis``
    on, or from the axis that ``axis_str`` names in ``order``, by default the last ones. B may have axes of extent 1
    at either end instead, and a B with one element is a scalar.
    ``allow_broadcast_fastpath`` has no effect; Caffe2's nets have it.
    """

    in_batch: ClassVar[InBatch] = InBatch.ROW_BY_ROW
    broadcast: bool = False
    axis: int = -1
    axis_str: str = ""
    order: str = "NCHW"
    allow_broadcast_fastpath: bool = False

    def check(self) -> None:
        if not self.broadcast and (self.axis != -1 or self.axis_str):
            raise ArgumentError(
                f"{self.type}: axis and axis_str need broadcast=1; got axis={self.axis}, axis_str={self.axis_str!r}"
            )
        start_axis(self.type, self.axis, self.axis_str, self.order, (), ())

    def view(self, a: Shape, b: Shape) -> Shape:
        """Return the shape of B with which NumPy's rule broadcasts it to A."""
        if not self.broadcast:
            return b
        if math.prod(b) == 1:
            return ()
        start = start_axis(self.type, self.axis, self.axis_str, self.order, a, b)
        return placed_shape(self, a, b, start)

    def joined(self, a: TensorSpec, b: TensorSpec) -> Shape:
        """Return the shape of the result.

        Raises:
            ShapeError: the operands' shapes do not broadcast, or their types differ.
        """
        if a.dtype != b.dtype:  # a condition of its own: texts of types take longer than all else here
            require(False, self, f"A and B must have the same type, got {a.dtype} and {b.dtype}")
        view = self.view(a.shape, b.shape)
        ndim = max(a.ndim, len(view))
        require(ndim <= MOST_AXES, self, f"A and B must have at most {MOST_AXES} axes, got {ndim}")
        if view in ((), a.shape):
            return a.shape
        try:
            shape = tuple(np.broadcast_shapes(a.shape, view))
        except ValueError:
            shape = ()
            require(False, self, f"A {a.shape} and B {b.shape} do not broadcast{differing(a.shape, view)}")
        return shape

    def aligned(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Return the operands in shapes that broadcast by NumPy's rule."""
        return a, b.reshape(self.view(a.shape, b.shape))


def broadcast_shape(op: Operator, **shapes: Shape) -> Shape:
    """Return the shape that the shapes of an operator's inputs, by name, have when broadcast by NumPy's rule.

    Raises:
        ShapeError: they cannot be, or have too many axes.
    """
    ndim = max(map(len, shapes.values()))
    require(ndim <= MOST_AXES, op, f"inputs must have at most {MOST_AXES} axes, got {ndim}")
    try:
        return tuple(np.broadcast_shapes(*shapes.values()))
    except ValueError:
        text = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ShapeError(f"{op.type}: {text} do not broadcast") from None


def differing(a: Shape, b: Shape) -> str:
    """Return the end of a message: the last axis along which two shapes differ, and neither is 1.

    >>> differing((4, 30, 32), (20, 32))
    ': along the last axis but 1, A has 30 elements and B 20; they must be equal, or one of them 1'
    """
    for back, (m, n) in enumerate(zip(reversed(a), reversed(b))):
        if m != n and 1 not in (m, n):
            where = f"the last axis but {back}" if back else "the last axis"
            return f": along {where}, A has {m} elements and B {n}; they must be equal, or one of them 1"
    return ""


def sum_axes(shape: Shape, view: Shape) -> Shape:
    """Return the axes of ``shape`` along which an operand of shape ``view`` was repeated."""
    full = (1,) * (len(shape) - len(view)) + tuple(view)
    return tuple(i for i, (n, m) in enumerate(zip(shape, full)) if m == 1 and (n != 1 or i < len(shape) - len(view)))


def sum_to(x: Any, view: Sequence[int], shape: Sequence[int]) -> Any:
    """Return ``x`` summed over the axes along which an operand of shape ``view`` was repeated, as ``shape``."""
    axes = sum_axes(tuple(x.shape), tuple(view))
    if not axes:
        return x.reshape(tuple(shape))
    wide = np.float32 if x.dtype == np.float16 else x.dtype
    return x.sum(axis=axes, dtype=wide).astype(x.dtype, copy=False).reshape(tuple(shape))
