"""Dispatch of functions by the type of their argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Visitor"]


class Visitor:
    """Calls the function registered for an object's type."""

    visitors: dict[type, Callable[..., Any]]

    @classmethod
    def register(cls, Type: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that registers a function for objects of ``Type``."""
        if "visitors" not in vars(cls):
            cls.visitors = {}

        def take(function: Callable[..., Any]) -> Callable[..., Any]:
            cls.visitors[Type] = function
            return function

        return take

    def __call__(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the function for an object, or for each element of a list.

        Raises:
            TypeError: no function is registered for its type.
        """
        if isinstance(obj, (list, tuple)):
            for each in obj:
                self(each, *args, **kwargs)
            return None
        for Type, function in self.visitors.items():
            if isinstance(obj, Type):
                return function(self, obj, *args, **kwargs)
        raise TypeError(f"{type(self).__name__}: unsupported object type: {type(obj)}")
