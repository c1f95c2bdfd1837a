"""APMeter: the average precision of each class over the latest samples."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["APMeter"]


@register
@dataclass(frozen=True)
class APMeter(Operator):
    """AP = the average precision of each class: the mean, over its samples, of the precision at the sample's rank.

    predictions are scores; labels are 1 where the sample has the class, else 0. Samples are ranked by their scores,
    ties by index; those with a score of NaN come last and count as not found. The latest ``buffer_size`` samples
    count, those of earlier runs included; a class that none of them has gets 0. No gradient.
    """

    signature = "predictions (N, C): float, labels (N, C): int32 -> AP (C): as predictions"
    stateful = True
    flops_per_element = 4
    buffer_size: int = 1000

    def check(self) -> None:
        if self.buffer_size < 1:
            raise ArgumentError(f"APMeter: buffer_size must be at least 1, got {self.buffer_size}")

    def latest(self, xp: Any, predictions: Any, labels: Any) -> tuple[Any, Any]:
        """Append the given samples to those of earlier runs; return and store the last ``buffer_size`` of them."""
        kept = self.__dict__.get("_kept")
        if kept is not None and kept[0].shape[1] == predictions.shape[1]:
            predictions, labels = (xp.concatenate(pair) for pair in zip(kept, (predictions, labels)))
        found = tuple(a[-self.buffer_size :].copy() for a in (predictions, labels))
        object.__setattr__(self, "_kept", found)
        return found[0], found[1]


@kernel(APMeter)
def ap_meter(op: APMeter, ctx: RunContext, predictions: Any, labels: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    scores, has = op.latest(xp, predictions, labels)
    order = xp.argsort(-scores, axis=0, kind="stable")
    hits = xp.take_along_axis((has > 0) & (scores == scores), order, axis=0)
    ranks = xp.arange(1, len(scores) + 1)[:, None]
    precision = xp.where(hits, xp.cumsum(hits, axis=0) / ranks, 0)
    return ((precision.sum(axis=0) / xp.maximum((has > 0).sum(axis=0), 1)).astype(predictions.dtype),)
