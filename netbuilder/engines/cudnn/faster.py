"""The choice between a graph of cuDNN and kernels of our own, by measuring, where a search was asked for.

It is kept in the file of measured choices, as those of plans are. On a described GPU, where nothing can be measured,
that which reads and writes fewer bytes is taken: both wait for memory.
"""

from __future__ import annotations

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

__all__ = ["faster"]

_ROUNDS = 3
_CUDNN, _OWN = "cuDNN", "own"


def faster(ctx: PlanContext, key: str, by_cudnn: Prepared, own: Prepared) -> Prepared:
    """Return the faster one of two kernels with the same inputs and outputs; cuDNN's where that cannot be measured.

    Args:
        ctx: of the plan.
        key: describes what they compute.
        by_cudnn, own: the kernels.
    """
    if described_gpu() is not None:
        return min(by_cudnn, own, key=_further)
    if turned_off():
        return by_cudnn
    with gpu(ctx.device_id):
        choices = Choices.of(plans.machine())
        # Which plan cuDNN's graph has depends on this, too.
        key = f"cuDNN or own {key}{'' if ctx.enabled('atomic_sums') else ' deterministic'}"
        chosen = choices.get(key)
        if chosen not in (_CUDNN, _OWN):
            try:
                times = {_CUDNN: _time(by_cudnn), _OWN: _time(own)}
            except plans.failures():  # where their memory does not fit, too
                return by_cudnn
            chosen = min(times, key=times.__getitem__)
            choices.put({key: chosen, **{f"time of {key}: {name}": time for name, time in times.items()}})
    return own if chosen == _OWN else by_cudnn


def _further(made: Prepared) -> int:
    further = made.get(FurtherBytes)
    return 0 if further is None else further.count


def _time(made: Prepared) -> float:
    """Return the seconds that a kernel takes on the current GPU, the least of a few rounds."""
    xp = array_module(PROTO_CUDA)
    inputs, outputs = ([_zeros(xp, spec) for spec in specs] for specs in (made.inputs, made.outputs))
    call: Call = made.bind(inputs, outputs, xp.zeros(max(made.scratch, 1), np.uint8))
    call()  # loads the kernels
    return min(plans.seconds(call) for _ in range(_ROUNDS))


def _zeros(xp: Any, spec: Any) -> Any:
    return None if spec is None else xp.zeros(spec.nbytes, np.uint8)
