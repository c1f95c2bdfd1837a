"""AveragePut, IncrementPut, StdDevPut: add numbers of a net to the process's registry of statistics."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.control.timers import statistics_of_process
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AveragePut", "IncrementPut", "StdDevPut"]

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class _Put(Operator):
    """Base: adds a number to the statistics of the process."""

    signature = """
        value (...): float|int|bool, one number
        ->
    """
    stateful = True
    blob_arguments = ()
    inputs_on_host = True
    flops_per_element = 0
    stat_name: str = ""
    magnitude_expand: int = 1
    bound: bool = False
    default_value: float | None = None

    def check(self) -> None:
        if self.magnitude_expand < 1:
            raise ArgumentError(f"{self.type}: magnitude_expand must be at least 1, got {self.magnitude_expand}")

    def check_inputs(self, value: TensorSpec) -> None:
        counted = value.size > 0 or self.default_value is not None
        require(counted, self, "the value is empty; give default_value to count such runs")

    def read(self, ctx: RunContext, value: Any) -> tuple[bytes, int]:
        """Return the name of the statistic and the value as an integer.

        Raises:
            ArgumentError: it exceeds 64 bits, or is infinite or NaN.
        """
        name = (self.stat_name or ctx.op_def.input[0]).encode() + b"/stat_value"
        host = ctx.host(value).reshape(-1)
        number = host[0].item() if host.size else self.default_value
        if number is None or not np.isfinite(number):
            raise ArgumentError(f"{self.type}: the value of {ctx.op_def.input[0]!r} must be finite, got {number}")
        whole = int(number * self.magnitude_expand)
        if abs(whole) > _INT64_MAX:
            if not self.bound:
                raise ArgumentError(
                    f"{self.type}: {number} * {self.magnitude_expand} has more than 64 bits; lower magnitude_expand, "
                    "or give bound"
                )
            whole = _INT64_MAX if whole > 0 else -_INT64_MAX
        return name, whole


@register
@dataclass(frozen=True)
class IncrementPut(_Put):
    """Add the value to the statistic <name>/stat_value. No outputs.

    The name is ``stat_name`` or, by default, that of the input. Statistics are integers: the value is multiplied by
    ``magnitude_expand`` and truncated; one of more than 64 bits is clamped with ``bound``, else it is an error. An
    empty tensor counts as ``default_value``; of several elements, the first is used. StatRegistryExport reads them.
    """


@register
@dataclass(frozen=True)
class AveragePut(_Put):
    """Add the value to <name>/stat_value/sum, and 1 to <name>/stat_value/count; otherwise as IncrementPut."""


@register
@dataclass(frozen=True)
class StdDevPut(_Put):
    """As AveragePut, and add the difference from the first value, and its square, to sumoffset and sumsqoffset."""


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
    offset = number - first
    items = {b"/sum": number, b"/count": 1, b"/sumoffset": offset, b"/sumsqoffset": offset * offset}
    statistics_of_process().add([(name + key, item) for key, item in items.items()])
    return ()
