"""The parser of all commands: an option or a choice that is mistyped is answered with the nearest there is."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

__all__ = ["Parser", "did_you_mean"]

_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean A or B?" with the names nearest to one that is not known, or "".

    >>> did_you_mean("resnet19", ["resnet18", "lenet"])
    '; did you mean resnet18?'
    """
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class Parser(argparse.ArgumentParser):
    """``argparse.ArgumentParser`` whose errors say what was probably meant."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As ``argparse``; notes the arguments for a message."""
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the program with a message, and what was probably meant."""
        hints = [
            f"; unknown option {name}{near}" if name not in message else near
            for name in self._unknown()
            if (near := did_you_mean(name, self._option_string_actions))
        ]
        if found := _CHOICE.search(message):
            hints.append(did_you_mean(found[1], re.findall(r"[^\s,']+", found[2])))
        super().error(message + "".join(hints))

    def _unknown(self) -> list[str]:
        """Return the options given that the parser does not have, not even in short."""
        known = list(self._option_string_actions)
        names = dict.fromkeys(text.partition("=")[0] for text in self._given if re.match("--[A-Za-z]", text))
        return [name for name in names if not any(option.startswith(name) for option in known)]
