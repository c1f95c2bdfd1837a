"""ClipTensorByScaling: scales a tensor down to a maximum norm, to clip gradients."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ClipTensorByScaling"]


@register
@dataclass(frozen=True)
class ClipTensorByScaling(Operator):
    """Y = X * bound / norm where norm exceeds bound, else X; bound = ``threshold`` * additional_threshold.

    The second input may be any norm, of X or of several tensors that X is one of. No gradient.

    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013, section 3.2.
    """

    signature = "X (*S): float, norm {1}: float, additional_threshold? {1}: float -> Y (*S): as X"
    inplace = ((0, 0),)
    threshold: float | None = None

    def check(self) -> None:
        if self.threshold is None or not self.threshold > 0:
            raise ArgumentError(f"ClipTensorByScaling: threshold must be given and positive, got {self.threshold}")


@kernel(ClipTensorByScaling)
def clip_tensor_by_scaling(
    op: ClipTensorByScaling, ctx: RunContext, x: Any, norm: Any, additional: Any = None
) -> tuple[Any, ...]:
    length = norm.reshape(())
    bound = length.dtype.type(op.threshold)
    if additional is not None:
        bound = bound * additional.reshape(())
    # Computed on the device, without a read by the host; the maximum keeps the quotient at 1 or below.
    return (x * (bound / ctx.xp.maximum(length, bound)).astype(x.dtype),)
