"""What counts as an answer: a result, or one of netbuilder's errors, which names the file; all else is a finding."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from netbuilder.data import QueueClosedError
from netbuilder.proto import DeviceError, NetError, OperatorError

__all__ = ["Finding", "fault"]

_OURS = (NetError, DeviceError, QueueClosedError)


@dataclass(frozen=True)
class Finding:
    """An input with a wrong outcome.

    Args:
        kind: of input.
        number: of the input among those of its kind.
        what: what happened, in a line.
        where: the line of netbuilder that it happened in: findings of one place are one fault.
    """

    kind: str
    number: int
    what: str
    where: str


def fault(error: BaseException, named: str = "", *, may_lack_memory: bool = False) -> tuple[str, str] | None:
    """Return what is wrong with an error, and where it comes from, or None.

    Args:
        error: what was raised.
        named: what its message has to contain, the name of the file.
        may_lack_memory: whether a net asked for the memory itself, so that an error that names the operator will do.
    """
    for each in _chain(error):
        if isinstance(each, (MemoryError, RecursionError)):
            if may_lack_memory and isinstance(error, _OURS + (OperatorError,)):
                return None
            return f"{type(each).__name__}: {each}", _place(each)
    inner = _innermost(error)
    if not isinstance(inner, _OURS) and type(inner) is not OperatorError and not _in_our_words(inner, error):
        return f"bare {type(inner).__name__}: {inner}", _place(inner)
    if named and named not in str(error):
        return f"does not name the file {named}: {type(error).__name__}: {error}", _place(error)
    return None


def _chain(error: BaseException) -> list[BaseException]:
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return found


def _innermost(error: BaseException) -> BaseException:
    """Return what a kernel raised: the cause that is no OperatorError any more, or one that a kernel worded itself."""
    while isinstance(error, OperatorError) and error.__cause__ is not None:
        error = error.__cause__
        if type(error) is OperatorError:
            break
    return error


def _in_our_words(inner: BaseException, outer: BaseException) -> bool:
    """Whether a kernel raised it for its input, as IndexError("Gather: ..."), which is caught by that name, too."""
    word = str(inner).split(":")[0]
    return isinstance(outer, OperatorError) and word.isidentifier() and f": {word} [" in str(outer)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/tests/" not in f.filename and "site-packages" not in f.filename]
    last = (ours or frames or [None])[-1]
    return "unknown" if last is None else f"{'/'.join(last.filename.split('/')[-3:])}:{last.lineno}"
