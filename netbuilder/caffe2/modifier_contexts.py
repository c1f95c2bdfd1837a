"""Modifiers of parameters, such as optimizers, by name and current within a block: four modules of Caffe2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.caffe2.python.context import DefaultManaged
from netbuilder.caffe2.python.normalizer import Normalizer
from netbuilder.caffe2.python.regularizer import Regularizer
from netbuilder.optimizers import Optimizer
from netbuilder.proto import ArgumentError

__all__ = [
    "DEFAULT_MODIFIER",
    "ModifierContext",
    "NormalizerContext",
    "OptimizerContext",
    "RegularizerContext",
    "UseModifierBase",
    "UseNormalizer",
    "UseOptimizer",
    "UseRegularizer",
]

DEFAULT_MODIFIER = "DEFAULT"
"""The name of a modifier that is given alone."""


class ModifierContext:
    """Modifiers by name; those pushed last hide earlier ones of the same name."""

    def __init__(self) -> None:
        self._pushed: list[Mapping[str, Any]] = []

    def push_modifiers(self, modifiers: Mapping[str, Any]) -> None:
        """Add modifiers, by name."""
        self._pushed.append(dict(modifiers))

    def pop_modifiers(self) -> None:
        """Remove the modifiers pushed last.

        Raises:
            ArgumentError: there are none.
        """
        if not self._pushed:
            raise ArgumentError(f"{type(self).__name__}.pop_modifiers: push_modifiers must be called first")
        self._pushed.pop()

    def _has_modifier(self, name: str) -> bool:
        """Whether there is a modifier of this name."""
        return any(name in modifiers for modifiers in self._pushed)

    def _get_modifier(self, name: str) -> Any:
        """Return the modifier of this name.

        Raises:
            ArgumentError: there is none.
        """
        for modifiers in reversed(self._pushed):
            if name in modifiers:
                return modifiers[name]
        known = sorted({key for modifiers in self._pushed for key in modifiers})
        raise ArgumentError(f"{type(self).__name__} has no {name!r}; it has {known or 'nothing'}")


class UseModifierBase:
    """Base of ``with`` blocks that push modifiers to a context: ``with UseOptimizer(...):``.

    Args:
        modifier_or_dict: one modifier, with the name ``DEFAULT_MODIFIER``, or a dict of modifiers by name.

    Raises:
        TypeError: a name is not a string, or a modifier has the wrong class.
    """

    def __init__(self, modifier_or_dict: Any) -> None:
        given = modifier_or_dict
        if not isinstance(given, Mapping):
            given = {DEFAULT_MODIFIER: given}
        for name, modifier in given.items():
            kind = self._modifier_class()
            if not isinstance(name, str) or kind is not None and not isinstance(modifier, kind):
                expected = "modifiers" if kind is None else f"{kind.__name__}s"
                raise TypeError(
                    f"{type(self).__name__}: the argument must be {expected} by name, got {name!r}: {modifier!r}"
                )
        self._modifiers = dict(given)

    def _context_class(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: subclasses must define _context_class")

    def _modifier_class(self) -> Any:
        return None

    def __enter__(self) -> UseModifierBase:
        self._context_class().current().push_modifiers(self._modifiers)
        return self

    def __exit__(self, *exception: object) -> None:
        self._context_class().current().pop_modifiers()


class NormalizerContext(ModifierContext, DefaultManaged):
    """Normalizers by name, for code that builds nets."""

    has_normalizer = ModifierContext._has_modifier
    get_normalizer = ModifierContext._get_modifier


class UseNormalizer(UseModifierBase):
    """A block that sets normalizers: ``with UseNormalizer(...):``, one alone or a dict by name."""

    def _context_class(self) -> type[NormalizerContext]:
        return NormalizerContext

    def _modifier_class(self) -> type[Normalizer]:
        return Normalizer


class OptimizerContext(ModifierContext, DefaultManaged):
    """Optimizers by name, for code that builds nets."""

    has_optimizer = ModifierContext._has_modifier
    get_optimizer = ModifierContext._get_modifier


class UseOptimizer(UseModifierBase):
    """A block that sets optimizers: ``with UseOptimizer(...):``, one alone or a dict by name."""

    def _context_class(self) -> type[OptimizerContext]:
        return OptimizerContext

    def _modifier_class(self) -> type[Optimizer]:
        return Optimizer


class RegularizerContext(ModifierContext, DefaultManaged):
    """Regularizers by name, for code that builds nets."""

    has_regularizer = ModifierContext._has_modifier
    get_regularizer = ModifierContext._get_modifier


class UseRegularizer(UseModifierBase):
    """A block that sets regularizers: ``with UseRegularizer(...):``, one alone or a dict by name."""

    def _context_class(self) -> type[RegularizerContext]:
        return RegularizerContext

    def _modifier_class(self) -> type[Regularizer]:
        return Regularizer
