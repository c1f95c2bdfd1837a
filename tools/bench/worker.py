"""The side of a benchmark that steps: reads commands, runs steps, answers with their times.

It is run by path in the peers' environments, which have no netbuilder, so it imports nothing of ours.

The conversation, one JSON text a line: the worker says ``{"ready": info}`` once it is warm; to ``{"steps": n}`` it
answers ``{"seconds": [...]}``, one number a step, and the loss of the last one as ``"loss"``; the end of input ends it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["serve"]


def serve(
    step: Callable[[], Any],
    *,
    warmup: int,
    loss: Callable[[], float] | None = None,
    info: dict[str, Any] | None = None,
) -> None:
    """Warm up, then answer commands until the input ends.

    Args:
        step: runs one step to its end.
        warmup: steps that are not counted.
        loss: returns the loss of the last step; None: there is none.
        info: what the controller shows with the figures.
    """
    # keep the output of libraries out of the answers
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for _ in range(warmup):
        step()
    print(json.dumps({"ready": info or {}}), file=answers)
    for line in sys.stdin:
        seconds = []
        for _ in range(json.loads(line)["steps"]):
            began = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds, "loss": loss() if loss else None}), file=answers)
