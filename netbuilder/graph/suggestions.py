"""Suggestions in the error for a name that is neither an operator nor a method of a net."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from netbuilder.ops.core.registry import operator_types
from netbuilder.ops.core.unsupported import instead_of

__all__ = ["LacksError", "name_reasons", "why_missing"]

name_reasons: list[Callable[[str], str]] = []
"""Functions that return why a net does not have a name, or ""; the compatibility layer adds one."""


class LacksError(AttributeError):
    """There is no such attribute; its text ends with names that are similar, found when somebody reads it.

    That takes milliseconds, and whether something has an attribute is asked in each run of a net.

    Args:
        text: of the error.
        hint: returns its end.
    """

    def __init__(self, text: str, hint: Callable[[], str]) -> None:
        super().__init__(text)
        self._hint = hint

    def __str__(self) -> str:
        return f"{self.args[0]}{self._hint()}"

    def __reduce__(self) -> tuple[type[AttributeError], tuple[str]]:
        return AttributeError, (str(self),)


def why_missing(name: str, methods: Iterable[str]) -> str:
    """Return the end of a message, from "; " on: why a net lacks a name, or similar names; "" if neither is known.

    Args:
        name: the attribute that was requested.
        methods: the attributes of the net other than operators.
    """
    for reason_of in name_reasons:
        if reason := reason_of(name):
            return f"; {reason}"
    return instead_of(name, [*operator_types(), *methods])
