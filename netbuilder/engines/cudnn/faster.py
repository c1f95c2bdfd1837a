"""The choice between a graph of cuDNN and kernels of our own, by measuring, where a search was asked for.

It is kept in the file of measured choices, as those of plans are. On a described GPU, where nothing can be measured,
that which reads and writes fewer bytes is taken: both wait for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.arrays import array_module
from netbuilder.engines.choices import Choices, turned_off
from netbuilder.engines.cudnn import plans
from netbuilder.engines.described_gpu import described_gpu
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import FurtherBytes
from netbuilder.proto import PROTO_CUDA

__all__ = ["faster", "second_is_faster"]

_ROUNDS = 3
_FIRST, _SECOND = "first", "second"


def faster(ctx: PlanContext, key: str, by_cudnn: Prepared, own: Prepared) -> Prepared:
    """Return the faster one of two kernels with the same inputs and outputs; cuDNN's where that cannot be measured.

    Args:
        ctx: of the plan.
        key: describes what they compute.
        by_cudnn, own: the kernels.
    """
    return own if second_is_faster(ctx, f"cuDNN or own {key}", [by_cudnn], [own]) else by_cudnn


def second_is_faster(ctx: PlanContext, key: str, first: Sequence[Prepared], second: Sequence[Prepared]) -> bool:
    """Return whether the second one of two ways to do the same is the faster one; False where nothing is measured.

    Args:
        ctx: of the plan.
        key: describes what they do.
        first, second: the kernels of each, whose times are added.
    """
    if described_gpu() is not None:
        return sum(map(_nbytes, second)) < sum(map(_nbytes, first))
    if turned_off():
        return False
    with gpu(ctx.device_id):
        choices = Choices.of(plans.machine())
        # Which plan cuDNN's graph has depends on this, too.
        key = f"{key}{'' if ctx.enabled('atomic_sums') else ' deterministic'}"
        chosen = choices.get(key)
        if chosen not in (_FIRST, _SECOND):
            try:
                times = {_FIRST: sum(map(_time, first)), _SECOND: sum(map(_time, second))}
            except plans.failures():  # where their memory does not fit, too
                return False
            chosen = min(times, key=times.__getitem__)
            choices.put({key: chosen, **{f"time of {key}: {name}": time for name, time in times.items()}})
    return chosen == _SECOND


def _nbytes(made: Prepared) -> int:
    further = made.get(FurtherBytes)
    specs = sum(spec.nbytes for spec in (*made.inputs, *made.outputs) if spec is not None)
    return specs + (0 if further is None else further.count)


def _time(made: Prepared) -> float:
    """Return the seconds that a kernel takes on the current GPU, the least of a few rounds."""
    xp = array_module(PROTO_CUDA)
    inputs, outputs = ([_zeros(xp, spec) for spec in specs] for specs in (made.inputs, made.outputs))
    call: Call = made.bind(inputs, outputs, xp.zeros(max(made.scratch, 1), np.uint8))
    call()  # loads the kernels
    return min(plans.seconds(call) for _ in range(_ROUNDS))


def _zeros(xp: Any, spec: Any) -> Any:
    return None if spec is None else xp.zeros(spec.nbytes, np.uint8)
