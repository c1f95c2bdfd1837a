"""Indices and numbers drawn at random: WeightedSample, WeightedMultiSampling, UniqueUniformFill."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.data_types import numpy_type
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.fills.fill import Fill
from netbuilder.proto import ArgumentError, NetError, ShapeError, TensorProto

__all__ = ["UniqueUniformFill", "WeightedMultiSampling", "WeightedSample"]


@register
@operator_class(frozen=True)
class WeightedSample(Operator):
    """Draw for each row an index, int32, with the probabilities that the row's weights have to one another.

    Weights, (N, W), must not be negative; where all are 0, the index is 0. Values, of the same shape, give the second
    output: what stands at the index. Outputs are (N, 1), or (0,) where there are no weights.

    Inputs:
        sampling_weights (N, D): float32
        sampling_values? (N, D): float32
    Outputs:
        sampled_indexes (N, 1): int32
        sampled_values? (N, 1): float32
    """

    inputs = ("sampling_weights", "sampling_values?")
    outputs = ("sampled_indexes", "sampled_values?")
    stateful = True
    draws = True

    def check(self) -> None:
        if self.n_in != self.n_out:
            raise NetError(f"WeightedSample: needs an output for each input, got {self.n_in} and {self.n_out}")

    def infer(self, weights: TensorSpec, values: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        require(
            weights.ndim == 2 and weights.dtype == np.float32,
            self,
            f"weights must be a matrix of float32, got shape {weights.shape} of {weights.dtype}",
        )
        index = TensorSpec((weights.shape[0], 1) if all(weights.shape) else (0,), np.dtype(np.int32))
        if values is None:
            return (index,)
        require(
            values.shape == weights.shape and values.dtype == np.float32,
            self,
            f"values must have the weights' shape, {weights.shape}, and type, got {values.shape} of {values.dtype}",
        )
        return index, index.with_dtype(np.float32)


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
@operator_class(frozen=True)
class WeightedMultiSampling(Operator):
    """Draw indices, int32, from one distribution, given by its sums: index i where the number drawn is below sum i.

    The sums, a vector of float32, rise from 0 or more; they are scaled by the last of them. ``num_samples`` indices are
    drawn, or as many as the shape of the second input has, in that shape; from no sums, none.

    Inputs:
        sampling_cdf (D): float32
        shape_tensor? (...): any
    Outputs:
        sampled_indexes (...): int32
    """

    inputs = ("sampling_cdf", "shape_tensor?")
    outputs = ("sampled_indexes",)
    stateful = True
    draws = True
    num_samples: int | None = None

    def check(self) -> None:
        if self.num_samples is not None and (self.num_samples < 0 or self.n_in == 2):
            raise ArgumentError(
                "WeightedMultiSampling: num_samples must not be negative, and is not given together with an input with "
                f"the shape; got {self.num_samples} with {self.n_in} inputs"
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
            "WeightedMultiSampling: the sums must rise, from 0 or more; take the cumulative sum of weights"
        )
    sums = cdf.astype(np.float64)
    index = ctx.xp.searchsorted(sums, ctx.uniform(shape, per_sample=True) * sums[-1], side="right")
    return (ctx.xp.where(sums[-1] > 0, index, 0).astype(np.int32),)


@register
@operator_class(frozen=True)
class UniqueUniformFill(Fill):
    """Integers from ``min`` to ``max``, both included, none of them twice, and none of the second input's.

    ``dtype`` is INT32 (the default) or INT64; the second input, a vector of that type, has no element twice.

    Inputs:
        shape? (...): any, as of ConstantFill
        avoid? (N): int32|int64
    Outputs:
        Y (...): int32|int64
    """

    inputs = ("shape?", "avoid?")
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
        bounds = np.iinfo(self.made())
        if self.min < bounds.min or self.max > bounds.max:
            raise ArgumentError(
                f"UniqueUniformFill: min={self.min} and max={self.max} must lie in what {bounds.dtype} holds; give "
                "dtype INT64 for more"
            )

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 1 else super().input_location(index)

    def made(self) -> np.dtype[Any]:
        return numpy_type(self.dtype, "UniqueUniformFill: dtype")


@kernel(UniqueUniformFill)
def unique_uniform_fill(op: UniqueUniformFill, ctx: RunContext, like: Any = None, avoid: Any = None) -> tuple[Any, ...]:
    assert op.min is not None and op.max is not None  # by check
    shape, kind = op.target(ctx, like), op.made()
    taken = np.zeros(0, kind) if avoid is None else ctx.host(avoid)
    require(
        taken.ndim == 1 and taken.dtype == kind and np.unique(taken).size == taken.size,
        op,
        f"what is to be avoided must be a vector of {kind}, none of it twice, got {taken.tolist()} of {taken.dtype}",
    )
    taken = taken[(taken >= op.min) & (taken <= op.max)]
    count, room = int(np.prod(shape, dtype=np.int64)), op.max - op.min + 1 - taken.size
    if count > room:
        raise ShapeError(f"UniqueUniformFill: {count} numbers are requested, but only {room} may be drawn")
    drawn = _few if room > 4 * count + taken.size else _many
    return (ctx.xp.asarray(drawn(ctx, op.min, op.max, taken, count).astype(kind).reshape(shape)),)


def _many(ctx: RunContext, least: int, most: int, taken: Any, count: int) -> Any:
    """Return the first of all numbers in a random order."""
    free = np.setdiff1d(np.arange(least, most + 1), taken)
    return free[np.argsort(ctx.host(ctx.uniform(free.shape)), kind="stable")][:count]


def _few(ctx: RunContext, least: int, most: int, taken: Any, count: int) -> Any:
    """Return numbers of a range much larger than the count: drawn as they come, and those left out that came before."""
    draws = 2 * count + 8
    while True:
        numbers = np.floor(ctx.host(ctx.uniform((draws,))) * (most - least + 1)).astype(np.int64) + least
        numbers = numbers[~np.isin(numbers, taken)]
        _, first = np.unique(numbers, return_index=True)
        if first.size >= count:
            return numbers[np.sort(first)][:count]
        draws *= 2
