"""How commands end: each error that they expect is one line on standard error, and an exit status."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable, Sequence

from netbuilder.proto import DeviceError, DistributedError, NetError, OperatorError
from netbuilder.proto.os_errors import error_text

__all__ = ["EXPECTED", "reporting"]

EXPECTED: tuple[type[Exception], ...] = (
    NetError,
    DeviceError,
    DistributedError,
    OperatorError,
    NotImplementedError,
    OSError,
)
"""Errors that bad input and missing hardware or software cause; others are faults of the program."""

_INTERRUPTED = 130  # as shells report a program that Ctrl-C has ended

Main = Callable[[Sequence[str] | None], int]


def reporting(prog: str, *more: type[Exception], status: int = 1) -> Callable[[Main], Callable[..., int]]:
    """Return a decorator for ``main`` of a command, which prints expected errors and returns the exit status then.

    Args:
        prog: the command, at the beginning of the line.
        more: further errors that are expected.
        status: the exit status after an error; it is 130 after Ctrl-C.
    """

    expected = (*EXPECTED, *more)

    def decorated(main: Main) -> Callable[..., int]:
        @functools.wraps(main)
        def ended(arguments: Sequence[str] | None = None) -> int:
            try:
                done = main(arguments)
                sys.stdout.flush()  # an error of the last lines is reported here, too
                return done
            except KeyboardInterrupt:
                print(f"{prog}: interrupted", file=sys.stderr)
                return _INTERRUPTED
            except expected as error:
                if isinstance(error, BrokenPipeError) and error.errno == errno.EPIPE:  # the reader has seen enough
                    _discard_output()
                else:
                    print(f"{prog}: {error_text(error)}", file=sys.stderr)
                return status

        return ended

    return decorated


def _discard_output() -> None:
    """Let the interpreter's last flush of standard output succeed after the reader of a pipe has ended."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
