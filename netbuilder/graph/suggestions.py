"""What a net says of a name that is neither an operator nor a method of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from netbuilder.ops.core.registry import operator_types
from netbuilder.ops.core.unsupported import instead_of

__all__ = ["name_reasons", "why_missing"]

name_reasons: list[Callable[[str], str]] = []
"""Functions that say why a net does not have a name, or ""; the compatibility layer adds one."""


def why_missing(name: str, methods: Iterable[str]) -> str:
    """Return "; " and why a net has no such operator or method, or which are near; "" if neither is known.

    Args:
        name: what was read from the net.
        methods: what the net has besides operators.
    """
    for reason_of in name_reasons:
        if reason := reason_of(name):
            return f"; {reason}"
    return instead_of(name, [*operator_types(), *methods])
