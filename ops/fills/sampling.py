"""Random indices and distinct integers: WeightedSample, WeightedMultiSampling, UniqueUniformFill."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.data_types import numpy_type
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.fills.fill import Fill
from netbuilder.proto import ArgumentError, NetError, ShapeError, TensorProto
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["UniqueUniformFill", "WeightedMultiSampling", "WeightedSample"]


@register
@dataclass(frozen=True)
class WeightedSample(Operator):
    """Draw an index for each row, with probabilities proportional to the row's weights.

    Weights must not be negative; if all weights of a row are 0, its index is 0. The second output is the value at the
    index. If there are no weights, the outputs have shape (0,).
    """

    signature = """
        sampling_weights (N, D): float32
        sampling_values? (N, D): float32
        -> sampled_indexes (N, 1) or (0): int32
        -> sampled_values? (N, 1) or (0): float32
    """
    stateful = True
    draws = True

    def check(self) -> None:
        if self.n_in != self.n_out:
            raise NetError(
                f"WeightedSample needs one output per input, got {counted(self.n_in, 'input')} and "
                f"{counted(self.n_out, 'output')}"
            )

    def infer(self, weights: TensorSpec, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_specs(weights, *values)
        index = TensorSpec((weights.shape[0], 1) if all(weights.shape) else (0,), np.dtype(np.int32))
        return (index, index.with_dtype(np.float32))[: self.n_out]


@kernel(WeightedSample)
def weighted_sample(op: WeightedSample, ctx: RunContext, weights: Any, values: Any = None) -> tuple[Any, ...]:
    if weights.size and not float(weights.min()) >= 0:
        raise ShapeError(f"WeightedSample: weights must not be negative, got {float(weights.min())}")
    if not weights.size:
        return tuple(ctx.xp.zeros(0, kind) for kind in (np.int32, np.float32))[: op.n_out]
    sums = ctx.xp.cumsum(weights, axis=1, dtype=np.float64)
    if not bool(ctx.xp.isfinite(sums).all()):
        raise ShapeError("WeightedSample: weights must be finite, got infinity or NaN")
    drawn = ctx.uniform((weights.shape[0], 1), per_sample=True) * sums[:, -1:]
    index = (sums <= drawn).sum(axis=1, keepdims=True)
    index = ctx.xp.where(sums[:, -1:] > 0, index, 0).astype(np.int32)
    if values is None:
        return (index,)
    return index, ctx.xp.take_along_axis(values, index, axis=1)


@register
@dataclass(frozen=True)
class WeightedMultiSampling(Operator):
    """Draw indices from one distribution, given by its cumulative sums: index i if a random number is below sum i.

    The sums must not be negative and must not decrease; they are normalized by the last one. ``num_samples`` indices
    are drawn, or as many as the second input has elements, in its shape; if there are no sums, none.
    """

    signature = "sampling_cdf (D): float32, shape_tensor? (...): any -> sampled_indexes (...): int32"
    stateful = True
    draws = True
    num_samples: int | None = None

    def check(self) -> None:
        if self.num_samples is not None and (self.num_samples < 0 or self.n_in == 2):
            raise ArgumentError(
                "WeightedMultiSampling: num_samples must not be negative, and must not be given together with "
                f"shape_tensor; got {self.num_samples} with {counted(self.n_in, 'input')}"
            )

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any" if index == 1 else "here"

    def infer(self, cdf: TensorSpec, like: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        require(
            cdf.ndim == 1 and cdf.dtype == np.float32,
            self,
            f"the sums must be a vector of float32, got shape {cdf.shape} of {cdf.dtype}",
        )
        shape = (self.num_samples or 0,) if like is None else like.shape
        return (TensorSpec(shape if cdf.size else (0,), np.dtype(np.int32)),)


@kernel(WeightedMultiSampling)
def weighted_multi_sampling(op: WeightedMultiSampling, ctx: RunContext, cdf: Any, like: Any = None) -> tuple[Any, ...]:
    shape = (op.num_samples or 0,) if like is None else tuple(like.shape)
    if not cdf.size:
        return (ctx.xp.zeros((0,), np.int32),)
    if not (float(cdf[0]) >= 0 and bool((cdf[1:] >= cdf[:-1]).all())):
        raise ShapeError(
            "WeightedMultiSampling: the sums must not be negative and must not decrease; give the cumulative sums of "
            "weights"
        )
    sums = cdf.astype(np.float64)
    index = ctx.xp.searchsorted(sums, ctx.uniform(shape, per_sample=True) * sums[-1], side="right")
    return (ctx.xp.where(sums[-1] > 0, index, 0).astype(np.int32),)


@register
@dataclass(frozen=True)
class UniqueUniformFill(Fill):
    """Y = distinct random integers from ``min`` to ``max``, both included, without those in the second input.

    ``dtype`` is INT32 (the default) or INT64; the second input is a vector of that type without repeats.
    """

    signature = """
        shape? (...): any, as of ConstantFill
        avoid? (N): int32|int64
        -> Y (...): int32|int64
    """
    stateful = True
    draws = True
    min: int | None = None
    max: int | None = None
    dtype: int = TensorProto.INT32

    def check(self) -> None:
        super().check()
        if self.dtype not in (TensorProto.INT32, TensorProto.INT64):
            raise ArgumentError(
                f"UniqueUniformFill: dtype must be INT32 ({TensorProto.INT32}) or INT64 ({TensorProto.INT64}), "
                f"got {self.dtype}"
            )
        if self.min is None or self.max is None or not self.min < self.max:
            raise ArgumentError(
                f"UniqueUniformFill: min and max must be given, min below max, got min={self.min}, max={self.max}"
            )
        bounds = np.iinfo(self.output_dtype())
        if self.min < bounds.min or self.max > bounds.max:
            raise ArgumentError(
                f"UniqueUniformFill: min={self.min} and max={self.max} must be in the range of {bounds.dtype}; give "
                "dtype INT64 for larger numbers"
            )

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 1 else super().input_location(index)

    def output_dtype(self) -> np.dtype[Any]:
        return numpy_type(self.dtype, "UniqueUniformFill: dtype")


@kernel(UniqueUniformFill)
def unique_uniform_fill(op: UniqueUniformFill, ctx: RunContext, like: Any = None, avoid: Any = None) -> tuple[Any, ...]:
    assert op.min is not None and op.max is not None  # by check
    shape, kind = op.target(ctx, like), op.output_dtype()
    avoided = np.zeros(0, kind) if avoid is None else ctx.host(avoid)
    require(
        avoided.ndim == 1 and avoided.dtype == kind and np.unique(avoided).size == avoided.size,
        op,
        f"avoid must be a vector of {kind} without repeats, got {avoided.tolist()} of {avoided.dtype}",
    )
    avoided = avoided[(avoided >= op.min) & (avoided <= op.max)]
    count, allowed = int(np.prod(shape, dtype=np.int64)), op.max - op.min + 1 - avoided.size
    if count > allowed:
        raise ShapeError(f"UniqueUniformFill: {count} numbers are requested, but only {allowed} may be drawn")
    reject = allowed > 4 * count + avoided.size
    draws = 2 * count + 8 if reject else op.max - op.min + 1
    check_extents(f"UniqueUniformFill: the draws for {count} numbers", (draws, 3), np.int64)
    draw = _draw_by_rejection if reject else _draw_by_permutation
    return (ctx.xp.asarray(draw(ctx, op.min, op.max, avoided, count).astype(kind).reshape(shape)),)


def _draw_by_permutation(ctx: RunContext, least: int, most: int, avoided: Any, count: int) -> Any:
    """Return the first numbers of a random permutation of all that are allowed."""
    allowed = np.setdiff1d(np.arange(least, most + 1), avoided)
    return allowed[np.argsort(ctx.host(ctx.uniform(allowed.shape)), kind="stable")][:count]


def _draw_by_rejection(ctx: RunContext, least: int, most: int, avoided: Any, count: int) -> Any:
    """Return numbers of a range much larger than ``count``: drawn independently, without repeats and those avoided."""
    draws = 2 * count + 8
    while True:
        numbers = np.floor(ctx.host(ctx.uniform((draws,))) * (most - least + 1)).astype(np.int64) + least
        numbers = numbers[~np.isin(numbers, avoided)]
        _, first = np.unique(numbers, return_index=True)
        if first.size >= count:
            return numbers[np.sort(first)][:count]
        draws *= 2
