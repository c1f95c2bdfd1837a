"""Operators that fail: LogFatal, Fail, ThrowException."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Fail", "LogFatal", "ThrowException"]


@dataclass(frozen=True)
class _Failing(Operator):
    flops_per_element = 0
    dynamic: ClassVar[bool] = True
    stateful: ClassVar[bool] = True


@register
@dataclass(frozen=True)
class LogFatal(_Failing):
    """Fail: a net should not reach this operator. (In Caffe2 it ends the process.)"""


@register
@dataclass(frozen=True)
class Fail(_Failing):
    """Fail like an operator that returns false in Caffe2, to test how nets fail."""


@register
@dataclass(frozen=True)
class ThrowException(_Failing):
    """Fail like an operator that raises an exception, to test how nets fail."""


@kernel(LogFatal)
@kernel(Fail)
def fail(op: _Failing, ctx: RunContext) -> tuple[Any, ...]:
    raise OperatorError(f"{op.type}: the net came to an operator that ends the run")


@kernel(ThrowException)
def throw_exception(op: ThrowException, ctx: RunContext) -> tuple[Any, ...]:
    raise RuntimeError("the net came to an operator that raises an exception")
