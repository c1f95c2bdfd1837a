"""The worker process of a benchmark: reads commands, runs steps, answers with their times.

It runs by path in the peers' environments, which have no netbuilder, so it must not import netbuilder.

The protocol, one JSON text per line: after the warm-up the worker writes ``{"ready": info}``; to ``{"steps": n}`` it
answers ``{"seconds": [...], "loss": ...}``, a time for each step and the loss of the last one; it ends with its input.
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
        warmup: number of steps that are not timed.
        loss: returns the loss of the last step; None: there is no loss.
        info: description that the controller shows with the times.
    """
    # Libraries may print to standard output, which must contain only answers.
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
