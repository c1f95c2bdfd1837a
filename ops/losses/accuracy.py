"""Accuracy: the fraction of rows whose label is among the classes with the greatest scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import one_float_type, require_one_float_type
from netbuilder.ops.core.labels import check_label_spec
from netbuilder.ops.core.operator import BatchMean, Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import ArgumentError

__all__ = ["Accuracy"]


@register
@operator_class(frozen=True)
class Accuracy(Operator):
    """The fraction of rows of P whose label is among the ``top_k`` greatest scores; ties go to the lower class.

    Inputs:
        P (N, C): float
        label (N): int
    Outputs:
        accuracy (): as P
    """

    inputs = ("P", "label")
    outputs = ("accuracy",)
    top_k: int = 1

    def check(self) -> None:
        if self.top_k < 1:
            raise ArgumentError(f"Accuracy: top_k must be at least 1, got {self.top_k}")

    def infer(self, p: TensorSpec, label: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, P=p)
        require(p.ndim == 2 and p.shape[1] >= 1, self, f"P must be (rows, classes), got shape {p.shape}")
        check_label_spec(self, label, p.shape[0])
        return (p.with_shape(()),)

    def batch_mean(self) -> BatchMean:
        return BatchMean("rows", (0,))

    def flops(self, p: TensorSpec, label: TensorSpec) -> int:
        return 2 * p.size


@kernel(Accuracy)
def accuracy(op: Accuracy, ctx: RunContext, p: Any, label: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    n, classes = p.shape
    labels = label.reshape(-1)
    known = (labels >= 0) & (labels < classes)  # a label out of range counts as wrong
    labels = xp.where(known, labels, 0)[:, None]
    own = xp.take_along_axis(p, labels, axis=1)
    before = xp.arange(classes) < labels
    better = ((p > own) | ((p == own) & before)).sum(axis=1)
    correct = ((better < op.top_k) & known).sum()
    return (xp.asarray(correct / max(n, 1), dtype=p.dtype).reshape(()),)


@prepare(Accuracy, device=CPU)
def _prepare_accuracy(op: Accuracy, ctx: PlanContext, p: TensorSpec, label: TensorSpec) -> Prepared | None:
    """Bind the usual case, ``top_k`` = 1."""
    if op.top_k != 1 or not one_float_type(p):
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        rows, labels, y = inputs[0], inputs[1].reshape(-1), outputs[0]
        best, correct, factor = np.empty(len(rows), np.intp), np.empty(len(rows), bool), 1 / len(rows)
        equal, count = np.equal, np.count_nonzero

        def call() -> None:
            rows.argmax(1, best)  # ties go to the lower class, as in the plain kernel
            equal(best, labels, correct)
            y[()] = count(correct) * factor

        return call

    return Prepared([p.plain, label.plain], [p.with_shape(())], bind, name="numpy.argmax")
