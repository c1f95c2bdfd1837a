"""How the cost of work grows with its size: CPU time of this thread, so that a busy machine does not matter.

A check allows far more than linear growth shows and far less than a quadratic one would: over a factor of
20 to 50 in size the cost of each piece may grow eight times.
"""

import gc
import time
from collections.abc import Callable

__all__ = ["cpu_seconds"]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that ``work`` takes in this thread, without garbage collection."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        began = time.thread_time()
        work()
        return time.thread_time() - began
    finally:
        if enabled:
            gc.enable()
