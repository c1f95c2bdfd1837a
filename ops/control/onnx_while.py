"""ONNXWhile: a net run repeatedly, as by ONNX's Loop, with values that are passed from iteration to iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.ops.core.conditions import truth_of
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.proto import ArgumentError, NetDef, ShapeError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ONNXWhile"]

_compiled: WeakKeyDictionary[Any, Callable[[], None]] = WeakKeyDictionary()


@register
@dataclass(frozen=True)
class ONNXWhile(Operator):
    """Run ``body`` up to ``max_trip_count`` times (with ``has_trip_count``), while the condition holds (``has_cond``).

    The inputs after the first two are passed to the first iteration. The external inputs of ``body`` are the number of
    the iteration (int64), the condition, and a blob for each value; its external outputs are the next condition, the
    next values, and blobs to collect. The operator's outputs are the values after the last iteration, and each
    collected blob's tensors of all iterations, concatenated along the first axis; without an iteration, an empty
    float32 vector or, with ``given_empty``, one of the last inputs. The ``captured`` inputs before those are not passed
    on: the net only reads them. The net's blobs are private unless ``disable_scopes`` is given; ``save_scopes`` is
    ignored.

    Source: ONNX's operator Loop.
    """

    signature = """
        max_trip_count (1) or (): int64
        first_iter_condition (1) or (): bool
        initial* (...): any
        -> final_and_scan* (...): any
    """
    inplace = "one-to-one"
    dynamic = True
    stateful = True
    effects = "may loop without end"
    outputs_on_host = True
    net_names = "scoped"
    inputs_on_host = True
    body: NetDef | None = None
    has_trip_count: bool = False
    has_cond: bool = False
    save_scopes: bool = False
    disable_scopes: bool = False
    captured: int = 0
    given_empty: bool = False

    def check(self) -> None:
        if self.body is None:
            raise ArgumentError("ONNXWhile: the argument body, a net, must be given")
        if not (self.has_trip_count or self.has_cond):
            raise ArgumentError("ONNXWhile: without has_trip_count and has_cond it would never end; give one of them")
        takes, gives = len(self.body.external_input), len(self.body.external_output)
        values = takes - 2 - self.captured
        empty = self.n_out - values if self.given_empty else 0
        fits = takes + empty == self.n_in and gives == self.n_out + 1
        if not fits or min(values, self.captured, self.n_out - values) < 0:
            raise ArgumentError(
                "ONNXWhile: body must take the iteration's number, the condition and each value, and give the next "
                f"condition, the next values and what is collected; it takes {counted(takes, 'blob')} and gives "
                f"{gives} for {counted(self.n_in, 'input')} and {counted(self.n_out, 'output')}"
            )

    def bound(self, prefix: str) -> NetDef:
        """Return the body with private names for its blobs."""
        body = NetDef()
        body.CopyFrom(self.body or body)
        if not self.disable_scopes:
            rename_blobs(body, lambda name: f"{prefix}/{name}")
        return body


@kernel(ONNXWhile)
def onnx_while(op: ONNXWhile, ctx: RunContext, trip_count: Any, condition: Any, *given: Any) -> tuple[Any, ...]:
    if op.has_trip_count:
        require(
            trip_count.size == 1 and trip_count.dtype == np.int64,
            op,
            f"max_trip_count must hold one int64, got shape {trip_count.shape} of {trip_count.dtype}",
        )
    net = op.bound(f"{ctx.op_def.output[0] if ctx.op_def.output else ctx.op_def.name or op.type}/loop")
    fixed = len(net.external_input) - 2 - op.captured
    values, captured, empty = given[:fixed], given[fixed : fixed + op.captured], given[fixed + op.captured :]
    limit = int(trip_count.reshape(-1)[0]) if op.has_trip_count else None
    continues = truth_of(condition, "ONNXWhile: the condition") if op.has_cond else True
    workspace = ctx.workspace
    collected: list[list[Any]] = [[] for _ in net.external_output[1 + len(values) :]]
    state = [np.array(continues), *(value.copy() for value in values)]
    for name, value in zip(net.external_input[2 + fixed :], captured):
        workspace.feed(name, value)
    iteration = 0
    while continues and (limit is None or iteration < limit):
        for name, value in zip(net.external_input, [np.array(iteration, np.int64), *state]):
            workspace.feed(name, value)
        call = _compiled.get(ctx)
        if call is None:
            call = _compiled[ctx] = ctx.compile(net)
        call()
        made = [workspace.fetch(name) for name in net.external_output]
        state = made[: 1 + len(values)]
        for parts, part in zip(collected, made[1 + len(values) :]):
            parts.append(part)
        continues = truth_of(made[0], "ONNXWhile: the condition that the body makes") if op.has_cond else True
        iteration += 1
    nothing = empty or [np.zeros(0, np.float32)] * len(collected)
    return (*state[1:], *(_concatenated(parts) if parts else none for parts, none in zip(collected, nothing)))


def _concatenated(parts: list[Any]) -> Any:
    if len({part.shape[1:] for part in parts}) > 1 or not parts[0].ndim:
        raise ShapeError(
            "ONNXWhile: the tensors of a collected blob must have a first axis, and differ only along it, got shapes "
            f"{[part.shape for part in parts]}"
        )
    return np.concatenate(parts)
