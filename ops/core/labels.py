"""Class labels: one integer per row, and the elements of a matrix that they select."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto import ShapeError

__all__ = [
    "ONE_LABEL_PER_ROW",
    "check_label_spec",
    "chosen",
    "label_error",
    "label_or_none_error",
    "require_integer_labels",
]


ONE_LABEL_PER_ROW = (
    "labels are integers, such as int32 or int64, one class number per row: convert others, for example with Cast, or "
    "arrays by .astype(np.int32) before they are fed, and one-hot labels by labels.argmax(axis=1)"
)
"""What the error about an input of labels advises."""


def check_label_spec(op: Operator, labels: TensorSpec, rows: int, scores: TensorSpec) -> None:
    """Raise ShapeError unless there is one integer per row of the scores, as (rows,) or (rows, 1)."""
    hint = ""
    if labels.size == scores.size:
        hint = "; for one-hot labels give the class numbers, such as labels.argmax(axis=-1), or label_prob=1"
    elif labels.shape == scores.shape[:-1]:
        hint = f"; with axis={labels.ndim} the rows of X {scores.shape} are those that have labels"
    require(labels.size == rows, op, f"there must be one label per row, {rows} in all, got shape {labels.shape}{hint}")
    require_integer_labels(op, labels)


def require_integer_labels(op: Operator, labels: TensorSpec) -> None:
    """Raise ShapeError unless labels are integers."""
    require(
        labels.dtype.kind in "iu",
        op,
        f"labels must be integers, such as int32 or int64, got {labels.dtype}; convert them, for example with Cast, or "
        f"arrays by .astype(np.int32) before they are fed",
    )


def chosen(op: Operator, ctx: RunContext, labels: Any, classes: int) -> tuple[Any, Any]:
    """Return the index of the elements that labels select in a matrix with one row per label.

    Raises:
        ShapeError: a label is not in [0, classes). On a GPU it is raised at the end of the run.
    """
    flat = labels.reshape(-1)
    if not isinstance(flat, np.ndarray):
        return ctx.xp.arange(flat.size), ctx.checked_range(
            flat, 0, classes, lambda label: label_error(op, classes, label)
        )
    if flat.size and not bool(((flat >= 0) & (flat < classes)).all()):
        raise label_error(op, classes, int(flat.min()) if flat.min() < 0 else int(flat.max()))
    return ctx.xp.arange(flat.size), flat


def label_error(op: Operator, classes: int, label: int) -> ShapeError:
    """Return the error for a label that is no class."""
    return ShapeError(f"{op.type}: labels must lie in [0, {classes}), the number of classes, got {label}")


def label_or_none_error(op: Operator, classes: int, label: int) -> ShapeError:
    """Return the error for a label that is neither a class nor -1, which stands for none."""
    return ShapeError(f"{op.type}: labels must be -1 or lie in [0, {classes}), the number of classes, got {label}")
