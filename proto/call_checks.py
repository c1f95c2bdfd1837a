"""Checks of what public functions are called with, by the types in their signatures."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

import numpy as np

from netbuilder.proto.errors import ArgumentError

__all__ = ["CallChecks", "Check", "checked", "is_flag", "is_number", "is_whole"]

F = TypeVar("F", bound=Callable[..., Any])


class Check(NamedTuple):
    """A check of a value.

    Args:
        fits: whether a value is of the type.
        words: what it must be.
        by_type: of values of one Python type either all fit or none does.
    """

    fits: Callable[[Any], bool]
    words: str
    by_type: bool = False


_ALWAYS: dict[str, tuple[type, ...]] = {
    "None": (type(None),), "int": (int,), "float": (float, int), "bool": (bool,), "str": (str,), "bytes": (bytes,),
}  # fmt: skip
"""By types as they are written, those of values that need no other look."""

_LISTS = ("Sequence", "Iterable", "Collection", "list", "tuple")
_HELD = (list, tuple, set, frozenset, dict, range, np.ndarray)
_MAPPINGS = ("Mapping", "dict")
_UNCHECKED = ("Any", "Array", "Literal", "Optional", "Union", "ndarray", "object", "type")
_FLAG = "True or False"
_SHOWN = 200  # characters of a value in a message


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, and no flag."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_flag(value: Any) -> bool:
    """Whether a value is true or false; 0 and 1 are, text and arrays are not."""
    return isinstance(value, (Integral, Real)) and value in (0, 1) or type(value).__name__ in ("bool", "bool_")


def is_number(value: Any) -> bool:
    """Whether a value is a real number, and no flag."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes)) and getattr(value, "ndim", 1) > 0


_PLAIN: dict[str, Check] = {
    "None": Check(lambda value: value is None, "None", True),
    "int": Check(is_whole, "a whole number", True),
    "float": Check(is_number, "a number", True),
    "bool": Check(is_flag, _FLAG),
    "str": Check(lambda value: isinstance(value, str), "a string", True),
    "bytes": Check(lambda value: isinstance(value, bytes), "bytes", True),
    "os.PathLike[str]": Check(lambda value: isinstance(value, os.PathLike), "a path", True),
    "Callable": Check(callable, "a function", True),
}


