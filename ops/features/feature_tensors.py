"""Features merged into one list per sample: MergeSingleScalarFeatureTensors and related operators, with gradients.

Inputs come in groups, one per feature. Outputs are ordered by sample, and within a sample by feature: ``lengths`` (the
number of entries of each sample), ``keys`` (the id of each entry's feature), and the values of the entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import STRING, Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_row_work, lengths_on_host, positions_in_segments, segment_starts
from netbuilder.proto import ArgumentError, NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "MergeDenseFeatureTensors",
    "MergeMultiListFeatureTensors",
    "MergeMultiListFeatureTensorsGradient",
    "MergeMultiMapFeatureTensors",
    "MergeMultiMapFeatureTensorsGradient",
    "MergeMultiScalarFeatureTensors",
    "MergeMultiScalarFeatureTensorsGradient",
    "MergeSingleListFeatureTensors",
    "MergeSingleListFeatureTensorsGradient",
    "MergeSingleMapFeatureTensors",
    "MergeSingleMapFeatureTensorsGradient",
    "MergeSingleScalarFeatureTensors",
    "MergeSingleScalarFeatureTensorsGradient",
]

_ON_HOST = ("lengths", "presence", "values_lengths")
Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class _Grouped(Operator):
    """Base: the inputs are groups of ``fields``, one group per feature, followed by ``further`` inputs."""

    signature = "features+ ->"
    flops_per_element = 0
    fields: ClassVar[tuple[str, ...]]
    further: ClassVar[int] = 0
    dynamic = True

    def check(self) -> None:
        count = self.n_in - self.further
        if count < 1 or count % len(self.fields):
            raise NetError(
                f"{self.type} takes {', '.join(self.fields)} of each feature"
                f"{' and the gradient of the values' if self.further else ''}, got {self.n_in} inputs"
            )
        self.check_features(count // len(self.fields))

    def check_features(self, features: int) -> None:
        """Raise ArgumentError unless the arguments fit this number of features."""

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        inside = index < self.n_in - self.further
        return "host" if inside and self.fields[index % len(self.fields)] in _ON_HOST else "here"

    def groups(self, ctx: RunContext, given: Sequence[Any]) -> Groups:
        """Return the inputs of each feature by name; lengths are int64, presence is bool, both on the host."""
        made: Groups = []
        step = len(self.fields)
        for f in range(0, len(given) - self.further, step):
            group = dict(zip(self.fields, given[f : f + step]))
            for name in ("lengths", "values_lengths"):
                if name in group:
                    group[name] = lengths_on_host(self, ctx, group[name], f"{name} of feature {f // step}")
            if "presence" in group:
                group["presence"] = ctx.host(group["presence"]).astype(bool).reshape(-1)
            made.append(group)
        for name in ("lengths", "presence"):
            sizes = {group[name].size for group in made if name in group}
            require(len(sizes) <= 1, self, f"{name} of all features must have the same size, got {sorted(sizes)}")
        if {"lengths", "presence"} <= set(self.fields):
            lengths, presence = (made[0][name].size for name in ("lengths", "presence"))
            require(
                lengths == presence,
                self,
                f"lengths and presence must have one element per sample each, got {lengths} and {presence} elements",
            )
        return made


def _take(ctx: RunContext, groups: Groups, name: str, rows: Any, op: Operator) -> Any:
    """Return ``rows`` of the concatenation of all features' arrays called ``name``."""
    arrays = [group[name] for group in groups]
    require(
        all(array.dtype == arrays[0].dtype and array.ndim >= 1 for array in arrays),
        op,
        f"{name} of all features must have the same type, got {[str(array.dtype) for array in arrays]}",
    )
    require(
        all(array.shape[1:] == arrays[0].shape[1:] for array in arrays),
        op,
        f"{name} of all features must have rows of the same shape, got arrays of {[array.shape for array in arrays]}",
    )
    whole = ctx.xp.concatenate(arrays)
    require(
        not rows.size or int(rows.max()) < whole.shape[0],
        op,
        f"{name} must have as many rows as the lengths say, got {[array.shape[0] for array in arrays]}",
    )
    return whole.take(ctx.xp.asarray(rows), axis=0)


