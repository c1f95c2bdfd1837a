"""How commands end: each error that they expect is one line on standard error, and an exit status."""

from __future__ import annotations

import contextlib
import errno
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from netbuilder.proto import DeviceError, DistributedError, NetError, OperatorError
from netbuilder.proto.os_errors import error_text, is_out_of_memory
from netbuilder.tools.streams import discard, standard_streams

resource: Any  # limits of processes, which not all systems have
try:
    import resource
except ImportError:
    resource = None

__all__ = ["EXPECTED", "reporting", "text_of"]

EXPECTED: tuple[type[Exception], ...] = (
    NetError,
    DeviceError,
    DistributedError,
    OperatorError,
    NotImplementedError,
    OSError,
    MemoryError,
)
"""Errors that bad input and missing hardware or software cause; others are faults of the program."""

_INTERRUPTED = 128 + signal.SIGINT  # as shells report a program that Ctrl-C has ended
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

Main = Callable[[Sequence[str] | None], int]


class _Ended(BaseException):
    """A signal ends the command, as KeyboardInterrupt does: files that are half written are removed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


def reporting(
    prog: str, *more: type[Exception], status: int = 1, output_optional: bool = False
) -> Callable[[Main], Callable[..., int]]:
    """Return a decorator for ``main`` of a command, which prints expected errors and returns the exit status then.

    Args:
        prog: the command, at the beginning of the line.
        more: further errors that are expected.
        status: the exit status after an error; after Ctrl-C, SIGTERM and SIGHUP it is 128 and the signal's number.
        output_optional: the command does more than print, and continues where standard output cannot be written, see
            ``standard_streams``. Otherwise it ends, without a message if the reader of a pipe has ended.
    """

    expected = (*EXPECTED, *more)
    caught: tuple[type[BaseException], ...] = (*expected, ImportError, RuntimeError, SystemError)

    def decorated(main: Main) -> Callable[..., int]:
        @functools.wraps(main)
        def ended(arguments: Sequence[str] | None = None) -> int:
            with standard_streams(prog, output_optional=output_optional):
                try:
                    with _ending_signals():
                        return _flushed(main, arguments)
                except KeyboardInterrupt:
                    print(f"{prog}: interrupted", file=sys.stderr)
                    return _INTERRUPTED
                except _Ended as end:
                    print(f"{prog}: ended by {end.signal.name}", file=sys.stderr)
                    return 128 + end.signal
                except caught as error:
                    if not isinstance(error, expected) and not is_out_of_memory(error):
                        raise
                    if isinstance(error, BrokenPipeError) and error.errno == errno.EPIPE:
                        discard(sys.stdout)  # the reader has seen enough
                    else:
                        print(f"{prog}: {text_of(error)}", file=sys.stderr)
                        _discard_unwritten()
                    return status

        return ended

    return decorated


def text_of(error: BaseException) -> str:
    """Return what an error says, in one line; also where memory is used up, of which Python itself says nothing."""
    text = error_text(error)
    if is_out_of_memory(error):
        return f"not enough memory{f': {text}' if text else ''}; {_limits()}, may be too low"
    return text


def _limits() -> str:
    """Return the limits that memory may have reached: those of this process, with their values, and its container's."""
    if resource is None:
        return "the memory of the machine, or the limit of a container"
    kinds = {"ulimit -v": resource.RLIMIT_AS, "ulimit -d": resource.RLIMIT_DATA}
    limits = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    found = [f"{name} ({limit >> 10} KiB)" for name, limit in limits.items() if limit != resource.RLIM_INFINITY]
    return ", ".join([*(found or ["the memory of the machine"]), "or the limit of a container"])


def _flushed(main: Main, arguments: Sequence[str] | None) -> int:
    """Call ``main``; errors of the last lines are raised here too, also where argparse ends the command."""
    try:
        done = main(arguments)
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return done


def _discard_unwritten() -> None:
    """Drop what standard output cannot write, else the interpreter would print a traceback at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout)


@contextlib.contextmanager
def _ending_signals() -> Iterator[None]:
    """Let signals that would kill the process raise ``_Ended``; a second one kills it."""

    def end(number: int, frame: FrameType | None) -> None:
        restore()
        raise _Ended(number)

    def restore() -> None:
        for number in ours:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)

    main_thread = threading.current_thread() is threading.main_thread()  # others may not set handlers
    ours = [number for number in _ENDING if main_thread and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()
