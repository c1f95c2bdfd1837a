"""AveragePut, IncrementPut, StdDevPut: numbers of a net, put into the process's registry of statistics."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.control.timers import statistics_of_process
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, ShapeError

__all__ = ["AveragePut", "IncrementPut", "StdDevPut"]

_MOST = 2**63 - 1


@operator_class(frozen=True)
class _Put(Operator):
    """Base: a number that goes into the statistics of the process.

    Inputs:
        value (...): any, one number
    """

    inputs = ("value",)
    stateful = True
    blob_arguments = ()
    stat_name: str = ""
    magnitude_expand: int = 1
    bound: bool = False
    default_value: float | None = None

    def check(self) -> None:
        if self.magnitude_expand < 1:
            raise ArgumentError(f"{self.type}: magnitude_expand must be at least 1, got {self.magnitude_expand}")

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host"

    def infer(self, value: TensorSpec) -> tuple[TensorSpec, ...]:
        require(value.dtype.kind in "fiub", self, f"needs numbers, got {value.dtype}")
        if value.size == 0 and self.default_value is None:
            raise ShapeError(f"{self.type}: the value is empty; give default_value to count such runs")
        return ()

    def flops(self, value: TensorSpec) -> int:
        return 0

    def read(self, ctx: RunContext, value: Any) -> tuple[bytes, int]:
        """Return the name of the statistic and the value as an integer.

        Raises:
            ArgumentError: it is too large for 64 bits, or no number.
        """
        name = (self.stat_name or ctx.op_def.input[0]).encode() + b"/stat_value"
        host = ctx.host(value).reshape(-1)
        number = host[0].item() if host.size else self.default_value
        if number is None or not np.isfinite(number):
            raise ArgumentError(f"{self.type}: the value of {ctx.op_def.input[0]!r} must be finite, got {number}")
        whole = int(number * self.magnitude_expand)
        if abs(whole) > _MOST:
            if not self.bound:
                raise ArgumentError(
                    f"{self.type}: {number} * {self.magnitude_expand} has more than 64 bits; lower magnitude_expand, "
                    "or give bound"
                )
            whole = _MOST if whole > 0 else -_MOST
        return name, whole


@register
@operator_class(frozen=True)
class IncrementPut(_Put):
    """Adds the value to the statistic <name>/stat_value. No outputs.

    The name is ``stat_name``, or that of the input. Statistics are integers: the value is multiplied by
    ``magnitude_expand`` and its fraction dropped; with ``bound`` one of more than 64 bits is cut to them, else it is an
    error. ``default_value`` is taken for an empty tensor; of several elements the first. StatRegistryExport reads all.
    """


@register
@operator_class(frozen=True)
class AveragePut(_Put):
    """Adds the value to <name>/stat_value/sum, and 1 to <name>/stat_value/count; else as IncrementPut."""


@register
@operator_class(frozen=True)
class StdDevPut(_Put):
    """AveragePut, and the sums of differences from the first value and of their squares: sumoffset, sumsqoffset."""


@kernel(IncrementPut)
def increment_put(op: IncrementPut, ctx: RunContext, value: Any) -> tuple[Any, ...]:
    statistics_of_process().add([op.read(ctx, value)])
    return ()


@kernel(AveragePut)
def average_put(op: AveragePut, ctx: RunContext, value: Any) -> tuple[Any, ...]:
    name, number = op.read(ctx, value)
    statistics_of_process().add([(name + b"/sum", number), (name + b"/count", 1)])
    return ()


@kernel(StdDevPut)
def std_dev_put(op: StdDevPut, ctx: RunContext, value: Any) -> tuple[Any, ...]:
    name, number = op.read(ctx, value)
    first = op.__dict__.setdefault("_first", number)
    away = number - first
    items = {b"/sum": number, b"/count": 1, b"/sumoffset": away, b"/sumsqoffset": away * away}
    statistics_of_process().add([(name + key, item) for key, item in items.items()])
    return ()
