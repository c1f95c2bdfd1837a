"""Optimizers by name, current within a block."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python.context import DefaultManaged
from netbuilder.caffe2.python.modifier_context import DEFAULT_MODIFIER, ModifierContext, UseModifierBase
from netbuilder.caffe2.python.optimizer import Optimizer

__all__ = ["DEFAULT_OPTIM", "OptimizerContext", "UseOptimizer"]

DEFAULT_OPTIM = DEFAULT_MODIFIER

__getattr__ = names_of(__name__)


class OptimizerContext(ModifierContext, DefaultManaged):
    """Optimizers by name, for what builds nets and asks for them."""

    def has_optimizer(self, name: str) -> bool:
        """Whether there is one of this name."""
        return self._has_modifier(name)

    def get_optimizer(self, name: str) -> Any:
        """Return the one of this name.

        Raises:
            ArgumentError: there is none.
        """
        return self._get_modifier(name)


class UseOptimizer(UseModifierBase):
    """A block in which optimizers are known: ``with UseOptimizer(...):``, one alone or a dict by name."""

    def _context_class(self) -> type[OptimizerContext]:
        return OptimizerContext

    def _modifier_class(self) -> type[Optimizer]:
        return Optimizer
