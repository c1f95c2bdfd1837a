"""OpenChoice: a choice between kernels that was not measured yet, so that the first one was taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = ["Lend", "OpenChoice"]

Lend = Callable[..., AbstractContextManager[Any]]
"""``lend(nbytes)`` or ``lend(nbytes, location)`` gives flat uint8, aligned for buffers, for the body of a ``with``."""


class OpenChoice(Protocol):
    """A choice between kernels that is measured in rounds, outside the compilation of plans.

    Attributes:
        key: describes the choice; two open choices with the same key need to be measured only once.
        worth: floating-point operations of a run that it decides on: the more, the more a right choice saves.
    """

    key: str
    worth: int

    @property
    def known(self) -> bool:
        """Whether it was measured, here or for another plan."""

    @property
    def started(self) -> bool:
        """Whether a round was measured."""

    @property
    def expected(self) -> float:
        """Seconds that the next round will take, estimated."""

    @property
    def differs(self) -> bool:
        """Whether a plan that is compiled now would be another one, by this choice."""

    def advance(self, lend: Lend, limit: float) -> None:
        """Measure rounds for about so many seconds, but at least one."""

    def keep(self) -> None:
        """Have what was found stored for other processes."""
