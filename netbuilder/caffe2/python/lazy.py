"""Functions that load operators when they are first needed."""

from __future__ import annotations

from collections.abc import Callable

from netbuilder.caffe2.missing import names_of

__all__ = ["RegisterLazyImport", "TriggerLazyImport"]

__getattr__ = names_of(__name__)

_registered: list[Callable[[], object]] = []


def RegisterLazyImport(lazy: Callable[[], object]) -> None:
    """Register a function to call whenever operators are looked up or a net is created.

    Args:
        lazy: called without arguments; it may be called often, so it should return quickly when it has nothing to do.
    """
    _registered.append(lazy)


def TriggerLazyImport() -> None:
    """Call the registered functions in order; exceptions propagate."""
    for lazy in _registered:
        lazy()
