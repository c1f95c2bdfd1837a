"""Calls of public functions with one wrong argument: each has to be taken, or raise an error that was meant for it."""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import netbuilder
from netbuilder.proto import NetError

__all__ = ["VALUES", "bare_errors", "is_bare"]

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2**40, 0.5, -0.5, float("nan"), float("inf"), 1j, "", "x", "no", b"x", [], [1],
    [None], ["x"], (), (1, 2), {}, {"x": 1}, set(), object(), len, int, Path("x"), np.float32(2), np.int64(2),
    np.zeros(2), np.array("x"), range(2), iter([1]), type("Made", (), {})(), b"x" * 5000, ["x" * 9] * 900,
]  # fmt: skip

LONGEST = 2000
"""Characters of a message of a NetError, which does not show a large value in full."""

_ROOT = str(Path(netbuilder.__file__).parents[1])
_NEVER = (AttributeError, KeyError, IndexError, AssertionError, UnboundLocalError, RecursionError, ZeroDivisionError)


def is_bare(error: BaseException) -> bool:
    """Whether an error comes from an operation of Python that failed inside the library, not from a check of it."""
    if isinstance(error, OSError) and isinstance(error.filename, (str, os.PathLike)):
        return False  # it names the file, and says what is wrong
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
    raised = line.startswith("raise") and trace.tb_frame.f_code.co_filename.startswith(_ROOT)
    return not raised or type(error) in _NEVER


def bare_errors(
    call: Callable[..., Any],
    right: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    names: Any = None,
    functions: Collection[str] = (),
) -> Iterator[str]:
    """Call a function with each of ``VALUES`` for each argument; yield a line for each error that is bare.

    Args:
        call: the function.
        right: arguments with which it can be called, or a function that makes them anew for each call.
        names: the arguments to replace; None: all.
        functions: those that are functions, which may raise what they like when they are called.
    """
    given = right() if callable(right) else right
    for name in given if names is None else names:
        for value in VALUES:
            if name in functions and callable(value):
                continue
            arguments = {**(right() if callable(right) else right), name: value}
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                try:
                    call(**arguments)
                except Exception as error:
                    if is_bare(error):
                        yield f"{name}={value!r}: {type(error).__name__}: {error}"
                    if isinstance(error, NetError) and len(str(error)) > LONGEST:
                        yield f"{name}: a message of {len(str(error))} characters: {str(error)[:100]}"
