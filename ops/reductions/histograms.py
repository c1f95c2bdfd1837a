"""Histograms of values: between given bounds and accumulated over runs, or over the range of the values."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import count_rows
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AccumulateHistogram", "SelfBinningHistogram"]

_INT64 = np.dtype(np.int64)
_STRETCH = 1.0001  # the range is extended by this factor, so that the largest value is below the last edge


@register
@dataclass(frozen=True)
class AccumulateHistogram(Operator):
    """CurHist = the number of values of X in each bucket; AccHist = the same over all runs so far. No gradient.

    There are ``num_buckets`` buckets of equal width between ``lower_bound`` and ``upper_bound``, each without its upper
    end. The first count is of the values below them, the last one of all other values.
    """

    signature = "X (...): float -> CurHist (num_buckets + 2): int64, AccHist (num_buckets + 2): int64"
    stateful = True
    effects = ""
    flops_per_element = 3
    lower_bound: float = 0.0
    upper_bound: float = 1.0
    num_buckets: int = 1

    def check(self) -> None:
        if self.num_buckets < 1 or not self.lower_bound < self.upper_bound:
            raise ArgumentError(
                "AccumulateHistogram: num_buckets must be at least 1 and lower_bound below upper_bound, got "
                f"{self.num_buckets}, {self.lower_bound} and {self.upper_bound}"
            )

    def accumulated(self, counts: Any) -> Any:
        """Return the counts of all runs including this one, and store them for the next run."""
        previous = self.__dict__.get("_accumulated")
        total = counts.copy() if previous is None else previous + counts
        object.__setattr__(self, "_accumulated", total)
        return total.copy()


@kernel(AccumulateHistogram)
def accumulate_histogram(op: AccumulateHistogram, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp, values = ctx.xp, x.reshape(-1)
    lower, upper = values.dtype.type(op.lower_bound), values.dtype.type(op.upper_bound)
    size = values.dtype.type((op.upper_bound - op.lower_bound) / op.num_buckets)
    inside = (values >= lower) & (values < upper)
    bucket = xp.clip(xp.floor((xp.where(inside, values, lower) - lower) / size).astype(int), 0, op.num_buckets - 1) + 1
    bucket = xp.where(inside, bucket, xp.where(values < lower, 0, op.num_buckets + 1))
    counts = count_rows(xp, bucket, op.num_buckets + 2)
    return counts, op.accumulated(counts)


@register
@dataclass(frozen=True)
class SelfBinningHistogram(Operator):
    """histogram_values = ``num_bins`` + 1 edges, evenly spaced from the smallest value of all inputs. No gradient.

    The last edge is above the largest value by a ten-thousandth of the range. histogram_counts[i] is the number of
    values v with edge[i] <= v < edge[i + 1]; the last count is 0. With ``bin_spacing`` "logarithmic" the ratio of
    neighboring edges is constant, and values below ``logspace_start`` are replaced by it. With ``abs`` the histogram is
    of the absolute values.
    """

    signature = """
        X+ (...): one float
        -> histogram_values (num_bins + 1): as X
        -> histogram_counts (num_bins + 1): int64
    """
    num_bins: int = 0
    bin_spacing: str = "linear"
    logspace_start: float = 1e-24
    abs: bool = False

    def check(self) -> None:
        if self.num_bins < 1:
            raise ArgumentError(
                f"SelfBinningHistogram: Number of bins must be greater than or equal to 1, got num_bins={self.num_bins}"
            )
        if self.bin_spacing not in ("linear", "logarithmic"):
            raise ArgumentError(
                f"SelfBinningHistogram: bin_spacing must be linear or logarithmic, got {self.bin_spacing!r}"
            )
        if self.bin_spacing == "logarithmic" and not self.logspace_start > 0:
            raise ArgumentError(f"SelfBinningHistogram: logspace_start must be positive, got {self.logspace_start}")

    def flops(self, *xs: TensorSpec) -> int:
        return sum(x.size for x in xs) * max(1, self.num_bins.bit_length())


@kernel(SelfBinningHistogram)
def self_binning_histogram(op: SelfBinningHistogram, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    xp, dtype = ctx.xp, xs[0].dtype
    values = widen(xp.concatenate([x.reshape(-1) for x in xs]))
    if not values.size:
        return xp.zeros(op.num_bins + 1, dtype), xp.zeros(op.num_bins + 1, _INT64)
    values = abs(values) if op.abs else values
    steps = xp.arange(op.num_bins + 1)
    if op.bin_spacing == "logarithmic":
        values = xp.maximum(values, values.dtype.type(op.logspace_start))
    least = values.min().astype(float)
    most = least + (values.max().astype(float) - least) * _STRETCH
    if op.bin_spacing == "linear":
        edges = least + steps * ((most - least) / op.num_bins)
    else:
        edges = xp.exp(xp.log(least) + steps * (xp.log(most / least) / op.num_bins))
    edges = edges.astype(values.dtype)
    edges[0] = values.min()
    bins = xp.clip(xp.searchsorted(edges, values, side="right") - 1, 0, op.num_bins - 1)
    bins = xp.where(values > edges[0], bins, 0)
    return narrow(edges, xs[0]), count_rows(xp, bins, op.num_bins + 1)
