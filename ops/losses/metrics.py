"""Metrics of classifiers: Perplexity and MultiClassAccuracy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.labels import ONE_LABEL_PER_ROW, chosen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.losses.accuracy import classes_before_label
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["MultiClassAccuracy", "Perplexity"]

_INT32 = np.dtype(np.int32)


@register
@dataclass(frozen=True)
class Perplexity(Operator):
    """output = exp(-mean(log(probabilities))), a scalar, of the probability of each sample's label. No gradient.

    It is NaN without samples, and if a probability is NaN, negative or infinite.
    """

    signature = "probabilities (N) or (N, 1): float -> output (): as probabilities"
    flops_per_element = 2


@kernel(Perplexity)
def perplexity(op: Perplexity, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    p = widen(x)
    if not p.size:
        return (xp.full((), np.nan, x.dtype),)
    logs = xp.log(xp.where((p >= 0) & (p < np.inf), p, np.nan))
    return (narrow(xp.asarray(xp.exp(-logs.sum() / logs.dtype.type(x.size))), x).reshape(()),)


@register
@dataclass(frozen=True)
class MultiClassAccuracy(Operator):
    """For each class, the fraction of its samples that are classified correctly, and the number of its samples.

    The prediction is the class with the greatest score, the first of equal ones; a row with NaN counts as wrong. A
    class without samples has accuracy 0. No gradient.
    """

    signature = """
        prediction (N, C): float
        labels (N) or (N, 1): int
        -> accuracies (C): as prediction
        -> amounts (C): int32
    """
    flops_per_element = 2
    remedies: ClassVar[dict[str, str]] = {"labels": ONE_LABEL_PER_ROW}

    def check_inputs(self, scores: TensorSpec, labels: TensorSpec) -> None:
        require(scores.shape[1] > 0, self, f"prediction must be (rows, classes), got {scores.shape}")


@kernel(MultiClassAccuracy)
def multi_class_accuracy(op: MultiClassAccuracy, ctx: RunContext, scores: Any, labels: Any) -> tuple[Any, ...]:
    xp, classes = ctx.xp, scores.shape[1]
    _, flat = chosen(op, ctx, labels, classes)
    own = flat[:, None] == xp.arange(classes)
    amounts = own.sum(axis=0)
    correct = (own & (classes_before_label(xp, scores, flat) == 0)[:, None]).sum(axis=0)
    accuracies = correct / xp.maximum(amounts, 1)
    return accuracies.astype(scores.dtype), amounts.astype(_INT32)
