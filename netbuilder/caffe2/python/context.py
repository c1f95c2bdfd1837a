"""Objects that are current inside a ``with`` block: one stack per class and thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from netbuilder.caffe2.missing import names_of
from netbuilder.proto import UsageError

__all__ = ["DefaultManaged", "Managed"]

__getattr__ = names_of(__name__)

M = TypeVar("M", bound="Managed")


class Managed:
    """Base of classes whose objects are entered by ``with``; ``current()`` returns the innermost one.

    Each direct subclass has its own stack per thread, shared with its subclasses.

    >>> class Color(Managed):
    ...     pass
    >>> with Color() as red:
    ...     Color.current() is red
    True
    >>> Color.current(required=False) is None
    True
    """

    _stacks: threading.local

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "_stacks") and cls.__name__ != "DefaultManaged":
            cls._stacks = threading.local()

    @classmethod
    def _stack(cls) -> list[Any]:
        if not hasattr(cls._stacks, "entered"):
            cls._stacks.entered = []
        entered: list[Any] = cls._stacks.entered
        return entered

    @classmethod
    def _first(cls) -> Any:
        """Return the object that is current before any is entered: None."""
        return None

    @classmethod
    def current(cls: type[M], value: Any = None, required: bool = True) -> Any:
        """Return ``value`` if it is given, else the innermost object.

        Args:
            value: an object of this class that takes precedence, or None.
            required: raise an error if nothing is current, instead of returning None.

        Raises:
            TypeError: ``value`` is of another class.
            UsageError: nothing is current.
        """
        if value is not None:
            if not isinstance(value, cls):
                raise TypeError(f"{cls.__name__}.current: value must be a {cls.__name__}, got {value!r}")
            return value
        stack = cls._stack()
        found = stack[-1] if stack else cls._first()
        if found is None and required:
            raise UsageError(f"no {cls.__name__} is current; enter one with `with {cls.__name__}(...):`")
        return found

    def __enter__(self: M) -> M:
        self._stack().append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack().pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function: it runs inside ``with self``."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside


class DefaultManaged(Managed):
    """``Managed`` with a default object, current where none has been entered: one per class and thread."""

    @classmethod
    def _first(cls) -> Any:
        if not hasattr(cls._stacks, "default"):
            cls._stacks.default = cls()
        return cls._stacks.default
