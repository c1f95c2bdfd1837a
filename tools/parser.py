"""The parser of all commands, whose errors suggest similar names for a mistyped option or choice, and counts."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

__all__ = ["Parser", "count", "did_you_mean"]

_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean A or B?" with the known names that are most similar, or "".

    >>> did_you_mean("resnet19", ["resnet18", "lenet"])
    '; did you mean resnet18?'
    """
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def count(text: str) -> int:
    """Return a positive whole number, for ``type=`` of an option.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number; argparse adds the name of the option.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text!r}")
    return int(text)


class Parser(argparse.ArgumentParser):
    """``argparse.ArgumentParser`` whose errors suggest similar names."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like ``argparse``; also stores the arguments, for ``error``."""
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the program with a message that suggests similar names."""
        hints = [
            f"; unknown option {name}{near}" if name not in message else near
            for name in self._unknown()
            if (near := did_you_mean(name, self._option_string_actions))
        ]
        if found := _CHOICE.search(message):
            hints.append(did_you_mean(found[1], re.findall(r"[^\s,']+", found[2])))
        super().error(message + "".join(hints))

    def _unknown(self) -> list[str]:
        """Return the given options that are not options of the parser, nor abbreviations of one."""
        known = list(self._option_string_actions)
        names = dict.fromkeys(text.partition("=")[0] for text in self._given if re.match("--[A-Za-z]", text))
        return [name for name in names if not any(option.startswith(name) for option in known)]
