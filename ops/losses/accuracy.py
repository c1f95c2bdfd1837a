"""Accuracy: the fraction of rows whose label is among the classes with the greatest scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.half import one_float_type
from netbuilder.ops.core.labels import ONE_LABEL_PER_ROW
from netbuilder.ops.core.operator import BatchMean, Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Accuracy", "classes_before_label"]


@register
@dataclass(frozen=True)
class Accuracy(Operator):
    """The fraction of rows of P whose label is among the ``top_k`` greatest scores; ties go to the lower class.

    A row with NaN, or whose label is no class, counts as wrong. Without rows the result is 0. If there are no more than
    ``top_k`` classes, all other rows count as right.
    """

    signature = "P (N, C): float, label (N) or (N, 1): int -> accuracy (): as P"
    flops_per_element = 2
    remedies: ClassVar[dict[str, str]] = {"label": ONE_LABEL_PER_ROW}
    top_k: int = 1

    def check(self) -> None:
        if self.top_k < 1:
            raise ArgumentError(f"Accuracy: top_k must be at least 1, got {self.top_k}")

    def check_inputs(self, p: TensorSpec, label: TensorSpec) -> None:
        require(p.shape[1] >= 1, self, f"P must be (rows, classes), got shape {p.shape}")

    def batch_mean(self) -> BatchMean:
        return BatchMean("rows", (0,))


def classes_before_label(xp: Any, scores: Any, labels: Any) -> Any:
    """Return for each row how many classes come before its label, in the order in which metrics rank them.

    These are the classes with greater scores, and the lower ones with an equal score. For a row with NaN, and for a
    label that is no class, the result is greater than any number of classes.

    Args:
        xp: the array module.
        scores: (rows, classes).
        labels: (rows,), integers.

    >>> classes_before_label(np, np.array([[1.0, 3.0, 3.0], [np.nan, 1.0, 2.0]]), np.array([2, 2])).tolist()
    [1, 9223372036854775807]
    """
    classes = scores.shape[1]
    known = (labels >= 0) & (labels < classes) & (scores == scores).all(axis=1)
    chosen = xp.where(known, labels, 0)[:, None]
    own = xp.take_along_axis(scores, chosen, axis=1)
    before = (scores > own) | ((scores == own) & (xp.arange(classes) < chosen))
    return xp.where(known, before.sum(axis=1), np.iinfo(np.int64).max)


@kernel(Accuracy)
def accuracy(op: Accuracy, ctx: RunContext, p: Any, label: Any) -> tuple[Any, ...]:
    correct = (classes_before_label(ctx.xp, p, label.reshape(-1)) < op.top_k).sum()
    return (ctx.xp.asarray(correct / max(len(p), 1), dtype=p.dtype).reshape(()),)


@prepare(Accuracy, device=CPU)
def _prepare_accuracy(op: Accuracy, ctx: PlanContext, p: TensorSpec, label: TensorSpec) -> Prepared | None:
    """Bind the usual case, ``top_k`` = 1."""
    if op.top_k != 1 or not p.shape[0] or not one_float_type(p):
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        rows, labels, y = inputs[0], inputs[1].reshape(-1), outputs[0]
        best, correct, factor = np.empty(len(rows), np.intp), np.empty(len(rows), bool), 1 / len(rows)
        scores, starts = rows.reshape(-1), np.arange(0, rows.size, rows.shape[1])
        greatest, no_nan = np.empty(len(rows), rows.dtype), np.empty(len(rows), bool)
        equal, count = np.equal, np.count_nonzero

        def call() -> None:
            rows.argmax(1, best)  # ties go to the lower class, as in the plain kernel
            equal(best, labels, correct)
            scores.take(np.add(best, starts, best), None, greatest, "clip")  # NaN if there is one in the row
            equal(greatest, greatest, no_nan)
            y[()] = count(correct & no_nan) * factor

        return call

    return Prepared([p.plain, label.plain], [p.with_shape(())], bind, name="numpy.argmax")
