"""Percentile and BisectPercentile: values mapped to percentiles, from samples of each feature's distribution."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segmented_search import first_not_below
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BisectPercentile", "Percentile"]

_Array = np.ndarray[Any, Any]


def _check_values(op: Operator, values: TensorSpec) -> None:
    require_one_float_type(op, values=values)
    require(values.ndim == 2, op, f"values must be (samples, features), got shape {values.shape}")


def _sample_ranges(lengths: _Array) -> tuple[_Array, _Array]:
    """Return the begin and the end of each feature's samples."""
    ends = np.cumsum(lengths)
    return ends - lengths, ends


def _ascending(values: _Array, begin: _Array, *, strictly: bool = False) -> bool:
    """Whether the samples of each feature are in ascending order, without repeats if ``strictly``."""
    steps = np.diff(values)
    within = np.ones(max(len(values) - 1, 0), bool)
    within[begin[1:] - 1] = False
    return bool((steps[within] > 0).all() if strictly else (steps[within] >= 0).all())


@register
@dataclass(frozen=True)
class Percentile(Operator):
    """percentile_values = the percentile of each value, interpolated linearly between samples. No gradient.

    The rows of value_to_pct are pairs of a sample and its percentile, feature after feature, each feature's in
    ascending order; lengths are the numbers of pairs per feature. Values below all samples give 0, above all 1.
    """

    signature = """
        original_values (N, D): float
        value_to_pct (M, 2): as original_values
        lengths (D): int32
        -> percentile_values (N, D): as original_values
    """

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index else "here"

    def gradient(self, g: Any) -> list[OperatorDef]:
        return []  # not differentiable


def _checked_ranges(op: Operator, values: _Array, lengths: _Array) -> tuple[_Array, _Array]:
    """Return the begin and the end of each feature's samples.

    Raises:
        ShapeError: lengths do not fit the samples, or the samples are not in ascending order.
    """
    if int(lengths.min(initial=1)) < 1 or int(lengths.sum()) != len(values):
        raise ShapeError(
            f"{op.type}: lengths must be 1 or more and add up to the {len(values)} samples, got {lengths.tolist()}"
        )
    begin, end = _sample_ranges(lengths)
    require(_ascending(values, begin), op, "the samples of each feature must be in ascending order")
    return begin, end


@kernel(Percentile)
def percentile(op: Percentile, ctx: RunContext, values: Any, pairs: Any, lengths: Any) -> tuple[Any, ...]:
    xp, samples, counts = ctx.xp, ctx.host(pairs), ctx.host(lengths)
    begin, end = map(xp.asarray, _checked_ranges(op, samples[:, 0], counts))
    known, percentiles = (xp.asarray(np.ascontiguousarray(column)) for column in samples.T)
    at = first_not_below(xp, known, values, begin, end, int(counts.max(initial=0)))
    here, before = xp.minimum(at, end - 1), xp.maximum(at - 1, begin)
    step = known[here] - known[before]
    fraction = (values - known[before]) / xp.where(step > 0, step, values.dtype.type(1))
    between = percentiles[before] + fraction * (percentiles[here] - percentiles[before])
    inside = xp.where(known[here] == values, percentiles[here], xp.where(at == begin, values.dtype.type(0), between))
    return (xp.where(at == end, values.dtype.type(1), inside),)


@register
@dataclass(frozen=True)
class BisectPercentile(Operator):
    """percentile = the percentile of each value, from samples given as arguments. No gradient.

    ``percentile_raw`` are the samples, feature after feature, each feature's in ascending order; ``lengths`` are their
    numbers per feature. A value equal to a sample gives the sample's ``percentile_mapping``. A value between two
    samples is interpolated linearly from the ``percentile_upper`` of the lower one to the ``percentile_lower`` of the
    higher one. Values below all samples give 0, above all 1.
    """

    signature = "raw_values (N, len(lengths)): float -> percentile: as raw_values"
    flops_per_element = 8
    percentile_raw: tuple[float, ...] = ()
    percentile_mapping: tuple[float, ...] = ()
    percentile_lower: tuple[float, ...] = ()
    percentile_upper: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()

    def check(self) -> None:
        lists = (self.percentile_mapping, self.percentile_lower, self.percentile_upper)
        count = len(self.percentile_raw)
        if any(len(values) != count for values in lists):
            raise ArgumentError(
                f"BisectPercentile: percentile_mapping, _lower and _upper must be as long as percentile_raw, {count}, "
                f"got {', '.join(str(len(values)) for values in lists)}"
            )
        if sum(self.lengths) != count or min(self.lengths, default=1) < 1:
            raise ArgumentError(
                f"BisectPercentile: lengths must be 1 or more and add up to {count} samples, got {self.lengths}"
            )
        begin, _ = _sample_ranges(np.array(self.lengths, np.int64))
        if not _ascending(np.array(self.percentile_raw), begin, strictly=True):
            raise ArgumentError("BisectPercentile: percentile_raw must be strictly ascending within each feature")

    def gradient(self, g: Any) -> list[OperatorDef]:
        return []  # not differentiable


@kernel(BisectPercentile)
def bisect_percentile(op: BisectPercentile, ctx: RunContext, values: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    known, mapping, lower, upper = (
        xp.asarray(np.array(column, values.dtype))
        for column in (op.percentile_raw, op.percentile_mapping, op.percentile_lower, op.percentile_upper)
    )
    begin, end = map(xp.asarray, _sample_ranges(np.array(op.lengths, np.int64)))
    at = first_not_below(xp, known, values, begin, end, max(op.lengths, default=0))
    here, before = xp.minimum(at, end - 1), xp.maximum(at - 1, begin)
    step = known[here] - known[before]
    fraction = (values - known[before]) / xp.where(step > 0, step, values.dtype.type(1))
    between = upper[before] + fraction * (lower[here] - upper[before])
    inside = xp.where(known[here] == values, mapping[here], xp.where(at == begin, values.dtype.type(0), between))
    return (xp.where(at == end, values.dtype.type(1), inside),)
