"""Concat and Split bound to plain buffers on the CPU: the parts are copied once, and no copy is made in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.arrange.concat import Concat, Split
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import CPU, prepare

__all__: list[str] = []

_NUMBERS = "fiub"


@prepare(Concat, device=CPU, priority=-1)
def prepare_concat(op: Concat, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    if op.adds_axis or specs[0].dtype.kind not in _NUMBERS:
        return None
    inputs = [spec.plain for spec in specs]
    outputs = op.infer(*inputs)[: op.n_out]
    axis = op.axis_in(inputs[0].ndim, inputs[0].shape)
    extents = np.array([spec.shape[axis] for spec in inputs], np.int32)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        parts, whole = list(ins), outs[0]
        if len(outs) == 1:
            return lambda: np.concatenate(parts, axis, whole)
        info = outs[1]

        def call() -> None:
            np.concatenate(parts, axis, whole)
            np.copyto(info, extents)

        return call

    return Prepared(inputs, outputs, bind, name="numpy")


@prepare(Split, device=CPU, priority=-1)
def prepare_split(op: Split, ctx: PlanContext, x: TensorSpec, *extents: TensorSpec) -> Prepared | None:
    if op.adds_axis or x.dtype.kind not in _NUMBERS:
        return None
    outputs = op.infer(x.plain, *extents)
    axis = op.axis_in(x.ndim, x.shape)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        pairs, start = [], 0
        for out in outs:
            stop = start + out.shape[axis]
            pairs.append((out, ins[0][(slice(None),) * axis + (slice(start, stop),)]))
            start = stop

        def call() -> None:
            for out, part in pairs:
                np.copyto(out, part)

        return call

    return Prepared([x.plain, *(None for _ in extents)], outputs, bind, name="numpy")
