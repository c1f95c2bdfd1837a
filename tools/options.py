"""The options of a command, each said once: the fields of a dataclass, from which its parser follows.

>>> @dataclass(frozen=True, kw_only=True)
... class Options:
...     net: str = argument("a net in a file")
...     runs: int = option("runs with timed calls", default=5, metavar="N")
>>> OptionsParser(Options, prog="profile").parse(["a.pb", "--runs=3"])
Options(net='a.pb', runs=3)

The type of a field says how its text is read: numbers; a list ``0,1,2`` (``tuple[int, ...]``); two values
(``tuple[int, int]``); ``KEY=VALUE``, which may be repeated (``dict``).
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field
from typing import Any, Generic, TypeVar

from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.parser import Parser, add_list, real_number

__all__ = [
    "NOT_NEGATIVE",
    "POSITIVE",
    "SHARE",
    "OptionsParser",
    "Rule",
    "argument",
    "engine_option",
    "nested",
    "option",
    "switch",
    "values_of",
]

T = TypeVar("T")

_READ: dict[Any, Callable[[str], Any] | None] = {int: int, float: real_number(), str: None}
"""Type of a field -> what reads its text."""


Rule = tuple[str, Callable[[Any], bool]]
"""What a value must, such as "be positive", and whether it does."""

NOT_NEGATIVE: Rule = ("not be negative", lambda value: value >= 0)
POSITIVE: Rule = ("be positive", lambda value: 0 < value < math.inf)
SHARE: Rule = ("be in [0, 1)", lambda value: 0 <= value < 1)


@dataclass(frozen=True)
class _About:
    """What the parser needs to know of a field besides its type and default."""

    help: str = ""
    flag: str | None = None
    short: str | None = None
    group: str | tuple[str, str] | None = None
    exclusive: bool = False
    repeated: bool = False
    may_be_empty: bool = False
    positional: bool = False
    must: Rule | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    options: type[Any] | None = None  # those that the field holds
    prefix: str = ""


def option(
    help: str,
    *,
    default: Any = None,
    factory: Callable[[], Any] | None = None,
    required: bool = False,
    flag: str | None = None,
    short: str | None = None,
    group: str | tuple[str, str] | None = None,
    exclusive: bool = False,
    repeated: bool = False,
    may_be_empty: bool = False,
    must: Rule | None = None,
    **details: Any,
) -> Any:
    """Return a field that is an option with a value.

    Args:
        help: what it does; the default is added, unless it is empty or 0, or the text says it.
        default: its value if it is not given.
        factory: returns the default, instead.
        required: it must be given.
        flag: its name on the command line; None: that of the field.
        short: a name of one letter, such as ``-n``.
        group: title of the group of options that begins with this one, or the title and the text under it.
        exclusive: cannot be given together with others that are.
        repeated: may be given several times; the value is a tuple, of one item each.
        may_be_empty: whether a list may have no items.
        must: a rule that its value must keep, unless it is None.
        details: of ``argparse.ArgumentParser.add_argument``; ``type`` replaces what follows from the field's type.
    """
    about = _About(help, flag, short, group, exclusive, repeated, may_be_empty, must=must, details=details)
    if repeated:
        default = ()
    return _field(about, MISSING if required else default, factory)


def switch(help: str, *, default: bool = False, **details: Any) -> Any:
    """Return a field that is an option without a value, which gives it the other one of False and True.

    Args:
        help: what it does.
        default: the value if it is not given.
        details: of ``option``.
    """
    return option(help, default=default, **details)


def engine_option(default: str) -> Any:
    """Return the field ``engine``: what exchanges values between processes."""
    return option(f"default: {default}", type=str.upper, choices=("MPI", "NCCL"))


def argument(help: str, **details: Any) -> Any:
    """Return a field that is given by its position; it need not be if ``nargs`` says so.

    Args:
        help: what it is.
        details: of ``argparse.ArgumentParser.add_argument``.
    """
    default = {"?": None, "*": (), argparse.REMAINDER: ()}.get(details.get("nargs", ""), MISSING)
    return _field(_About(help, positional=True, details=details), default)


def nested(options: type[Any], *, prefix: str = "", optional: bool = False) -> Any:
    """Return a field that holds further options, those of another dataclass.

    Args:
        options: the dataclass.
        prefix: of the flags, such as ``block-``.
        optional: the field is None unless its required option is given, and then none of the others may be.
    """
    return _field(_About(options=options, prefix=prefix), None if optional else MISSING, None if optional else options)


def _field(about: _About, default: Any, factory: Callable[[], Any] | None = None) -> Any:
    if factory is not None:
        return field(default_factory=factory, metadata={"option": about})
    return field(default=default, metadata={"option": about})


class OptionsParser(Parser, Generic[T]):
    """The parser of a command whose options are the fields of a dataclass.

    Args:
        options: the dataclass; its docstring describes the command, unless ``description`` does.
        details: of ``Parser``.
    """

    def __init__(self, options: type[T], **details: Any) -> None:
        super().__init__(**{"description": inspect.getdoc(options), **details})
        self._options = options
        _add(self, self, options)

    def parse(self, arguments: Sequence[str] | None = None) -> T:
        """Return the options of a command line; one that is invalid ends the program with a message."""
        return self._made(self._options, self.parse_args(arguments))

    def parse_known(self, arguments: Sequence[str] | None = None) -> tuple[T, list[str]]:
        """Return the options of a command line, and the arguments that are none of them."""
        found, others = self.parse_known_args(arguments)
        return self._made(self._options, found), others

    def _made(self, options: type[Any], found: argparse.Namespace, prefix: str = "") -> Any:
        values: dict[str, Any] = {}
        for each in _options_of(options, prefix):
            if each.about.options is not None:
                if each.required or self._is_requested(each.about.options, found, each.about.prefix):
                    values[each.name] = self._made(each.about.options, found, each.about.prefix)
            elif (value := getattr(found, each.dest, None)) is not None:
                values[each.name] = tuple(value) if isinstance(value, list) else value
                if (rule := each.about.must) is not None and not rule[1](value):
                    self.error(f"{each.flag} must {rule[0]}, got {_text(value)}")
        return options(**values)

    def _is_requested(self, options: type[Any], found: argparse.Namespace, prefix: str) -> bool:
        """Return whether the option that requests a nested dataclass is given; without it no other may be."""
        members = list(_options_of(options, prefix))
        given = [each for each in members if getattr(found, each.dest, None) is not None]
        needed = [each for each in members if each.required]
        if given and (missing := [each for each in needed if each not in given]):
            self.error(f"{given[0].flag} needs {missing[0].flag}")
        return bool(given)


@dataclass(frozen=True)
class _Option:
    """A field of a dataclass of options, as an option of a parser."""

    name: str
    dest: str
    flag: str
    about: _About
    kind: Any  # of its value, if it is not None
    default: Any  # MISSING: it is required

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def help(self) -> str:
        """The help with the default."""
        text = self.about.help
        if "default" in text or self.required or isinstance(self.default, bool) or not self.default:
            return text
        return f"{text} (default: {_text(self.default)})" if text else f"default: {_text(self.default)}"


def _options_of(options: type[Any], prefix: str = "") -> Iterator[_Option]:
    """Yield the fields of a dataclass that are options; the flags have a prefix."""
    types = typing.get_type_hints(options)
    for each in dataclasses.fields(options):
        if (about := each.metadata.get("option")) is not None:
            kind, default = types[each.name], each.default
            if (members := typing.get_args(kind)) and type(None) in members:
                kind = bool | None if bool in members else members[0]
            if each.default_factory is not MISSING and about.options is None:
                default = each.default_factory()
            name = prefix + each.name.replace("_", "-")
            yield _Option(each.name, name.replace("-", "_"), about.flag or f"--{name}", about, kind, default)


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _add(parser: Any, place: Any, options: type[Any], prefix: str = "") -> Any:
    """Add the fields of a dataclass to a parser; return the group of options in which those that follow are."""
    exclusive = None
    for each in _options_of(options, prefix):
        if title := each.about.group:
            place = parser.add_argument_group(*([title] if isinstance(title, str) else title))
        if each.about.options is not None:
            place = _add(parser, place, each.about.options, each.about.prefix)
        elif each.about.exclusive:
            exclusive = exclusive or place.add_mutually_exclusive_group()
            _add_option(exclusive, each, not prefix)
        else:
            _add_option(place, each, not prefix)
    return place


def _add_option(place: Any, option: _Option, may_be_required: bool) -> None:
    about, kind = option.about, option.kind
    details: dict[str, Any] = {"help": option.help, "default": argparse.SUPPRESS}
    if not about.positional:
        details.update(dest=option.dest, required=option.required and may_be_required)
    names = [option.dest] if about.positional else [*([about.short] if about.short else []), option.flag]
    items = typing.get_args(kind) if typing.get_origin(kind) is tuple else ()
    if kind is bool:
        details["action"] = "store_false" if option.default else "store_true"
    elif kind == bool | None:
        details.update(action=argparse.BooleanOptionalAction, default=None)
    elif typing.get_origin(kind) is dict:
        details["action"] = _Pairs
    elif about.repeated:
        details.update(action="append", type=_READ.get(items[0]))
    elif items and items[-1] is not ... and "nargs" not in about.details:
        details.update(nargs=len(items), type=_READ.get(items[0]))
    elif items and not about.positional and "nargs" not in about.details:
        usual = {"type": _READ.get(items[0]) or str, "metavar": "N,N", "may_be_empty": about.may_be_empty}
        return add_list(place, *names, **{**usual, **details, **about.details})
    else:
        details["type"] = _READ.get(items[0] if items else kind)
        if kind is int:
            details["metavar"] = "N"
    place.add_argument(*names, **{**details, **about.details})


class _Pairs(argparse.Action):
    """Adds ``KEY=VALUE`` to a dict; the values are numbers, True or False, or text."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        key, equals, text = values.partition("=")
        if not equals:
            parser.error(f"{option_string} must be {self.metavar}, such as gamma=0.1; got {values!r}")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), key: _value(text)})


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def values_of(options: Any, prefix: str = "") -> dict[str, Any]:
    """Return the value of each option by its name on the command line; None and empty defaults are left out."""
    found: dict[str, Any] = {}
    for each in _options_of(type(options), prefix):
        value = getattr(options, each.name)
        if each.about.options is not None:
            found.update({} if value is None else values_of(value, each.about.prefix))
            continue
        if isinstance(value, frozenset):
            value = ",".join(sorted(value)) or None
        if each.kind is bool and each.default:
            value = not value  # the option switches it off
        empty = value == each.default and value in ((), {})
        if value is not None and not empty:
            found[each.flag.removeprefix("--")] = value
    return found
