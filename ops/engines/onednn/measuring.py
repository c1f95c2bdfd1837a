"""How long a primitive takes on this machine: measured where implementations have to be chosen between.

``NETBUILDER_MEASURE=0`` in the environment leaves the choice to what is fastest on an idle machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from netbuilder.ops.engines.arrays import aligned_empty
from netbuilder.ops.engines.onednn.library import threads
from netbuilder.ops.engines.onednn.primitive import Held, Primitive, Step

__all__ = ["seconds", "turned_off"]

SWITCH_VARIABLE = "NETBUILDER_MEASURE"

_RUNS = 4

_measured: dict[tuple[Primitive, int], float] = {}


def turned_off() -> bool:
    """Whether nothing is to be measured, so that every process chooses alike."""
    return os.environ.get(SWITCH_VARIABLE, "1").strip().lower() in ("0", "off", "no", "false")


def seconds(primitive: Primitive, arguments: Sequence[int], n: int) -> float:
    """Return what one run takes, in seconds: the mean of a few on memory of zeroes, kept for the process.

    The mean, and not the least: what has to be found out is how a primitive bears what else the machine does.

    Args:
        primitive: what is to run.
        arguments: the numbers of its arguments of execution.
        n: threads to run it with.
    """
    key = (primitive, n)
    if key not in _measured:
        places = {number: Held(primitive.nbytes(number)) for number in arguments}
        call = Step(primitive, places).bind((), (), aligned_empty(primitive.scratch), 0)
        with threads(n):
            call()
            start = time.perf_counter()
            for _ in range(_RUNS):
                call()
        _measured[key] = (time.perf_counter() - start) / _RUNS
    return _measured[key]
