"""The parser of all commands, whose errors suggest similar names, and types of its options: numbers and lists."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from netbuilder.proto.suggestions import did_you_mean, near_or_known

__all__ = ["Help", "Parser", "add_list", "count", "device_number", "real_number", "whole_number"]

_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")


def count(text: str) -> int:
    """Return a positive whole number, for ``type=`` of an option.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number; argparse adds the name of the option.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text!r}")
    return int(text)


def device_number(text: str) -> int:
    """Return the number of a device, for ``type=`` of an option."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be numbers of devices, such as 0,1,2; got {text!r}")
    return int(text)


def whole_number(least: int = 0, most: int | None = None) -> Callable[[str], int]:
    """Return a function for ``type=`` of an option that takes whole numbers from ``least`` to ``most``."""

    def converted(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"must be a whole number{_range_text(least, most)}, got {text!r}")
        return value

    return converted


def real_number(least: float | None = None, most: float | None = None) -> Callable[[str], float]:
    """Return a function for ``type=`` of an option that takes finite numbers from ``least`` to ``most``."""

    def converted(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or least is not None and value < least or most is not None and value > most:
            raise argparse.ArgumentTypeError(f"must be a number{_range_text(least, most)}, got {text!r}")
        return value

    return converted


def _range_text(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f", {least:.12g} or greater" if most is None else f" from {least:.12g} to {most:.12g}"


def add_list(
    parser: Any,
    name: str,
    *,
    metavar: str,
    type: Callable[[str], Any] = str,
    choices: Iterable[str] | None = None,
    may_be_empty: bool = False,
    **details: Any,
) -> None:
    """Add an option that takes a list, such as ``0,1,2``, to a parser or argument group; ``0 1 2`` is accepted, too.

    Args:
        name: of the option.
        metavar: its value in the help, such as ``N,N``.
        type: makes a value of the text of one item; see ``argparse`` for its errors.
        choices: what items may be; None: anything.
        may_be_empty: whether the list may have no items.
        details: of ``add_argument``.
    """
    known = None if choices is None else list(choices)

    def items(text: str) -> list[Any]:
        found = [part.strip() for part in text.split(",") if part.strip()]
        if not found and not may_be_empty:
            raise argparse.ArgumentTypeError(f"must be a list, {metavar}, got {text!r}")
        for part in found:
            if known is not None and part not in known:
                raise argparse.ArgumentTypeError(
                    f"invalid choice: {part!r} (choose from {', '.join(map(repr, known))})"
                )
        return [type(part) for part in found]

    items.__name__ = type.__name__  # in argparse's message about a ValueError

    parser.add_argument(
        name, type=items, nargs="*" if may_be_empty else "+", action=_Joined, metavar=metavar, **details
    )


class _Joined(argparse.Action):
    """Joins the lists of several arguments."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, [item for found in values for item in found])


class Help(argparse.HelpFormatter):
    """Shows the value of a list as one."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if isinstance(action, _Joined):
            return str(action.metavar)
        return super()._format_args(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """``argparse.ArgumentParser`` whose errors are one line, without the usage, and suggest similar names."""

    _given: Sequence[str] = ()

    def __init__(self, *, formatter_class: Any = Help, **details: Any) -> None:
        super().__init__(formatter_class=formatter_class, **details)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like ``argparse``; also stores the arguments, for ``error``."""
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the program with a message of one line, which suggests similar names."""
        hints = [
            f"; unknown option {name}{near}" if name not in message else near
            for name in self._unknown()
            if (near := did_you_mean(name, self._option_string_actions))
        ]
        if found := _CHOICE.search(message):
            choices = [name.strip("' ") for name in found[2].split(",")]
            said = f"invalid choice: {found[1]!r}{near_or_known(found[1], choices, 'choices')}"
            message = _CHOICE.sub(lambda _: said, message)
        message += "".join(hints)
        self.exit(2, f"{self.prog}: error: {message}{'' if message.endswith('?') else '; --help lists the options'}\n")

    def _unknown(self) -> list[str]:
        """Return the given options that are not options of the parser, nor abbreviations of one."""
        known = list(self._option_string_actions)
        names = dict.fromkeys(text.partition("=")[0] for text in self._given if re.match("--[A-Za-z]", text))
        return [name for name in names if not any(option.startswith(name) for option in known)]
