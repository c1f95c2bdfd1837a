"""Checks of numbers that a caller has given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np

from netbuilder.proto.errors import ArgumentError

__all__ = ["INT32_MAX", "UINT32_MAX", "check_flags", "check_numbers", "check_whole_numbers", "listed"]

INT32_MAX, UINT32_MAX = 2**31 - 1, 2**32 - 1
"""The largest numbers that fields of messages hold."""

_RULES: dict[str, Callable[[float], bool]] = {
    "finite": lambda x: True,
    "positive": lambda x: x > 0,
    "at least 0": lambda x: x >= 0,
    "in [0, 1]": lambda x: 0 <= x <= 1,
    "in [0, 1)": lambda x: 0 <= x < 1,
    "in (0, 1]": lambda x: 0 < x <= 1,
}

_WORDS = {"finite": "a finite number", "positive": "a positive number", "at least 0": "a number of at least 0"}


def check_numbers(owner: str, rule: str, **given: Any) -> None:
    """Raise ArgumentError if one of the arguments ``given`` is no finite number, or breaks a rule.

    Args:
        owner: what the arguments are for, with which the message begins.
        rule: "finite", "positive", "at least 0", "in [0, 1]", "in [0, 1)" or "in (0, 1]".

    >>> check_numbers("AdamOptimizer", "in [0, 1)", beta1=0.9, beta2=1.5)
    Traceback (most recent call last):
    netbuilder.proto.errors.ArgumentError: AdamOptimizer: beta2 must be a number in [0, 1), got 1.5
    """
    fits, what = _RULES[rule], _WORDS.get(rule, f"a number {rule}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or not fits(float(value)):
            raise ArgumentError(f"{owner}: {name} must be {what}, got {value!r}")


def listed(owner: str, what: str, value: Any) -> list[Any]:
    """Return the elements of an argument that must be a list of ``what``; text is none.

    Raises:
        ArgumentError: it is no list, tuple, set or other iterable.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise ArgumentError(f"{owner} must be a list of {what}, got {value!r}")
    return list(value)


def check_whole_numbers(owner: str, least: int, most: int | None = None, /, **given: Any) -> None:
    """Raise ArgumentError if an argument of ``given`` is no whole number from ``least`` to ``most``."""
    for name, value in given.items():
        whole = not isinstance(value, bool) and isinstance(value, Integral)
        if not whole or value < least:
            raise ArgumentError(f"{owner}: {name} must be a whole number of at least {least}, got {value!r}")
        if most is not None and value > most:
            raise ArgumentError(f"{owner}: {name} must be a whole number of at most {most}, got {value!r}")


def check_flags(owner: str, **given: Any) -> None:
    """Raise ArgumentError if one of the arguments ``given`` is neither true nor false; 0 and 1 are, text is not."""
    for name, value in given.items():
        if not isinstance(value, (bool, Integral, Real, np.bool_)) or value not in (0, 1):
            raise ArgumentError(f"{owner}: {name} must be True or False, got {value!r}")
