"""Modifiers of parameters by name, current within a block; the base of the contexts of optimizers and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.proto import ArgumentError

__all__ = ["DEFAULT_MODIFIER", "ModifierContext", "UseModifierBase"]

DEFAULT_MODIFIER = "DEFAULT"
"""The name under which a modifier given alone is kept."""

__getattr__ = names_of(__name__)


class ModifierContext:
    """Modifiers by name; what was pushed last hides what was pushed before under the same name."""

    def __init__(self) -> None:
        self._pushed: list[Mapping[str, Any]] = []

    def push_modifiers(self, modifiers: Mapping[str, Any]) -> None:
        """Add modifiers, by name."""
        self._pushed.append(dict(modifiers))

    def pop_modifiers(self) -> None:
        """Take away what was pushed last.

        Raises:
            ArgumentError: nothing is left.
        """
        if not self._pushed:
            raise ArgumentError(f"{type(self).__name__}.pop_modifiers: nothing has been pushed")
        self._pushed.pop()

    def _has_modifier(self, name: str) -> bool:
        return any(name in modifiers for modifiers in self._pushed)

    def _get_modifier(self, name: str) -> Any:
        for modifiers in reversed(self._pushed):
            if name in modifiers:
                return modifiers[name]
        known = sorted({key for modifiers in self._pushed for key in modifiers})
        raise ArgumentError(f"{type(self).__name__} has no {name!r}; it has {known or 'nothing'}")


class UseModifierBase:
    """Base of the blocks that push modifiers into a context: ``with UseOptimizer(...):``.

    Args:
        modifier_or_dict: one modifier, known as ``DEFAULT_MODIFIER``, or a dict of them by name.

    Raises:
        TypeError: a name is no string, or a modifier not of the kind that the context holds.
    """

    def __init__(self, modifier_or_dict: Any) -> None:
        given = modifier_or_dict
        if not isinstance(given, Mapping):
            given = {DEFAULT_MODIFIER: given}
        for name, modifier in given.items():
            kind = self._modifier_class()
            if not isinstance(name, str) or kind is not None and not isinstance(modifier, kind):
                expected = "modifiers" if kind is None else f"{kind.__name__}s"
                raise TypeError(f"{type(self).__name__}: takes {expected} by name, got {name!r}: {modifier!r}")
        self._modifiers = dict(given)

    def _context_class(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} says by _context_class() which context it pushes to")

    def _modifier_class(self) -> Any:
        return None

    def __enter__(self) -> UseModifierBase:
        self._context_class().current().push_modifiers(self._modifiers)
        return self

    def __exit__(self, *exception: object) -> None:
        self._context_class().current().pop_modifiers()
