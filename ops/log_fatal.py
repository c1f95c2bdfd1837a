"""LogFatal: the end of a run."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.declaration import dataclass
from netbuilder.ops.operator import Operator, TensorSpec
from netbuilder.ops.registry import kernel, register
from netbuilder.proto import OperatorError

__all__ = ["LogFatal"]


@register
@dataclass(frozen=True)
class LogFatal(Operator):
    """Fail: who reaches this operator should not have. (In Caffe2 it ends the process.)"""

    inputs = ()
    outputs = ()
    dynamic = True
    stateful = True

    def infer(self) -> tuple[TensorSpec, ...]:
        return ()

    def flops(self) -> int:
        return 0


@kernel(LogFatal)
def log_fatal(op: LogFatal, ctx: RunContext) -> tuple[Any, ...]:
    raise OperatorError("LogFatal: the net came to an operator that ends the run")
