"""Options of the commands that are numbers of things: whole numbers from 1 on."""

from __future__ import annotations

import argparse

__all__ = ["count"]


def count(text: str) -> int:
    """Return a whole number from 1 on, for ``type=`` of an option.

    Raises:
        argparse.ArgumentTypeError: the text is none; argparse says so with the option's name.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a whole number from 1 on, got {text!r}")
    return int(text)
