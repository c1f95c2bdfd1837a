"""Proposals of the levels of a feature pyramid: collected from all levels, and assigned to levels by size."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CollectAndDistributeFpnRpnProposals", "CollectRpnProposals", "DistributeFpnProposals"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Host(Operator, abc.ABC):
    inputs_on_host = True
    dynamic: ClassVar[bool] = True

    def flops(self, *inputs: TensorSpec) -> int:
        return 8 * sum(spec.shape[0] for spec in inputs if spec.ndim == 2)

    def check_levels(self, low: int, high: int, blobs: int, got: int, what: str) -> None:
        if not low <= high or got != (high - low + 1) * blobs:
            raise ArgumentError(
                f"{self.type}: levels {low} to {high} need {max(0, high - low + 1) * blobs} {what}, got {got}"
            )


@dataclass(frozen=True)
class _Collecting(_Host):
    rpn_min_level: int = 2
    rpn_max_level: int = 6
    rpn_post_nms_topN: int = 2000

    def check(self) -> None:
        self.check_levels(self.rpn_min_level, self.rpn_max_level, 2, self.n_in, "inputs, boxes and scores of each,")
        if self.rpn_post_nms_topN < 0:
            raise ArgumentError(f"{self.type}: rpn_post_nms_topN must not be negative, got {self.rpn_post_nms_topN}")

    def check_inputs(self, *inputs: TensorSpec) -> None:
        half = len(inputs) // 2
        for rois, scores in zip(inputs[:half], inputs[half:]):
            require_one_float_type(self, rois=rois, scores=scores)
            fits = rois.ndim == 2 and rois.shape[1] == 5 and scores.shape in (rois.shape[:1], (rois.shape[0], 1))
            require(
                fits, self, f"boxes must be (n, 5) and their scores (n,), got shapes {rois.shape} and {scores.shape}"
            )


@dataclass(frozen=True)
class _Distributing(_Host):
    roi_canonical_scale: int = 224
    roi_canonical_level: int = 4
    roi_min_level: int = 2
    roi_max_level: int = 5
    legacy_plus_one: bool = True

    def check_outputs(self, others: int) -> None:
        self.check_levels(self.roi_min_level, self.roi_max_level, 1, self.n_out - others, f"outputs besides {others}")
        if self.roi_canonical_scale <= 0:
            raise ArgumentError(f"{self.type}: roi_canonical_scale must be positive, got {self.roi_canonical_scale}")


@register
@dataclass(frozen=True)
class CollectRpnProposals(_Collecting):
    """rois = the ``rpn_post_nms_topN`` boxes of all levels with the best scores, best first. No gradient.

    The inputs are the boxes of levels ``rpn_min_level`` to ``rpn_max_level``, rows of an image index and a box as
    GenerateProposals returns them, then the scores of each level.
    """

    signature = """
        rpn_rois_and_scores+ (...): float, (R, 5) boxes of each level, then (R) scores of each
        -> rois (K, 5): float32
    """
    in_batch = InBatch.NOT_ADDITIVE


@register
@dataclass(frozen=True)
class DistributeFpnProposals(_Distributing):
    """The boxes of each level from ``roi_min_level`` to ``roi_max_level``, one output per level, and rois_idx_restore.

    A box with the area of a square of side ``roi_canonical_scale`` belongs to ``roi_canonical_level``, one four times
    as large to the next level. rois_idx_restore is the index of each row of rois in the concatenated outputs. With
    ``legacy_plus_one`` the right and lower edge belong to a box. No gradient.

    Source: Lin et al., "Feature Pyramid Networks for Object Detection", 2017, arXiv:1612.03144, section 4.2.
    """

    signature = """
        rois (R, D): float, D = 4 or 5
        -> first_level (M, D): float32
        -> further_levels_and_rois_idx_restore+ (...): float32|int32, (M, D) per level, then (R), int32
    """

    def check(self) -> None:
        self.check_outputs(1)

    def check_inputs(self, *inputs: TensorSpec) -> None:
        (rois,) = inputs
        fits = rois.ndim == 2 and rois.shape[1] in (4, 5) and rois.dtype.kind == "f"
        require(fits, self, f"rois must be floats with 4 or 5 columns, got {rois.shape} of {rois.dtype}")


@register
@dataclass(frozen=True)
class CollectAndDistributeFpnRpnProposals(_Distributing, _Collecting):
    """CollectRpnProposals, whose result is the first output, and DistributeFpnProposals of that result, the others."""

    signature = """
        rpn_rois_and_scores+ (...): float, (R, 5) boxes of each level, then (R) scores of each
        -> rois (K, 5): float32
        -> first_level (M, 5): float32
        -> further_levels_and_rois_idx_restore+ (...): float32|int32, (M, 5) per level, then (K), int32
    """
    in_batch = InBatch.NOT_ADDITIVE

    def check(self) -> None:
        super().check()
        self.check_outputs(2)


def _collect(op: _Collecting, inputs: Sequence[Array]) -> Array:
    half = len(inputs) // 2
    rois, scores = np.concatenate(inputs[:half]), np.concatenate([s.reshape(-1) for s in inputs[half:]])
    order = np.argsort(-scores, kind="stable")
    best: Array = rois[order[: op.rpn_post_nms_topN]]
    return best


def _distribute(op: _Distributing, rois: Array) -> list[Array]:
    """Return the boxes of each level, and the index of each box in the concatenation of these."""
    like = rois.dtype.type
    sides = rois[:, -2:] - rois[:, -4:-2] + like(op.legacy_plus_one)
    scale = np.sqrt(np.maximum(sides, 0).prod(axis=1)) / like(op.roi_canonical_scale)
    levels = np.floor(op.roi_canonical_level + np.log2(scale + like(1e-6)))
    levels = levels.clip(op.roi_min_level, op.roi_max_level)
    order = np.argsort(levels, kind="stable")
    parts = [rois[levels == level] for level in range(op.roi_min_level, op.roi_max_level + 1)]
    return [*parts, np.argsort(order, kind="stable").astype(np.int32)]


@kernel(CollectRpnProposals)
def collect_rpn_proposals(op: CollectRpnProposals, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    op.check_specs(*inputs)
    return (ctx.xp.asarray(_collect(op, [ctx.host(a) for a in inputs])),)


@kernel(DistributeFpnProposals)
def distribute_fpn_proposals(op: DistributeFpnProposals, ctx: RunContext, rois: Any) -> tuple[Any, ...]:
    op.check_specs(rois)
    return tuple(map(ctx.xp.asarray, _distribute(op, ctx.host(rois))))


@kernel(CollectAndDistributeFpnRpnProposals)
def collect_and_distribute(op: CollectAndDistributeFpnRpnProposals, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    op.check_specs(*inputs)
    rois = _collect(op, [ctx.host(a) for a in inputs])
    return tuple(map(ctx.xp.asarray, (rois, *_distribute(op, rois))))
