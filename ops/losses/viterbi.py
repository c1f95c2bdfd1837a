"""ViterbiPath, the best path through scores and transitions, and SwapBestPath, which gives the path the best scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SwapBestPath", "ViterbiPath"]


def _check_classes(op: Operator, scores: TensorSpec) -> None:
    require(scores.shape[1] > 0, op, f"the scores must have the shape (steps, classes), got {scores.shape}")


@register
@dataclass(frozen=True)
class ViterbiPath(Operator):
    """path = the classes c that maximize the sum of scores[t, c[t]] and transitions[c[t - 1], c[t]].

    Ties go to the lowest class, decided from the last step to the first.

    Source: Forney, "The Viterbi algorithm", Proceedings of the IEEE 61, 1973.
    """

    signature = "scores (T, C): float, transitions (C, C): as scores -> path (T): int32"

    def check_inputs(self, scores: TensorSpec, transitions: TensorSpec) -> None:
        _check_classes(self, scores)

    def flops(self, scores: TensorSpec, transitions: TensorSpec) -> int:
        return 2 * scores.shape[0] * transitions.size


@kernel(ViterbiPath)
def viterbi_path(op: ViterbiPath, ctx: RunContext, scores: Any, transitions: Any) -> tuple[Any, ...]:
    steps = scores.shape[0]
    path = np.zeros(steps, np.int32)
    if steps:
        best, previous = scores[0], []
        for row in scores[1:]:
            sums = best[:, None] + transitions
            previous.append(sums.argmax(axis=0))
            best = row + sums.max(axis=0)
        path[-1] = int(best.argmax())
        backpointers = ctx.host(ctx.xp.stack(previous)) if previous else ()
        for t in range(steps - 1, 0, -1):
            path[t - 1] = backpointers[t - 1][path[t]]
    return (ctx.xp.asarray(path),)


@register
@dataclass(frozen=True)
class SwapBestPath(Operator):
    """Y = the scores, with the greatest one of each row and that of the path's class exchanged."""

    signature = "scores (T, C): float, path (T): int32|int64 -> Y (T, C): as scores"
    inputs_on_host = (1,)
    flops_per_element = 1

    def check_inputs(self, scores: TensorSpec, path: TensorSpec) -> None:
        _check_classes(self, scores)


@kernel(SwapBestPath)
def swap_best_path(op: SwapBestPath, ctx: RunContext, scores: Any, path: Any) -> tuple[Any, ...]:
    count, classes = scores.shape
    expected = ctx.host(path).astype(np.int64)
    wrong = expected[(expected < 0) | (expected >= classes)]
    require(not wrong.size, op, f"the path's classes must lie in [0, {classes}), got {wrong[:1]}")
    best = scores.argmax(axis=1)
    first = ctx.xp.arange(count) * classes
    given, y = scores.reshape(-1), scores.reshape(-1).copy()
    chosen, best = first + ctx.xp.asarray(expected), first + best
    y[best], y[chosen] = given.take(chosen), given.take(best)
    return (y.reshape(scores.shape),)
