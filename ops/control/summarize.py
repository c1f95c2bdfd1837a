"""Summarize: minimum, maximum, mean and standard deviation of a blob, as an output or written during a run."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.control.print_op import append_line
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Summarize"]


@register
@dataclass(frozen=True)
class Summarize(Operator):
    """summary = (minimum, maximum, mean, standard deviation) of the elements; the variance is divided by N - 1.

    Without an output, they are written to standard output. With ``to_file``, a line per run is appended to
    "<blob>.summary" under the workspace's root folder. No gradient.
    """

    signature = "X (...): float32 -> summary? (4): float32"
    flops_per_element = 0
    remedies: ClassVar[dict[str, str]] = {"X": "cast it first"}
    stateful = True
    effects = ""
    dynamic = True
    to_file: bool = False

    def check_inputs(self, x: TensorSpec) -> None:
        require(x.size > 0, self, f"X must have elements, got the shape {x.shape}")


@kernel(Summarize)
def summarize(op: Summarize, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    op.check_specs(x)
    values = x.astype(np.float64)
    mean = values.mean()
    squares = ctx.xp.square(values - mean).sum()
    parts = [values.min(), values.max(), mean, ctx.xp.sqrt(squares / max(x.size - 1, 1))]
    summary = ctx.xp.stack([part.reshape(()) for part in map(ctx.xp.asarray, parts)]).astype(np.float32)
    if op.to_file or not op.n_out:
        line = " ".join(f"{part:.6g}" for part in ctx.host(summary).tolist()) + "\n"
        name = ctx.op_def.input[0]
        if op.to_file:
            append_line(ctx, f"{name}.summary", line)
        else:
            sys.stdout.write(f"{name}: {line}")
    return (summary,) * op.n_out
