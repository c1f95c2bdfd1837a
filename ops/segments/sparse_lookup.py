"""SparseLengthsSumSparseLookup: maps indices into a table to those into a table from which rows were removed."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers, check_weights, counts_of_lengths
from netbuilder.proto import NetError, OperatorDef, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SparseLengthsSumSparseLookup"]


@register
@dataclass(frozen=True)
class SparseLengthsSumSparseLookup(Operator):
    """Replace each index by ``COMPRESSED_INDICES_MAPPING[index]``, and drop those where it is -1.

    The outputs are the remaining indices, the number of them in each segment and, if WEIGHTS are given, their weights.
    """

    signature = """
        INDICES (I): int32|int64
        LENGTHS (M): int32|int64
        COMPRESSED_INDICES_MAPPING (R): int32
        WEIGHTS? (I): float32
        -> output_indices (K): as INDICES
        -> output_lengths (M): as LENGTHS
        -> output_weights? (K): float32
    """
    dynamic = True
    inputs_on_host = (1,)
    flops_per_element = 0

    def check(self) -> None:
        if self.n_out != self.n_in - 1:
            raise NetError(
                "SparseLengthsSumSparseLookup takes two outputs, or three with weights, "
                f"got {self.n_out} for {self.n_in} inputs"
            )

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable, as in Caffe2


@kernel(SparseLengthsSumSparseLookup)
def sparse_lookup(
    op: SparseLengthsSumSparseLookup, ctx: RunContext, indices: Any, lengths: Any, mapping: Any, weights: Any = None
) -> tuple[Any, ...]:
    for name, given in (("INDICES", indices), ("LENGTHS", lengths), ("COMPRESSED_INDICES_MAPPING", mapping)):
        check_integers(op, name, given)
    require(mapping.dtype == np.int32, op, f"COMPRESSED_INDICES_MAPPING must be int32, got {mapping.dtype}")
    counts = counts_of_lengths(op, ctx, lengths, indices.shape[0])
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < mapping.size:
        raise ShapeError(
            f"{op.type}: INDICES must lie in [0, {mapping.size}), the size of the mapping, got values from "
            f"{int(indices.min())} to {int(indices.max())}"
        )
    found = mapping[indices]
    remaining = found != -1
    segments = np.repeat(np.arange(counts.size), counts)[ctx.host(remaining)]
    made = [
        found[remaining].astype(indices.dtype),
        ctx.xp.asarray(np.bincount(segments, minlength=counts.size).astype(lengths.dtype)),
    ]
    if weights is not None:
        check_weights(op, weights, TensorSpec((), np.dtype(np.float32)), indices.shape[0])
        made.append(weights[remaining])
    return tuple(made)