class CallChecks:
    """Checks the arguments of one function; those without a type, or with one that is not known, may be anything.

    Args:
        owner: the function's name in messages.
        signature: with the types as they are written.
        names: what names in types mean: the globals of the function's module.
        kinds: checks of types, as they are written, that take precedence.
        own: arguments that are not checked.
        more: types of further arguments by name, or in place of those in the signature.
    """

    def __init__(
        self,
        owner: str,
        signature: inspect.Signature,
        names: Mapping[str, Any],
        kinds: Mapping[str, Check] | None = None,
        own: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
    ) -> None:
        self._owner = owner
        self._names = names
        self._kinds: Mapping[str, Check] = kinds or {}
        self._parameters = tuple(signature.parameters)
        written = {name: kind for name, kind in _written(signature) if name not in own} | dict(more or {})
        found = {name: self._check(kind) for name, kind in written.items()}
        self._checks = {name: check for name, check in found.items() if check is not None}
        self._fitting = {name: self._of_each_value(written[name]) for name in self._checks}

    def problem(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return what is wrong with the first argument that has another type; "" for none."""
        for name, value in itertools.chain(zip(self._parameters, args), kwargs.items()):
            fitting = self._fitting.get(name)
            if fitting is None or type(value) in fitting:
                continue
            check = self._checks[name]
            if not check.fits(value):
                return f"{self._owner}: {name} must be {check.words}, got {_shown(value)}"
            if check.by_type:
                fitting.add(type(value))
        return ""

    def _of_each_value(self, kind: str) -> set[type]:
        """Return the types of which each value fits; those that are found later join them."""
        if kind in self._kinds:
            return set()
        return {each for part in _split(kind, "|") if part not in self._kinds for each in _ALWAYS.get(part, ())}

    def _check(self, kind: str) -> Check | None:
        """Return the check of a type as it is written; None: it may be anything."""
        if kind in self._kinds:
            return self._kinds[kind]
        checks = [self._check_one(part) for part in _split(kind, "|")]
        known = [check for check in checks if check is not None]
        if len(known) < len(checks):
            return None
        words = [word for each in known for word in (["True", "False"] if each.words == _FLAG else [each.words])]
        tests = [each.fits for each in known]
        test = tests[0] if len(tests) == 1 else lambda value: any(fits(value) for fits in tests)
        said = _alternatives(sorted(dict.fromkeys(words), key=lambda word: word == "None"))
        return Check(test, said, all(each.by_type for each in known))

    def _check_one(self, kind: str) -> Check | None:
        if check := self._kinds.get(kind) or _PLAIN.get(kind):
            return check
        qualified, _, inner = kind.removesuffix("]").partition("[")
        name = qualified.rpartition(".")[2]
        inside = [part for part in _split(inner, ",") if part != "..."]
        if name == "set":
            return Check(lambda value: isinstance(value, (set, frozenset)), "a set", True)
        if name in _LISTS:
            return _list_check(name != "Iterable", self._check(inside[0]) if len(inside) == 1 else None)
        if name in _MAPPINGS:
            return _mapping_check(*map(self._check, inside))
        if name == "Literal":
            return Check(lambda value: isinstance(value, str) and value in map(_unquoted, inside), " or ".join(inside))
        return _PLAIN.get(name) or self._named(name, qualified)

    def _named(self, name: str, qualified: str) -> Check | None:
        """Return the check of a class, or of what an alias stands for."""
        if name in _UNCHECKED or not name.isidentifier():
            return None
        first, *rest = qualified.split(".")
        meant = functools.reduce(lambda owner, part: getattr(owner, part, None), rest, self._names.get(first))
        words = f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
        if meant is None:  # imported for type checkers only
            return Check(lambda value: any(base.__name__ == name for base in type(value).__mro__), words, True)
        if isinstance(meant, type) and not isinstance(meant, types.GenericAlias):
            protocol = getattr(meant, "_is_protocol", False)
            return None if protocol else Check(lambda value: isinstance(value, meant), words, True)
        return self._check(str(meant)) if typing.get_origin(meant) is not None else None


def checked(*own: str) -> Callable[[F], F]:
    """Return a decorator for a function or a class, which then refuses arguments of other types than its signature has.

    ArgumentError is raised before anything is done. Functions that run in each step of a training check what they get
    themselves.

    Args:
        own: arguments that the function itself checks.
    """

    def decorated(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = decorated(function.__init__)  # type: ignore[misc]
            return function
        signature = inspect.signature(function)
        owner = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")

        @functools.cache
        def checks() -> CallChecks:  # made at the first call: names of the module may be defined after the function
            return CallChecks(owner, signature, function.__globals__, own=own)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if problem := checks().problem(args, kwargs):
                raise ArgumentError(problem)
            return function(*args, **kwargs)

        result: Any = call
        return result

    return decorated


def _written(signature: inspect.Signature) -> Iterator[tuple[str, str]]:
    """Yield the names and types of arguments that have a type."""
    for name, parameter in signature.parameters.items():
        one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if one and parameter.annotation is not parameter.empty:
            yield name, str(parameter.annotation)


def _split(text: str, separator: str) -> list[str]:
    """Split the text of a type, but not within brackets.

    >>> _split("int | Mapping[str, int | None] | None", "|")
    ['int', 'Mapping[str, int | None]', 'None']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == separator and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _alternatives(words: Sequence[str]) -> str:
    return " or ".join([*filter(None, [", ".join(words[:-1])]), words[-1]])


def _list_check(counted: bool, element: Check | None) -> Check:
    """Return the check of a list; ``counted``: one with a length, so no iterator."""
    fits, words, _ = element or Check(lambda value: True, "")

    def each(value: Any) -> bool:
        held = value if isinstance(value, _HELD) else ()  # others may be iterated only once
        return _is_list(value) and not (counted and isinstance(value, Iterator)) and all(map(fits, held))

    return Check(each, f"a list, each element {words}" if words else "a list")


def _mapping_check(key: Check | None = None, value: Check | None = None) -> Check:
    def fits(given: Any) -> bool:
        return (
            isinstance(given, Mapping)
            and (key is None or all(map(key.fits, given)))
            and (value is None or all(map(value.fits, given.values())))
        )

    said = [
        f", {what} {check.words}" for what, check in (("each key", key), ("each value", value)) if check is not None
    ]
    return Check(fits, f"a mapping{''.join(said)}")


def _unquoted(text: str) -> str:
    return text.strip("'\"")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({type(value).__name__})"
