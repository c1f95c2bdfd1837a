"""Objects that are current inside a ``with`` block: builders, tasks, nodes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from netbuilder.graph.scope import SEPARATOR
from netbuilder.proto import UsageError

__all__ = ["DefaultManaged", "Managed", "builder_names", "under_builder"]

_Own = TypeVar("_Own", bound="Managed")
_stacks = threading.local()


def _stack(cls: type[Managed]) -> list[Any]:
    """Return the objects of a class that are current in this thread, the innermost last."""
    stacks: dict[type[Managed], list[Any]] = _stacks.__dict__.setdefault("by_class", {})
    return stacks.setdefault(cls, [])


class Managed:
    """What can be entered; inside, ``Class.current()`` gives it, also for the classes it derives from.

    It decorates a function, too, which then runs inside.

    >>> class Scope(Managed):
    ...     pass
    >>> with Scope() as scope:
    ...     Scope.current() is scope
    True
    """

    @classmethod
    def current(cls: type[_Own], value: Any = None, required: bool = True) -> Any:
        """Return ``value`` if it is given, else the innermost object around.

        Args:
            value: an object of the class.
            required: raise if there is none; False: return None.

        Raises:
            UsageError: there is none.
            TypeError: ``value`` is of another class.
        """
        if value is not None:
            if not isinstance(value, cls):
                raise TypeError(f"{cls.__name__}: got {value!r}, which is none")
            return value
        stack = _stack(cls)
        if stack:
            return stack[-1]
        if issubclass(cls, DefaultManaged):
            stack.append(cls())
            return stack[-1]
        if required:
            raise UsageError(f"there is no {cls.__name__} around; use `with {cls.__name__}(...):`, or pass one")
        return None

    def __enter__(self: _Own) -> _Own:
        for cls in _classes(self):
            if issubclass(cls, DefaultManaged):
                cls.current()  # the one to come back to
            _stack(cls).append(self)
        return self

    def __exit__(self, *args: Any) -> Any:
        for cls in _classes(self):
            stack = _stack(cls)
            while stack and stack.pop() is not self:
                pass
        return None

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return func(*args, **kwargs)

        return inside


class DefaultManaged(Managed):
    """The same; where none is around, one is made without arguments, and stays."""


def _classes(obj: Managed) -> list[type[Managed]]:
    return [
        cls
        for cls in type(obj).__mro__
        if issubclass(cls, Managed) and cls is not Managed and cls is not DefaultManaged
    ]


builder_names: list[Callable[[], str]] = []
"""Functions that tell the name of the builder around, "" for none: what nets made in it are called after."""


def under_builder(name: str) -> str:
    """Return the name of a net made within a builder, which begins with the builder's."""
    around = next((found for tell in builder_names if (found := tell())), "")
    return f"{around}{SEPARATOR}{name}" if around and name else around or name
