"""Class labels: one whole number per row, and the elements of the rows that they choose."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.operator import Operator, TensorSpec, require
from netbuilder.proto import ShapeError

__all__ = ["check_label_spec", "chosen"]


def check_label_spec(op: Operator, labels: TensorSpec, rows: int) -> None:
    """Raise ShapeError unless there is one whole number per row, as (rows,) or (rows, 1)."""
    require(labels.dtype.kind in "iu", op, f"labels must be whole numbers (int32), got {labels.dtype}")
    require(labels.size == rows, op, f"there must be one label per row, {rows} in all, got shape {labels.shape}")


def chosen(op: Operator, ctx: RunContext, labels: Any, classes: int) -> tuple[Any, Any]:
    """Return the index of the elements that labels choose in a matrix with a row per label.

    Raises:
        ShapeError: a label is not in [0, classes).
    """
    flat = labels.reshape(-1)
    if flat.size and not bool(((flat >= 0) & (flat < classes)).all()):
        raise ShapeError(
            f"{op.type}: labels must lie in [0, {classes}), the number of classes, "
            f"got {int(flat.min())} to {int(flat.max())}"
        )
    return ctx.xp.arange(flat.size), flat
