"""Garbage collection paused while many long-lived objects are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_paused"]


@contextmanager
def collection_paused() -> Iterator[None]:
    """Disable the garbage collector in the block.

    A large net, or its plan, has a million long-lived objects. The collector would traverse them again and again
    while they are created, which takes longer than creating them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
