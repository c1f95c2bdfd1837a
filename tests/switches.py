"""Switching off single optimizations, which users do by groups."""

from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS, Optimization

__all__ = ["single"]


def single(*names: str) -> tuple[Optimization, ...]:
    """Return the optimizations of these names, to be given as ``without``."""
    return tuple(OPTIMIZATIONS[name] for name in names)
