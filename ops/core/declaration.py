"""operator_class: a dataclass decorator that generates the methods of a class when the class is first used.

Hundreds of operators are declared and few are used: ``import netbuilder.ops.all`` takes 0.31 s with it and 1.29 s with
``dataclasses.dataclass`` (CPU time, the best of ten).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from netbuilder.data.forking import loading

__all__ = ["Declared", "operator_class"]


class Declared:
    """Base of classes with ``operator_class``; making an instance, or reading the fields, completes the class."""

    _complete: ClassVar[bool] = True
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls._complete:
            _complete(cls)
        return super().__new__(cls)


class _Fields:
    """Placeholder for the fields of a class that is not complete yet."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _complete(self._cls)
        return getattr(self._cls.__dict__["__dataclass_fields__"], name)


def _complete(cls: type) -> None:
    """Generate the methods of a class, after those of its bases."""
    with loading:
        each: Any
        for each in reversed(cls.__mro__):
            if isinstance(each.__dict__.get("__dataclass_fields__"), _Fields):
                del each.__dataclass_fields__
                dataclasses.dataclass(frozen=True)(each)
                each._complete = True


if TYPE_CHECKING:
    from dataclasses import dataclass as operator_class
else:

    def operator_class(**options: Any) -> Callable[[type], type]:
        """Class decorator: as ``dataclasses.dataclass``, but postponed to the first use of a frozen ``Declared``."""

        def declare(cls: type) -> type:
            if options != {"frozen": True} or not issubclass(cls, Declared) or "__init__" in cls.__dict__:
                return dataclasses.dataclass(**options)(cls)
            cls.__dataclass_fields__ = _Fields(cls)
            cls._complete = False
            return cls

        return declare
