"""FeedBlob: a string stored in a blob."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import STRING, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FeedBlob"]


@register
@dataclass(frozen=True)
class FeedBlob(Operator):
    """Y = the string ``value``, as ``workspace.feed`` would store it."""

    signature = "-> Y (): string"
    outputs_on_host = True
    flops_per_element = 0
    value: bytes | None = None

    def check(self) -> None:
        if self.value is None:
            raise ArgumentError("FeedBlob: the argument value, a string, must be given")


@kernel(FeedBlob)
def feed_blob(op: FeedBlob, ctx: RunContext) -> tuple[Any, ...]:
    return (np.array(op.value, STRING),)
