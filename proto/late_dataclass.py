"""dataclass: that of the standard library, with fields and methods that are made when they are first looked up.

Python 3.11 takes 0.8 ms to make those of one frozen class, which was a third of the time to import netbuilder. Most
classes, such as those of operators, never have an instance in a process.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, kw_only=False, **options):
        """Make a class a dataclass; options are those of the standard library, whose classes may inherit from it.

        A class that is frozen, with no other options than these, gets its methods late. It cannot have ``InitVar``.
        """

        def made(cls):
            if not frozen or options:
                return dataclasses.dataclass(cls, frozen=frozen, eq=eq, kw_only=kw_only, **options)
            return _with_late_methods(cls, eq, kw_only)

        return made if cls is None else made(cls)


_FINISHED = {
    eq: vars(dataclasses.dataclass(type("", (), {"__doc__": "none"}), frozen=True, eq=eq)) for eq in (False, True)
}
"""The attributes of a class that the standard library has made."""

_ADDED = ("__dataclass_params__", *(["__replace__"] if "__replace__" in _FINISHED[True] else []))
"""Those that do not depend on the class, the second one since Python 3.13."""


class _Factory:
    """Stands in signatures for what a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class _Late:
    """A method of a dataclass that is made when it is first looked up, and then replaced."""

    __slots__ = ("_cls", "_name")

    def __init__(self, cls: Any, name: str) -> None:
        self._cls, self._name = cls, name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        method = _METHODS[self._name](self._cls)
        method.__module__, method.__qualname__ = self._cls.__module__, f"{self._cls.__qualname__}.{self._name}"
        setattr(self._cls, self._name, method)
        return method.__get__(instance, owner)


class _LateFields:
    """An attribute of a dataclass, of those that ``_make_fields`` sets."""

    __slots__ = ("_cls", "_kw_only", "_name", "_own")

    def __init__(self, name: str, cls: Any, own: tuple[dict[str, Any], dict[str, Any]], kw_only: bool) -> None:
        self._name, self._cls, self._own, self._kw_only = name, cls, own, kw_only

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        _make_fields(self._cls, *self._own, self._kw_only)
        return vars(self._cls)[self._name]


def _with_late_methods(cls: Any, eq: bool, kw_only: bool) -> Any:
    annotations = inspect.get_annotations(cls)
    values = {name: getattr(cls, name) for name in annotations if hasattr(cls, name)}
    for name in _ADDED:
        setattr(cls, name, _FINISHED[eq][name])
    if any(isinstance(value, dataclasses.Field) or type(value).__hash__ is None for value in values.values()):
        _make_fields(cls, annotations, values, kw_only)  # they are replaced, or refused
    else:
        for name in ("__dataclass_fields__", "__match_args__"):
            type.__setattr__(cls, name, _LateFields(name, cls, (annotations, values), kw_only))
    _add_methods(cls, eq)
    return cls


def _make_fields(cls: Any, annotations: dict[str, Any], values: dict[str, Any], kw_only: bool) -> None:
    """Set what the standard library knows of a class and its fields."""
    own = _plain(cls, annotations, values)
    dataclasses.dataclass(own, init=False, repr=False, eq=False, kw_only=kw_only)
    for name in annotations:
        if isinstance(vars(cls).get(name), dataclasses.Field):
            if hasattr(own, name):
                setattr(cls, name, getattr(own, name))
            else:
                delattr(cls, name)
    fields: dict[str, Any] = {}
    for base in cls.__mro__[:0:-1]:
        fields |= getattr(base, "__dataclass_fields__", {})
    fields |= own.__dataclass_fields__
    cls.__dataclass_fields__ = fields
    matched = tuple(field.name for field in dataclasses.fields(cls) if field.init and not field.kw_only)
    type.__setattr__(cls, "__match_args__", matched)  # mypy takes an assignment for one in the body of a class


def _add_methods(cls: Any, eq: bool) -> None:
    stated = vars(cls)
    late = ["__init__", "__repr__", *(["__eq__"] if eq else [])]
    names = [name for name in late if name not in stated]
    if eq and ("__hash__" not in stated or (stated["__hash__"] is None and "__eq__" in stated)):
        names.append("__hash__")
    for name in names:
        setattr(cls, name, _Late(cls, name))

    def refuse(verb: str, instance: Any, name: str) -> None:
        if type(instance) is cls or name in {field.name for field in dataclasses.fields(cls)}:
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {name!r}")

    def __setattr__(self: Any, name: str, value: Any) -> None:
        refuse("assign to", self, name)
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        refuse("delete", self, name)
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__


def _representation(cls: Any) -> Any:
    """Return the method ``__repr__``, of a class with the same fields and nothing else."""
    fields = dataclasses.fields(cls)
    values: dict[str, Any] = {field.name: field for field in fields}
    twin = _plain(cls, {field.name: field.type for field in fields}, values)
    return vars(dataclasses.dataclass(twin, init=False, eq=False))["__repr__"]


def _values_of(names: Sequence[str]) -> Any:
    """Return a function that returns the attributes of these names as a tuple."""
    get: Any = attrgetter(*names) if names else None
    if len(names) > 1:
        return get
    return (lambda instance: (get(instance),)) if names else (lambda instance: ())


def _equality(cls: Any) -> Any:
    """Return the method ``__eq__``."""
    values = _values_of([field.name for field in dataclasses.fields(cls) if field.compare])

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(cls: Any) -> Any:
    """Return the method ``__hash__``."""
    wanted = [each for each in dataclasses.fields(cls) if (each.compare if each.hash is None else each.hash)]
    values = _values_of([field.name for field in wanted])

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _initializer(cls: Any) -> Any:
    """Return the method ``__init__``; that of the standard library comes with two other methods, and takes longer."""
    given, by_keyword, lines = list[str](), list[str](), list[str]()
    names: dict[str, Any] = {"__set": object.__setattr__, "__factory": _FACTORY}
    own = "__self" if any(field.name == "self" for field in dataclasses.fields(cls)) else "self"
    for field in dataclasses.fields(cls):
        default, value = f"__default_{field.name}", field.name
        if field.default_factory is not dataclasses.MISSING:
            names[default] = field.default_factory
            value = f"{default}() if {field.name} is __factory else {field.name}" if field.init else f"{default}()"
        elif not field.init:
            continue  # its default is an attribute of the class
        else:
            names[default] = field.default
        if field.init:
            optional = not field.default is field.default_factory is dataclasses.MISSING
            stated = default if value == field.name else "__factory"
            (by_keyword if field.kw_only else given).append(f"{field.name}={stated}" if optional else field.name)
        lines.append(f" __set({own}, {field.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(f" {own}.__post_init__()")
    parameters = ", ".join([own, *given, *(["*", *by_keyword] if by_keyword else [])])
    exec("\n".join([f"def __init__({parameters}):", *(lines or [" pass"])]), names)
    made = names["__init__"]
    made.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls) if field.init}
    made.__annotations__["return"] = None
    return made


_METHODS = {"__init__": _initializer, "__repr__": _representation, "__eq__": _equality, "__hash__": _hash}


def _plain(cls: Any, annotations: dict[str, Any], values: dict[str, Any]) -> Any:
    """Return a class of the same name, without bases; the text keeps the standard library from writing one."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": "fields"}
    return type(cls.__name__, (), {**names, "__annotations__": annotations, **values})
