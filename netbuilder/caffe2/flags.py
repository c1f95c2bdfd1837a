"""The flags that Caffe2's programs hand over at their start; they are kept, and change nothing."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["GetGlobalInitArgs", "GlobalInit"]

_arguments: list[str] = []


def GlobalInit(args: Sequence[str]) -> None:
    """Take the flags of a program, such as ``["caffe2", "--caffe2_log_level=0"]``.

    They choose nothing here: logging is Python's, threads are OMP_NUM_THREADS, memory is NumPy's.

    Args:
        args: the program's name, and its flags.
    """
    if isinstance(args, str):
        raise TypeError(f"GlobalInit: needs the program's name and its flags in a list, got the string {args!r}")
    _arguments.extend(args[1:])


def GetGlobalInitArgs() -> list[str]:
    """Return the flags given so far."""
    return list(_arguments)
