"""Normalizers by name, current within a block."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python.context import DefaultManaged
from netbuilder.caffe2.python.modifier_context import ModifierContext, UseModifierBase
from netbuilder.caffe2.python.normalizer import Normalizer

__all__ = ["NormalizerContext", "UseNormalizer"]

__getattr__ = names_of(__name__)


class NormalizerContext(ModifierContext, DefaultManaged):
    """Normalizers by name, for what builds nets and asks for them."""

    def has_normalizer(self, name: str) -> bool:
        """Whether there is one of this name."""
        return self._has_modifier(name)

    def get_normalizer(self, name: str) -> Any:
        """Return the one of this name.

        Raises:
            ArgumentError: there is none.
        """
        return self._get_modifier(name)


class UseNormalizer(UseModifierBase):
    """A block in which normalizers are known: ``with UseNormalizer(...):``, one alone or a dict by name."""

    def _context_class(self) -> type[NormalizerContext]:
        return NormalizerContext

    def _modifier_class(self) -> type[Normalizer]:
        return Normalizer
