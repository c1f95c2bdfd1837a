"""Flags that Caffe2's programs set at their start; most have no effect."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["GetGlobalInitArgs", "GlobalInit", "flag"]

_arguments: list[str] = []


def GlobalInit(args: Sequence[str]) -> None:
    """Set the flags of a program, such as ``["caffe2", "--caffe2_log_level=0"]``.

    ``--caffe2_operator_throw_if_fp_exceptions=1`` makes runs fail in which an operator computes infinities or NaN from
    finite numbers, until the flag is set to 0. Other flags have no effect: for logging use Python's logging, for the
    number of threads OMP_NUM_THREADS.

    Args:
        args: the program's name, and its flags.
    """
    if isinstance(args, str):
        raise TypeError(f"GlobalInit needs the program's name and its flags in a list, got the string {args!r}")
    _arguments.extend(args[1:])


def GetGlobalInitArgs() -> list[str]:
    """Return the flags given so far."""
    return list(_arguments)


def flag(name: str) -> bool:
    """Whether a flag is on: given last without a value, or with one that is neither 0 nor false.

    Args:
        name: without the dashes.
    """
    for argument in reversed(_arguments):
        given, _, value = argument.lstrip("-").partition("=")
        if given == name:
            return value.lower() not in ("0", "false", "no")
    return False
