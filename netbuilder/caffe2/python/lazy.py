"""What waits to be loaded until operators are needed."""

from __future__ import annotations

from collections.abc import Callable

from netbuilder.caffe2.missing import names_of

__all__ = ["RegisterLazyImport", "TriggerLazyImport"]

__getattr__ = names_of(__name__)

_waiting: list[Callable[[], object]] = []


def RegisterLazyImport(lazy: Callable[[], object]) -> None:
    """Have a function called whenever operators are looked up or a net is created, run or registered.

    Args:
        lazy: called without arguments; it may be called often and should return at once when it has nothing to do.
    """
    _waiting.append(lazy)


def TriggerLazyImport() -> None:
    """Call the functions that were registered, in their order; what one raises goes to the caller."""
    for lazy in _waiting:
        lazy()
