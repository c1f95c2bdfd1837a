"""operator_class: a decorator for frozen dataclasses that finds the fields of a class when it is first used.

Hundreds of operators are declared and few are used: ``import netbuilder.ops.all`` takes 0.31 s with it and 1.29 s with
``dataclasses.dataclass`` (CPU time, the best of ten). The methods are those of ``Declared``, the same for all classes:
to generate them for each class takes a millisecond or two, ten times as long as the fields.
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
    _defaults: ClassVar[dict[str, Any]] = {}  # by the names of all fields, in their order
    _required: ClassVar[tuple[str, ...]] = ()  # fields without a default

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls._complete:
            _complete(cls)
        return super().__new__(cls)

    if not TYPE_CHECKING:

        def __init__(self, *values: Any, **given: Any) -> None:
            if values:
                given = _by_name(type(self), values, given)
            own, names = self.__dict__, self._defaults
            own.update(names)
            own.update(given)
            if len(own) > len(names):
                unknown = next(name for name in given if name not in names)
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {unknown!r}")
            if missing := [name for name in self._required if name not in given]:
                raise TypeError(f"{type(self).__name__}() lacks the arguments {', '.join(missing)}")

        def __repr__(self) -> str:
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._defaults)
            return f"{type(self).__qualname__}({values})"

        def __eq__(self, other: object) -> Any:
            if type(self) is not type(other):
                return NotImplemented
            return self._values() == other._values()

        def __hash__(self) -> int:
            return hash(self._values())

        def __setattr__(self, name: str, value: Any) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

        def _values(self) -> tuple[Any, ...]:
            own = self.__dict__
            return tuple([own[name] for name in self._defaults])


def _by_name(cls: type[Declared], values: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class by name.

    Raises:
        TypeError: there are too many, or one is given twice.
    """
    names = list(cls._defaults)
    if len(values) > len(names):
        raise TypeError(f"{cls.__name__}() takes {len(names)} arguments, got {len(values)}")
    found = dict(zip(names, values))
    if twice := found.keys() & given.keys():
        raise TypeError(f"{cls.__name__}() got multiple values for the argument {min(twice)!r}")
    return found | given


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
    """Find the fields of a class, after those of its bases."""
    with loading:
        each: Any
        for each in reversed(cls.__mro__):
            if not isinstance(each.__dict__.get("__dataclass_fields__"), _Fields):
                continue
            alone = _alone(each)
            fields: dict[str, dataclasses.Field[Any]] = {}
            for base in (*reversed(each.__mro__[1:]), alone):
                fields |= base.__dict__.get("__dataclass_fields__", {})
            each.__dataclass_params__, each.__dataclass_fields__ = alone.__dataclass_params__, fields
            found = dataclasses.fields(each)
            each._defaults = {field.name: field.default for field in found}
            each._required = tuple(field.name for field in found if field.default is dataclasses.MISSING)
            each._complete = True


def _alone(cls: type) -> Any:
    """Return a dataclass with the fields that a class declares itself, and no methods."""
    names = cls.__dict__.get("__annotations__", {})
    body = {name: getattr(cls, name) for name in names if hasattr(cls, name)}
    body |= {"__annotations__": names, "__module__": cls.__module__, "__doc__": cls.__doc__}
    alone: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(type(cls.__name__, (), body))
    alone.__dataclass_params__.frozen = True  # ordinary dataclasses below are frozen, too
    return alone


if TYPE_CHECKING:
    from dataclasses import dataclass as operator_class
else:

    def operator_class(*, frozen: bool) -> Callable[[type], type]:
        """Class decorator: as ``dataclasses.dataclass``, but postponed to the first use of a ``Declared``.

        Its fields have plain defaults, or none.
        """

        def declare(cls: type) -> type:
            if not issubclass(cls, Declared):
                return dataclasses.dataclass(frozen=frozen)(cls)
            assert frozen
            cls.__dataclass_fields__ = _Fields(cls)
            cls._complete = False
            return cls

        return declare