def _entries(op: Operator, groups: Groups) -> tuple[Any, Any]:
    """Return the number of entries of each sample, and their indices among those of all features, sample by sample.

    With presence, entry s of feature f has the index f * samples + s.
    """
    if "presence" in groups[0]:
        present = np.stack([group["presence"] for group in groups], axis=1)
        sample, feature = np.nonzero(present)
        return present.sum(axis=1), feature * present.shape[0] + sample
    counts = np.stack([group["lengths"] for group in groups], axis=1)
    starts = segment_starts(counts.T.reshape(-1)).reshape(counts.shape[1], -1).T
    flat = counts.reshape(-1)
    check_row_work(op, int(flat.sum()))
    return counts.sum(axis=1), np.repeat(starts.reshape(-1), flat) + positions_in_segments(flat)


def _values_of_entries(group: dict[str, Any]) -> Any:
    """Return the number of values of each entry of a feature; an absent entry has none."""
    return group["values_lengths"] if "values_lengths" in group else group["lengths"] * group["presence"]


def _rows_of_values(op: Operator, groups: Groups, entries: Any, sizes: Sequence[int]) -> tuple[Any, Any]:
    """Return the number of values of each entry, and their indices among those of all features.

    Args:
        sizes: the number of values of each feature; at the end, there may be more than its entries have.
    """
    counts = [_values_of_entries(group) for group in groups]
    begins = np.cumsum(sizes) - sizes
    starts = np.concatenate([segment_starts(n) + begin for n, begin in zip(counts, begins)])
    have = sum(n.size for n in counts)
    require(
        not entries.size or int(entries.max()) < have,
        op,
        f"the lengths say {int(entries.max(initial=-1)) + 1} entries or more, of which {have} have values",
    )
    gathered = np.concatenate(counts)[entries]
    check_row_work(op, int(gathered.sum()))
    return gathered, np.repeat(starts[entries], gathered) + positions_in_segments(gathered)


@dataclass(frozen=True)
class _Merge(_Grouped):
    """Base: the last output holds the merged values, the only ones with a gradient."""

    gradient_fields: ClassVar[tuple[str, ...]]  # the fields of each feature that the gradient reads

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        step, position = len(self.fields), self.fields.index("values")
        firsts = range(0, self.n_in, step)
        inputs = [g.input(first + self.fields.index(name)) for first in firsts for name in self.gradient_fields]
        d_inputs = [g.d_input(first + position) for first in firsts]
        return [make_op(self.type + "Gradient", [*inputs, g.d_output(self.n_out - 1)], d_inputs)]


