"""Print: a blob written to the standard output within a run."""

from __future__ import annotations

import sys
import threading
from typing import Any
from weakref import WeakKeyDictionary

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.declaration import dataclass
from netbuilder.ops.operator import STRING, Operator, TensorSpec
from netbuilder.ops.registry import kernel, register
from netbuilder.proto import ArgumentError

__all__ = ["Print"]

_runs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_lock = threading.Lock()


@register
@dataclass(frozen=True)
class Print(Operator):
    """Write name, type, shape and elements of a blob to the standard output, on one line.

    Of more than ``limit`` elements the first ones are written (0 or less: 1000); of ``every_n`` runs, the first.
    """

    inputs = ("tensor",)
    stateful = True
    dynamic = True
    to_file: bool = False
    limit: int = 0
    every_n: int = 1

    def check(self) -> None:
        if self.to_file:
            raise ArgumentError(
                "Print: to_file is not served; the text goes to the standard output, which may be sent on"
            )
        if self.every_n < 1:
            raise ArgumentError(f"Print: every_n must be 1 or more, got {self.every_n}")

    def infer(self, tensor: TensorSpec) -> tuple[TensorSpec, ...]:
        return ()

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@kernel(Print)
def print_(op: Print, ctx: RunContext, tensor: Any) -> tuple[Any, ...]:
    with _lock:
        run = _runs.get(ctx, 0)
        _runs[ctx] = run + 1
    if run % op.every_n == 0:
        sys.stdout.write(_line(ctx, ctx.op_def.input[0], tensor, op.limit if op.limit > 0 else 1000))
    return ()


def _line(ctx: RunContext, name: str, value: Any, limit: int) -> str:
    if not hasattr(value, "dtype"):
        return f"{name}: {value}\n"
    kind = "string" if value.dtype == STRING else str(value.dtype)
    elements = ctx.host(value.reshape(-1)[:limit]).tolist()
    more = ", ..." if value.size > limit else ""
    return f"{name}: {kind} {tuple(value.shape)}: {', '.join(map(_text, elements))}{more}\n"


def _text(element: Any) -> str:
    if isinstance(element, bytes):
        return element.decode(errors="replace")
    return f"{element:.6g}" if isinstance(element, float) else str(element)
