"""Functions chosen by the type of what they are called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Visitor"]


class Visitor:
    """Calls, for an object, the function that a class has for its type."""

    visitors: dict[type, Callable[..., Any]]

    @classmethod
    def register(cls, Type: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator: the function is for objects of ``Type``."""
        if "visitors" not in vars(cls):
            cls.visitors = {}

        def take(function: Callable[..., Any]) -> Callable[..., Any]:
            cls.visitors[Type] = function
            return function

        return take

    def __call__(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Visit an object, or each of several.

        Raises:
            TypeError: there is no function for objects like it.
        """
        if isinstance(obj, (list, tuple)):
            for each in obj:
                self(each, *args, **kwargs)
            return None
        for Type, function in self.visitors.items():
            if isinstance(obj, Type):
                return function(self, obj, *args, **kwargs)
        raise TypeError(f"{type(self).__name__}: unsupported object type: {type(obj)}")
