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
    """A context manager; inside the block ``Class.current()`` returns it, also for its base classes.

    It is a decorator as well: the decorated function runs inside the block.

    >>> class Scope(Managed):
    ...     pass
    >>> with Scope() as scope:
    ...     Scope.current() is scope
    True
    """

    @classmethod
    def current(cls: type[_Own], value: Any = None, required: bool = True) -> Any:
        """Return ``value`` if it is given, else the object of the innermost enclosing ``with`` block.

        Args:
            value: an object of the class.
            required: raise outside of all blocks; False: return None.

        Raises:
            UsageError: no block is entered.
            TypeError: ``value`` is of another class.
        """
        if value is not None:
            if not isinstance(value, cls):
                raise TypeError(f"{cls.__name__}.current: value must be a {cls.__name__}, got {value!r}")
            return value
        stack = _stack(cls)
        if stack:
            return stack[-1]
        if issubclass(cls, DefaultManaged):
            stack.append(cls())
            return stack[-1]
        if required:
            raise UsageError(f"no {cls.__name__} is current; use `with {cls.__name__}(...):`, or pass one")
        return None

    def __enter__(self: _Own) -> _Own:
        for cls in _classes(self):
            if issubclass(cls, DefaultManaged):
                cls.current()  # create the default object, which is current again after the block
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
    """A ``Managed`` with a default object, which is made without arguments when it is first needed."""


def _classes(obj: Managed) -> list[type[Managed]]:
    return [
        cls
        for cls in type(obj).__mro__
        if issubclass(cls, Managed) and cls is not Managed and cls is not DefaultManaged
    ]


builder_names: list[Callable[[], str]] = []
"""Functions that return the name of the current builder, "" for none; it prefixes the names of nets made in it."""


def under_builder(name: str) -> str:
    """Return the name of a net made in the current builder: ``name`` with the builder's name as prefix."""
    builder = next((found for current_name in builder_names if (found := current_name())), "")
    return f"{builder}{SEPARATOR}{name}" if builder and name else builder or name
