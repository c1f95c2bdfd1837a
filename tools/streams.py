"""Standard streams of commands: a closed stream, a full disk or a reader that has ended does not end the work."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from netbuilder.proto.os_errors import error_text

__all__ = ["discard", "standard_streams"]

_MAY_PASS = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)  # later writes may succeed again


@contextlib.contextmanager
def standard_streams(prog: str, *, output_optional: bool = False) -> Iterator[None]:
    """Let a command write to standard error, and to standard output, without errors.

    What cannot be written is dropped; the other stream says so once. Closed descriptors from 0 to 2 are opened to the
    null device, so that no file that the command opens gets their numbers, and messages of libraries with it.

    Args:
        prog: the command, at the beginning of what is said.
        output_optional: the command does more than print, so it continues without standard output. Otherwise errors of
            standard output are raised, unless it was closed from the beginning.
    """
    _open_closed_descriptors()
    out, err = sys.stdout, sys.stderr
    lost_err: Callable[[str], object] = print if output_optional else lambda text: None
    ours_err = _Stream(err, f"{prog}: standard error", lost_err)
    ours_out = out
    if output_optional or out is None:
        ours_out = _Stream(out, f"{prog}: standard output", lambda text: print(text, file=ours_err, flush=True))
    sys.stdout, sys.stderr = ours_out, ours_err
    try:
        yield
        ours_out.flush()
    finally:
        ours_err.flush()
        sys.stdout, sys.stderr = out, err


def _open_closed_descriptors() -> None:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere == number:
                os.set_inheritable(number, True)
            else:
                os.dup2(nowhere, number)
                os.close(nowhere)


class _Stream:
    """A text stream whose writes never fail.

    Args:
        stream: the stream; None: it is closed.
        name: of the stream, in what is said.
        say: called once, with a message, when something cannot be written.
    """

    def __init__(self, stream: TextIO | None, name: str, say: Callable[[str], object]) -> None:
        self._stream, self._name, self._say, self._said = stream, name, say, False

    def __getattr__(self, name: str) -> Any:
        if self._stream is None:
            raise AttributeError(f"{self._name} is closed and has no {name}")
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def write(self, text: str) -> int:
        self._attempt(lambda stream: _write(stream, text))
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._attempt(lambda stream: stream.flush())

    def _attempt(self, call: Callable[[TextIO], object]) -> None:
        why = "it is closed"
        if self._stream is not None and not self._stream.closed:
            try:
                call(self._stream)
                return
            except OSError as error:
                why = error_text(error)
                discard(self._stream, only_now=error.errno in _MAY_PASS)
        if not self._said:
            self._said = True
            self._say(f"{self._name} cannot be written: {why}; the command goes on, and what it prints is lost")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # such as a name of a class, where the terminal's encoding is ASCII
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def discard(stream: TextIO, *, only_now: bool = False) -> None:
    """Drop what a stream has not written yet, and whatever is written to it later, unless ``only_now``.

    Without that the interpreter would try again when it ends, and print a traceback.
    """
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):  # not a file
        return
    before = os.dup(number) if only_now else None
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    if before is not None:
        os.dup2(before, number)
        os.close(before)
