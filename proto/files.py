"""Messages to and from files and bytes, binary and text, with errors that say where a file is broken."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from netbuilder.proto.depth import deep_nets
from netbuilder.proto.errors import NetError, ParseError
from netbuilder.proto.file_kinds import kind_of
from netbuilder.proto.opened_files import read_bytes, read_text
from netbuilder.proto.whole_file import whole_file
from netbuilder.proto.wire import find_fault, is_plain_text

__all__ = [
    "load",
    "load_text",
    "parse",
    "parse_text",
    "save",
    "save_all",
    "save_text",
    "to_bytes",
    "to_text",
]

M = TypeVar("M", bound=Message)
PathLike = str | os.PathLike[str]

_LARGEST = (1 << 31) - 1  # bytes of a message
_TOO_DEEP = "its nets are nested too deep for text; binary files hold 1,000 within one another"
_LOOKS_LIKE_TEXT = re.compile(rb"\s*(#|[A-Za-z_]+\s*[:{])")


def load(path: PathLike, message_class: type[M], *, allow_unknown: bool = False) -> M:
    """Read a message from a binary file (``.pb``).

    Args:
        path: the file.
        message_class: what it holds, for instance ``NetDef``.
        allow_unknown: keep fields that the schema does not have instead of refusing the file.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: the file is empty, cut short, or holds something else.
    """
    data = read_bytes(path)
    if not data:
        raise ParseError(f"{os.fspath(path)!r} cannot be read as a {_name(message_class)}: the file is empty")
    return parse(data, message_class, source=os.fspath(path), allow_unknown=allow_unknown)


def save(path: PathLike, message: Message) -> None:
    """Write a message to a binary file, whole or not at all.

    Raises:
        NetError: the message is empty, or lacks required fields.
        OSError: the file cannot be written; one that was there is as before.
    """
    save_all({path: message})


def save_all(messages: Mapping[PathLike, Message | Iterable[bytes]]) -> None:
    """Write messages to binary files that belong together: what may fail is done before the first takes its place.

    Args:
        messages: in their order; of one that is too large for memory its bytes, part by part.

    Raises:
        NetError: a message is empty, lacks required fields, or has 2 GiB or more.
        OSError: a file cannot be written; those that were there are as before.
    """
    with contextlib.ExitStack() as stack:
        for path, message in messages.items():
            data = [_some_bytes(path, message)] if isinstance(message, Message) else message
            file, size = stack.enter_context(whole_file(path)), 0
            for part in data:
                size += len(part)
                if size > _LARGEST:
                    raise NetError(f"{os.fspath(path)!r} has more than 2 GiB, which protobuf cannot read")
                file.write(part)
            file.flush()
            os.fsync(file.fileno())


def _some_bytes(path: PathLike, message: Message) -> bytes:
    data = to_bytes(message)
    if not data:
        raise NetError(
            f"an empty {_name(type(message))} cannot be written to {os.fspath(path)!r}, which could not be told from "
            "a file that was cut short; give it a name"
        )
    return data


def parse(data: bytes, message_class: type[M], *, source: str = "the given bytes", allow_unknown: bool = False) -> M:
    """Return the message that ``data`` holds.

    Bytes that end between two fields of the outermost message cannot be told from a shorter message.

    Args:
        data: a serialized message.
        message_class: its type.
        source: what to call the bytes in errors, for instance the file's name.
        allow_unknown: keep fields that the schema does not have instead of refusing the bytes.

    Raises:
        ParseError: ``data`` is cut short or holds something else; the message names the source, what was
            expected, and the byte and field at which reading stopped.

    >>> from netbuilder.proto import NetDef
    >>> parse(NetDef(name="lenet").SerializeToString(), NetDef).name
    'lenet'
    >>> parse(b"\\x0a\\x05len", NetDef)
    Traceback (most recent call last):
        ...
    netbuilder.proto.errors.ParseError: the given bytes cannot be read as a NetDef: stopped at byte 2 of 5, in name: \
