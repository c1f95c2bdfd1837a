"""HasElements and IsEmpty: whether tensors have elements."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["HasElements", "IsEmpty"]


@dataclass(frozen=True)
class _OfShapes(Operator):
    signature = "-> Y"
    outputs_on_host = True
    flops_per_element = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any"


@register
@dataclass(frozen=True)
class HasElements(_OfShapes):
    """Y = whether any of the tensors has elements, a bool. No gradient."""

    signature = "X+ (...): any -> Y (): bool"


@register
@dataclass(frozen=True)
class IsEmpty(_OfShapes):
    """Y = whether X has no elements, a bool. No gradient."""

    signature = "X (...): any -> Y (): bool"


@kernel(HasElements)
def has_elements(op: HasElements, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (np.array(any(x.size for x in xs)),)


@kernel(IsEmpty)
def is_empty(op: IsEmpty, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (np.array(x.size == 0),)