@dataclass(frozen=True)
class _MergeSingle(_Merge):
    feature_ids: tuple[int, ...] = ()

    def check_features(self, features: int) -> None:
        if len(self.feature_ids) != features:
            raise ArgumentError(
                f"{self.type}: feature_ids must hold an id for each of the {features} features, got {self.feature_ids}"
            )

    def keys(self, ctx: RunContext, groups: Groups, entries: Any) -> Any:
        samples = groups[0]["presence"].size
        return ctx.xp.asarray(np.array(self.feature_ids, np.int64)[entries // max(samples, 1)])


@dataclass(frozen=True)
class _MergeMulti(_Merge):
    def keys(self, ctx: RunContext, groups: Groups, entries: Any) -> Any:
        return _take(ctx, groups, "keys", entries, self)


@register
@dataclass(frozen=True)
class MergeSingleScalarFeatureTensors(_MergeSingle):
    """Merge features with one value per sample; values that are not present are left out."""

    signature = """
        features+ (N): any, of each feature values and presence
        -> lengths (N): int32
        -> keys (K): int64
        -> values (K): any
    """
    fields = ("values", "presence")
    gradient_fields = ("presence",)


@register
@dataclass(frozen=True)
class MergeMultiScalarFeatureTensors(_MergeMulti):
    """Merge lists of keys with one value per key."""

    signature = """
        features+ (...): any, of each list lengths (N), keys (K), values (K)
        -> lengths (N): int32
        -> keys (K): int64
        -> values (K): any
    """
    fields = ("lengths", "keys", "values")
    gradient_fields = ("lengths",)


@kernel(MergeSingleScalarFeatureTensors)
@kernel(MergeMultiScalarFeatureTensors)
def merge_scalars(op: _MergeSingle | _MergeMulti, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    groups = op.groups(ctx, given)
    counts, entries = _entries(op, groups)
    values = _take(ctx, groups, "values", entries, op)
    return ctx.xp.asarray(counts.astype(np.int32)), op.keys(ctx, groups, entries), values


@register
@dataclass(frozen=True)
class MergeSingleListFeatureTensors(_MergeSingle):
    """Merge features with one list of values per sample; lists that are not present are left out.

    Lists that are not present have no values, whatever their lengths are.
    """

    signature = """
        features+ (...): any, of each feature lengths (N), values (V), presence (N)
        -> lengths (N): int32
        -> keys (K): int64
        -> values_lengths (K): int32
        -> values (V): any
    """
    fields = ("lengths", "values", "presence")
    gradient_fields = ("lengths", "presence")


@register
@dataclass(frozen=True)
class MergeMultiListFeatureTensors(_MergeMulti):
    """Merge lists of keys with one list of values per key."""

    signature = """
        features+ (...): any, of each list lengths (N), keys (K), the lengths of values (K), values (V)
        -> lengths (N): int32
        -> keys (K): int64
        -> values_lengths (K): int32
        -> values (V): any
    """
    fields = ("lengths", "keys", "values_lengths", "values")
    gradient_fields = ("lengths", "values_lengths")


@register
@dataclass(frozen=True)
class MergeSingleMapFeatureTensors(_MergeSingle):
    """Merge features with one map, keys and values, per sample; maps that are not present are left out."""

    signature = """
        features+ (...): any, of each feature lengths (N), keys (V), values (V), presence (N)
        -> lengths (N): int32
        -> keys (K): int64
        -> values_lengths (K): int32
        -> values_keys (V): any
        -> values (V): any
    """
    fields = ("lengths", "keys", "values", "presence")
    gradient_fields = ("lengths", "presence")


@register
@dataclass(frozen=True)
class MergeMultiMapFeatureTensors(_MergeMulti):
    """Merge lists of keys with one map, keys and values, per key."""

    signature = """
        features+ (...): any, of each list lengths (N), keys (K), the lengths of values (K), keys (V) and values (V)
        -> lengths (N): int32
        -> keys (K): int64
        -> values_lengths (K): int32
        -> values_keys (V): any
        -> values (V): any
    """
    fields = ("lengths", "keys", "values_lengths", "values_keys", "values")
    gradient_fields = ("lengths", "values_lengths")


@kernel(MergeSingleListFeatureTensors)
@kernel(MergeMultiListFeatureTensors)
@kernel(MergeSingleMapFeatureTensors)
@kernel(MergeMultiMapFeatureTensors)
def merge_lists(op: _MergeSingle | _MergeMulti, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    groups = op.groups(ctx, given)
    require(all(group["values"].ndim >= 1 for group in groups), op, "values must have rows, got a scalar")
    counts, entries = _entries(op, groups)
    lengths, rows = _rows_of_values(op, groups, entries, [group["values"].shape[0] for group in groups])
    made = [ctx.xp.asarray(n.astype(np.int32)) for n in (counts, lengths)]
    made.insert(1, op.keys(ctx, groups, entries))
    if "values_keys" in type(op).outputs:
        name = "keys" if "values_keys" not in op.fields else "values_keys"
        made.append(_take(ctx, groups, name, rows, op))
    return (*made, _take(ctx, groups, "values", rows, op))


@dataclass(frozen=True)
class _MergeGradient(_Grouped):
    """Base: the gradient of the merged values, split by feature; values that were left out get 0."""

    signature = "features+ -> dvalues+"
    further = 1

    def split(self, ctx: RunContext, given: Sequence[Any]) -> tuple[Any, ...]:
        groups, d_values = self.groups(ctx, given), given[-1]
        _, rows = _entries(self, groups)
        if "lengths" in groups[0] and ("presence" in groups[0] or "values_lengths" in groups[0]):
            sizes = np.array([_values_of_entries(group).sum() for group in groups])
            _, rows = _rows_of_values(self, groups, rows, sizes.tolist())
        elif "presence" in groups[0]:
            sizes = np.array([group["presence"].size for group in groups])
        else:
            sizes = np.array([group["lengths"].sum() for group in groups])
        require(
            d_values.ndim >= 1 and d_values.shape[0] == rows.size,
            self,
            f"there are {rows.size} merged values, but dY has shape {d_values.shape}",
        )
        zero = b"" if d_values.dtype == STRING else 0
        check_extents(f"{self.type}: gradients", (int(sizes.sum()), *d_values.shape[1:]), d_values.dtype)
        whole = ctx.xp.full((int(sizes.sum()), *d_values.shape[1:]), zero, d_values.dtype)
        whole[ctx.xp.asarray(rows)] = d_values
        ends = sizes.cumsum()
        return tuple(whole[end - n : end].copy() for n, end in zip(sizes.tolist(), ends.tolist()))


@dataclass(frozen=True)
class _SingleGradient(_MergeGradient):
    feature_ids: tuple[int, ...] = ()


@register
@dataclass(frozen=True)
class MergeSingleScalarFeatureTensorsGradient(_SingleGradient):
    """Gradients of the features' values from that of the merged ones."""

    fields = MergeSingleScalarFeatureTensors.gradient_fields


@register
@dataclass(frozen=True)
class MergeSingleListFeatureTensorsGradient(_SingleGradient):
    """Gradients of the features' values from that of the merged ones."""

    fields = MergeSingleListFeatureTensors.gradient_fields


@register
@dataclass(frozen=True)
class MergeSingleMapFeatureTensorsGradient(_SingleGradient):
    """Gradients of the features' values from that of the merged ones."""

    fields = MergeSingleMapFeatureTensors.gradient_fields


@register
@dataclass(frozen=True)
class MergeMultiScalarFeatureTensorsGradient(_MergeGradient):
    """Gradients of the features' values from that of the merged ones."""

    fields = MergeMultiScalarFeatureTensors.gradient_fields


@register
@dataclass(frozen=True)
class MergeMultiListFeatureTensorsGradient(_MergeGradient):
    """Gradients of the features' values from that of the merged ones."""

    fields = MergeMultiListFeatureTensors.gradient_fields


@register
@dataclass(frozen=True)
class MergeMultiMapFeatureTensorsGradient(_MergeGradient):
    """Gradients of the features' values from that of the merged ones."""

    fields = MergeMultiMapFeatureTensors.gradient_fields


def _split(op: _MergeGradient, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    return op.split(ctx, given)


for _cls in (
    MergeSingleScalarFeatureTensorsGradient,
    MergeSingleListFeatureTensorsGradient,
    MergeSingleMapFeatureTensorsGradient,
    MergeMultiScalarFeatureTensorsGradient,
    MergeMultiListFeatureTensorsGradient,
    MergeMultiMapFeatureTensorsGradient,
):
    kernel(_cls)(_split)


@register
@dataclass(frozen=True)
class MergeDenseFeatureTensors(Operator):
    """Merge the columns of X, one per feature; values that are not present are left out. No gradient."""

    signature = """
        X (N, F): any
        presence (N, F): bool
        -> lengths (N): int32
        -> keys (M): int64
        -> values (M): as X
    """
    dynamic = True
    flops_per_element = 0
    feature_ids: tuple[int, ...] = ()


@kernel(MergeDenseFeatureTensors)
def merge_dense(op: MergeDenseFeatureTensors, ctx: RunContext, x: Any, presence: Any) -> tuple[Any, ...]:
    require(
        x.ndim == 2 and presence.shape == x.shape and x.shape[1] == len(op.feature_ids),
        op,
        f"X and presence must have a column for each of the {len(op.feature_ids)} feature_ids, "
        f"got {x.shape} and {presence.shape}",
    )
    present = presence.astype(np.bool_)
    sample, feature = ctx.xp.nonzero(present)
    keys = ctx.xp.asarray(np.array(op.feature_ids, np.int64)).take(feature)
    return present.sum(axis=1).astype(np.int32), keys, x[sample, feature]
