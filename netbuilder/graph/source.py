"""The line of the user's program, which operators record and warnings point to."""

from __future__ import annotations

import os
import sys
import warnings
from types import CodeType, FrameType
from typing import Any, NamedTuple

__all__ = ["definition_of", "source_with_path", "user_source", "warn_user"]


class _Code(NamedTuple):
    """What is known of a code object.

    Args:
        code: the object, which is kept so that its id is not reused.
        shown: file and function of its frames; None for the library's own code.
        lines: index of an instruction -> the text of its line.
    """

    code: CodeType
    shown: tuple[str, str] | None
    lines: dict[int, str]


# By the id of the code object; to hash the objects themselves would be slow.
_codes: dict[int, _Code] = {}
_own: set[int] = set()  # those of the library


def user_source(depth: int = 1) -> str:
    """Return "file.py:123 in function" for the innermost frame outside the library.

    Files in the current directory are shown with their relative path, others with their file name.
    ``netbuilder.tools`` counts as outside, because its programs use the library as user programs do.

    Args:
        depth: number of innermost frames to skip, this function's included.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if id(frame.f_code) not in _own:
            known = _codes.get(id(frame.f_code)) or _known(frame)
            if known.shown is not None:
                text = known.lines.get(frame.f_lasti)
                if text is None:
                    text = known.lines[frame.f_lasti] = f"{known.shown[0]}:{frame.f_lineno} in {known.shown[1]}"
                return text
        frame = frame.f_back
    return ""


def source_with_path(text: str) -> str:
    """Return "/path/to/file.py:123:function" for a result of ``user_source``; "" if it comes from another process."""
    place, _, name = text.partition(" in ")
    file, _, line = place.rpartition(":")
    found = ""
    for code, shown, _ in _codes.values():
        if shown == (file, name):
            found = f"{code.co_filename}:{line}:{name}"
            if any(number == int(line) for _, _, number in code.co_lines()):
                break
    return found


def definition_of(function: Any) -> str:
    """Return "file.py:123 in name", where a function is defined; "" if that is not known.

    >>> definition_of(len)
    ''
    """
    code = getattr(getattr(function, "func", function), "__code__", None)  # a partial has ``func``
    return f"{_short_path(code.co_filename)}:{code.co_firstlineno} in {code.co_name}" if code is not None else ""


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Give a warning that points at the innermost line outside the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _known(frame).shown is None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def _known(frame: FrameType) -> _Code:
    code = frame.f_code
    known = _codes.get(id(code))
    if known is None:
        known = _codes[id(code)] = _Code(code, _shown(frame), {})
        if known.shown is None:
            _own.add(id(code))
    return known


def _shown(frame: FrameType) -> tuple[str, str] | None:
    module = frame.f_globals.get("__name__", "")
    if module == "netbuilder" or module.startswith("netbuilder.") and not module.startswith("netbuilder.tools"):
        return None
    path = frame.f_code.co_filename
    if path.startswith("<frozen "):  # the import system
        return None
    return _short_path(path), frame.f_code.co_name


def _short_path(path: str) -> str:
    here = os.getcwd() + os.sep
    return path[len(here) :] if path.startswith(here) else os.path.basename(path)
