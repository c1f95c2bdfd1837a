"""Print: writes a blob to standard output or to a file during a run."""

from __future__ import annotations

import os
import sys
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from netbuilder.data.forking import new_lock
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import STRING, InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Print", "append_line"]

_runs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_begun: WeakSet[Any] = WeakSet()
_lock = new_lock()

_NAMES = {
    "float32": "float",
    "float64": "double",
    "int64": "long int",
    "int32": "int",
    "uint8": "unsigned char",
    "object": "std::string",
}
"""Caffe2's names of types in logs."""


@register
@dataclass(frozen=True)
class Print(Operator):
    """Write name, type, shape and elements of a blob to standard output, on one line.

    At most ``limit`` elements are written (0 or less: 1000), in the first of every ``every_n`` runs. With ``to_file``,
    the line is appended, in Caffe2's format, to "<blob>.log" under the workspace's root folder.
    """

    signature = "tensor (...): any ->"
    stateful = True
    effects = ""
    dynamic = True
    in_batch = InBatch.LINEAR
    flops_per_element = 0
    to_file: bool = False
    limit: int = 0
    every_n: int = 1

    def check(self) -> None:
        if self.every_n < 1:
            raise ArgumentError(f"Print: every_n must be 1 or more, got {self.every_n}")


@kernel(Print)
def print_(op: Print, ctx: RunContext, tensor: Any) -> tuple[Any, ...]:
    with _lock:
        run = _runs.get(ctx, 0)
        _runs[ctx] = run + 1
    if run % op.every_n == 0:
        name, limit = ctx.op_def.input[0], op.limit if op.limit > 0 else 1000
        if op.to_file:
            append_line(ctx, f"{name}.log", _logged(ctx, name, tensor, limit))
        else:
            sys.stdout.write(_line(ctx, name, tensor, limit))
    return ()


def append_line(ctx: RunContext, name: str, line: str) -> None:
    """Append to a file under the workspace's root folder; the first line of an operator of a net truncates it.

    Raises:
        OSError: it cannot be written.
    """
    path = os.path.join(getattr(ctx.workspace, "root_folder", "."), name)
    with _lock:
        mode = "a" if ctx in _begun else "w"
        _begun.add(ctx)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, mode, encoding="utf-8") as file:
            file.write(line)


def _logged(ctx: RunContext, name: str, value: Any, limit: int) -> str:
    if not hasattr(value, "dtype"):
        return f"{name}: {value}\n"
    kind = _NAMES.get(str(value.dtype), str(value.dtype))
    extents = "".join(f"{extent}," for extent in value.shape)
    elements = ctx.host(value.reshape(-1)[:limit]).tolist()
    return f"Tensor {name} of type {kind}. Dims: ({extents}): {','.join(map(_text, elements))}\n"


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
