"""VariableLengthSequencePadding: what stands behind the end of sequences becomes 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.declaration import dataclass
from netbuilder.ops.operator import Operator, TensorSpec, require
from netbuilder.ops.registry import kernel, register
from netbuilder.proto import ShapeError

__all__ = ["VariableLengthSequencePadding"]


@register
@dataclass(frozen=True)
class VariableLengthSequencePadding(Operator):
    """Y[i, j] = X[i, j], or 0 from step lengths[j] of sequence j on; X is (steps, sequences, values). No gradient.

    A length above the number of steps keeps all of them, as in Caffe2.
    """

    inputs = ("X", "lengths")
    outputs = ("Y",)
    inplace = ((0, 0),)

    def infer(self, x: TensorSpec, lengths: TensorSpec) -> tuple[TensorSpec, ...]:
        require(
            x.ndim == 3 and x.dtype.kind == "f", self, f"X must be floats with three axes, got {x.shape} of {x.dtype}"
        )
        right = lengths.shape == x.shape[1:2] and lengths.dtype == np.int32
        text = f"got {lengths.shape} of {lengths.dtype}"
        require(right, self, f"lengths must be int32, one for each of {x.shape[1]} sequences; {text}")
        return (x.plain,)


@kernel(VariableLengthSequencePadding)
def variable_length_sequence_padding(
    op: VariableLengthSequencePadding, ctx: RunContext, x: Any, lengths: Any
) -> tuple[Any, ...]:
    if lengths.size and int(lengths.min()) < 0:
        raise ShapeError(f"{op.type}: lengths must not be negative, got {int(lengths.min())}")
    inside = ctx.xp.arange(len(x))[:, None] < lengths
    return (ctx.xp.where(inside[:, :, None], x, x.dtype.type(0)),)