the field says 5 bytes, but only 3 are left
    """
    try:
        message = message_class.FromString(data)
    except DecodeError as error:
        message = _parse_deep(data, message_class, source, str(error), allow_unknown)
    if not allow_unknown and not _fits(message):
        raise _parse_error(data, message_class, source, "bytes of another kind", allow_unknown)
    if missing := _missing_fields(message):
        raise ParseError(
            f"{_quoted(source)} cannot be read as a {_name(message_class)}: all {len(data)} bytes were read, "
            f"but required fields are missing: {', '.join(missing)}"
        )
    return message


def to_bytes(message: Message) -> bytes:
    """Return the message's bytes, the same for equal messages.

    Raises:
        NetError: required fields are missing, or the message is larger than protobuf's 2 GiB.
    """
    _check_complete(message)
    try:
        return message.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise NetError(f"cannot serialize a {_name(type(message))}: {error}; protobuf holds at most 2 GiB") from error


def load_text(path: PathLike, message_class: type[M]) -> M:
    """Read a message from a text file (``.pbtxt``).

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: the file holds no such message; the error tells line and column.
    """
    source = os.fspath(path)
    try:
        text = read_text(path)
    except ParseError as error:
        raise ParseError(f"{error}; netbuilder.proto.files.load reads binary files") from None
    if not text.strip():
        raise ParseError(f"{source!r} cannot be read as the text of a {_name(message_class)}: the file is empty")
    return parse_text(text, message_class, source=source)


def save_text(path: PathLike, message: Message) -> None:
    """Write a message to a text file, whole or not at all.

    Raises:
        NetError: the message is empty, or lacks required fields.
        OSError: the file cannot be written; one that was there is as before.
    """
    text = to_text(message)
    if not text:
        raise NetError(f"an empty {_name(type(message))} cannot be written to {os.fspath(path)!r}; give it a name")
    _write(path, text.encode())


def parse_text(text: str, message_class: type[M], *, source: str = "the given text") -> M:
    """Return the message that ``text`` describes.

    Raises:
        ParseError: it describes no such message; the error tells line and column.

    >>> from netbuilder.proto import NetDef
    >>> parse_text('name: "lenet" op { type: "Relu" }', NetDef).op[0].type
    'Relu'
    """
    message = message_class()
    what = f"{_quoted(source)} cannot be read as the text of a {_name(message_class)}"
    try:
        with deep_nets():
            text_format.Parse(text, message)
    except RecursionError:
        raise ParseError(f"{what}: {_TOO_DEEP}") from None
    except text_format.ParseError as error:
        reason = re.sub(r"^\d+:\d+ : ", "", str(error))
        raise ParseError(f"{what}: stopped at line {error.GetLine()}, column {error.GetColumn()}: {reason}") from None
    if missing := _missing_fields(message):
        raise ParseError(f"{what}: required fields are missing: {', '.join(missing)}")
    return message


def to_text(message: Message) -> str:
    """Return the message as text, from which ``parse_text`` makes an equal one.

    Raises:
        NetError: required fields are missing, or its nets are nested too deep for text.
    """
    _check_complete(message)
    try:
        with deep_nets():
            return text_format.MessageToString(message, as_utf8=True)
    except RecursionError:
        raise NetError(f"cannot write a {_name(type(message))} as text: {_TOO_DEEP}") from None


def _parse_deep(data: bytes, message_class: type[M], source: str, fallback: str, allow_unknown: bool) -> M:
    """Parse what protobuf refused: nothing is wrong with the bytes if their nets only nest deeper than it goes."""
    if find_fault(data, message_class.DESCRIPTOR, allow_unknown=allow_unknown) is None:
        with contextlib.suppress(DecodeError), deep_nets():
            return message_class.FromString(data)
    raise _parse_error(data, message_class, source, fallback, allow_unknown)


def _fits(message: Message) -> bool:
    """Say whether the message, and all in it, has known fields only, and text where text belongs."""
    waiting = [message]
    while waiting:
        message = waiting.pop()
        if len(UnknownFieldSet(message)):
            return False
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                waiting.extend([value] if isinstance(value, Message) else value)
            elif field.type == FieldDescriptor.TYPE_STRING:
                if not all(map(is_plain_text, [value] if isinstance(value, str | bytes) else value)):
                    return False
    return True


def _parse_error(
    data: bytes, message_class: type[Message], source: str, fallback: str, allow_unknown: bool
) -> ParseError:
    what = f"{_quoted(source)} cannot be read as a {_name(message_class)}: "
    fault = find_fault(data, message_class.DESCRIPTOR, allow_unknown=allow_unknown)
    if fault is None:
        what += f"{fallback} among {len(data)} bytes"
    else:
        where = f", in {fault.path}" if fault.path else ""
        what += f"stopped at byte {fault.offset} of {len(data)}{where}: {fault.reason}"
    if kind := kind_of(data):
        what += f"; this is {kind}"
    elif _LOOKS_LIKE_TEXT.match(data[:200]) and is_plain_text(data[:200].decode(errors="replace")):
        what += "; this looks like text, which netbuilder.proto.files.load_text reads"
    return ParseError(what)


def _missing_fields(message: Any) -> list[str]:
    return message.FindInitializationErrors()  # not in the type stubs of Message


def _check_complete(message: Message) -> None:
    if missing := _missing_fields(message):
        raise NetError(f"cannot serialize a {_name(type(message))}: required fields are missing: {', '.join(missing)}")


def _write(path: PathLike, data: bytes) -> None:
    with whole_file(path) as file:
        file.write(data)


def _quoted(source: str) -> str:
    return source if source.startswith("the given") else repr(source)


def _name(message_class: type[Message]) -> str:
    return message_class.DESCRIPTOR.name
