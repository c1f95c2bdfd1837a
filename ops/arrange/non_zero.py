"""NonZero: where a tensor's elements are not 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NonZero"]


@register
@dataclass(frozen=True)
class NonZero(Operator):
    """Y = the indices of the elements that are not 0, in order: a row for each axis of X. No gradient."""

    signature = "X (*S): float|int|bool -> Y (R, M): int64"
    dynamic = True


@kernel(NonZero)
def non_zero(op: NonZero, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    places = x.reshape((1,) if x.ndim == 0 else x.shape).nonzero()[: x.ndim]
    if not places:
        return (ctx.xp.zeros((0, int(x != 0)), np.int64),)
    return (ctx.xp.stack(places).astype(np.int64, copy=False),)
