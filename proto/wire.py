"""The wire format: where and why bytes do not fit a message's description, and how whole numbers are written."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Fault", "find_fault", "is_plain_text", "varint"]

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_WIRE_NAMES = {
    _VARINT: "an integer",
    _FIXED64: "8 bytes",
    _BYTES: "a run of bytes",
    _GROUP: "a group",
    _END_GROUP: "the end of a group",
    _FIXED32: "4 bytes",
}
_WIRE_TYPE = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_FIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_STRING: _BYTES,
    FieldDescriptor.TYPE_BYTES: _BYTES,
    FieldDescriptor.TYPE_MESSAGE: _BYTES,
}  # every other type is an integer

# Two classes describe messages, one in Python and one in protobuf's C library; the stubs name the first alone.
Descriptor = Any

# Messages within one another: three for a net inside an operator, so some 1,000 nets. The protobuf library itself
# parses 100, or with its limit lifted whatever comes; a stack of 8 MiB then ends at 30,000 or more (measured on
# protobuf 4.25 and 7), one of 1 MiB at some 3,000.
_DEPTH_LIMIT = 3000
_GROUP_LIMIT = 100

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Fault:
    """Where bytes stop fitting a message: offset in bytes, path of fields ("op[3].arg[0]"), and why."""

    offset: int
    path: str
    reason: str


@dataclass(frozen=True)
class _Path:
    """A field, its index among those of its number, and the fields that it is within."""

    outer: _Path | None
    field: Any
    index: int

    def __str__(self) -> str:
        names: list[str] = []
        at: _Path | None = self
        while at is not None:
            names.append(f"{at.field.name}[{at.index}]" if _repeated(at.field) else at.field.name)
            at = at.outer
        return ".".join(reversed(names))


@dataclass
class _Open:
    """A message that is being read: its description, where it ends, and how often each field has come."""

    descriptor: Descriptor
    end: int
    path: _Path | None
    counts: dict[int, int]


class _Misfit(Exception):
    def __init__(self, offset: int, path: _Path | None, reason: str) -> None:
        self.fault = Fault(offset, "" if path is None else str(path), reason)


def varint(number: int) -> bytes:
    """Return a whole number from 0 on as the wire format writes it: seven bits a byte, the lowest first.

    >>> varint(300)
    b'\\xac\\x02'
    """
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def is_plain_text(value: str | bytes) -> bool:
    """Say whether a string field holds text; bytes of another kind of file do not.

    >>> is_plain_text("conv1_w"), is_plain_text("\\n\\x04data\\x12\\x01"), is_plain_text(b"\\xff\\xd8")
    (True, False, False)
    """
    if isinstance(value, bytes):  # the protobuf library gives bytes where they are no UTF-8
        return False
    return value.isprintable() or not _CONTROL.search(value)


def find_fault(data: bytes, descriptor: Descriptor, *, allow_unknown: bool = False) -> Fault | None:
    """Return the first place where ``data`` does not fit the message, or None if it fits.

    Fields that the message does not have, strings that hold no text, and enum values without a name
    count as misfits, unless ``allow_unknown``. Missing required fields are not looked at.

    >>> from netbuilder.proto import NetDef
    >>> find_fault(NetDef(name="lenet").SerializeToString()[:-2], NetDef.DESCRIPTOR)
    Fault(offset=2, path='name', reason='the field says 5 bytes, but only 3 are left')
    """
    try:
        _walk(data, descriptor, allow_unknown)
    except _Misfit as misfit:
        return misfit.fault
    return None


def _walk(data: bytes, descriptor: Descriptor, allow_unknown: bool) -> None:
    """Check every field of the message and of those within it, without recursion."""
    at = 0
    waiting = [_Open(descriptor, len(data), None, {})]
    while waiting:
        message = waiting[-1]
        if at == message.end:
            waiting.pop()
            continue
        start = at
        tag, at = _varint(data, at, message.end, message.path)
        number, wire = tag >> 3, tag & 7
        if number == 0 or wire not in _WIRE_NAMES or tag >= 1 << 32:
            raise _Misfit(start, message.path, f"byte 0x{data[start]:02x} starts no field")
        field = message.descriptor.fields_by_number.get(number)
        if field is None or not _fits(field, wire):
            if not allow_unknown:
                raise _Misfit(start, message.path, _unknown(message.descriptor, field, number, wire))
            at = _skip(data, start, at, message.end, wire, number, message.path, 0)
            continue
        index = message.counts[number] = message.counts.get(number, -1) + 1
        path = _Path(message.path, field, index)
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            at = _field(data, at, message.end, field, wire, path, allow_unknown)
            continue
        at, end = _run(data, at, message.end, path)
        if len(waiting) > _DEPTH_LIMIT:
            reason = f"messages are nested deeper than {_DEPTH_LIMIT:,} (three for a net inside an operator)"
            raise _Misfit(at, waiting[min(5, len(waiting) - 1)].path, reason)
        waiting.append(_Open(field.message_type, end, path, {}))


def _field(data: bytes, at: int, end: int, field: Any, wire: int, path: _Path, allow_unknown: bool) -> int:
    """Check the value of one field, which is no message and starts at ``at``; return where it ends."""
    if wire != _BYTES:
        start = at
        at = _scalar(data, at, end, wire, path)
        if field.type == FieldDescriptor.TYPE_ENUM and not allow_unknown:
            _check_enum(data, start, end, field, path)
        return at
    start, stop = _run(data, at, end, path)
    if field.type == FieldDescriptor.TYPE_STRING:
        if not allow_unknown:
            _check_text(data[start:stop], start, path)
    elif field.type != FieldDescriptor.TYPE_BYTES:
        _packed(data, start, stop, field, path, allow_unknown)
    return stop


def _fits(field: Any, wire: int) -> bool:
    own = _WIRE_TYPE.get(field.type, _VARINT)
    return wire == own or (wire == _BYTES and own != _BYTES and _repeated(field))


def _repeated(field: Any) -> bool:
    # `label` is deprecated on newer protobuf, `is_repeated` is missing on older ones.
    repeated = getattr(field, "is_repeated", None)
    return field.label == FieldDescriptor.LABEL_REPEATED if repeated is None else repeated


def _packed(data: bytes, at: int, stop: int, field: Any, path: _Path | None, allow_unknown: bool) -> None:
    wire = _WIRE_TYPE.get(field.type, _VARINT)
    if field.type == FieldDescriptor.TYPE_ENUM and not allow_unknown:
        while at < stop:
            _check_enum(data, at, stop, field, path)
            at = _varint(data, at, stop, path)[1]
    elif wire == _VARINT:
        if stop > at and data[stop - 1] & 0x80:
            raise _Misfit(stop - 1, path, "the last integer is cut short")
    elif (stop - at) % (8 if wire == _FIXED64 else 4):
        raise _Misfit(at, path, f"{stop - at} bytes are no whole number of values")


def _check_text(raw: bytes, start: int, path: _Path | None) -> None:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _Misfit(start + error.start, path, f"byte 0x{raw[error.start]:02x} is no UTF-8 text") from None
    if found := _CONTROL.search(text):
        offset = start + len(text[: found.start()].encode())
        raise _Misfit(offset, path, f"byte 0x{ord(found.group()):02x} is no text")


def _check_enum(data: bytes, at: int, end: int, field: Any, path: _Path | None) -> None:
    value, _ = _varint(data, at, end, path)
    if value >= 1 << 63:
        value -= 1 << 64
    if value not in field.enum_type.values_by_number:
        raise _Misfit(at, path, f"{field.enum_type.name} has no value {value}")


def _scalar(data: bytes, at: int, end: int, wire: int, path: _Path | None) -> int:
    if wire == _VARINT:
        return _varint(data, at, end, path)[1]
    size = 8 if wire == _FIXED64 else 4
    if at + size > end:
        raise _Misfit(at, path, f"the field takes {size} bytes, but only {end - at} are left")
    return at + size


def _run(data: bytes, at: int, end: int, path: _Path | None) -> tuple[int, int]:
    size, start = _varint(data, at, end, path)
    if start + size > end:
        raise _Misfit(start, path, f"the field says {size} bytes, but only {end - start} are left")
    return start, start + size


def _skip(data: bytes, start: int, at: int, end: int, wire: int, number: int, path: _Path | None, depth: int) -> int:
    """Return where the value of an unknown field ends."""
    if wire == _BYTES:
        return _run(data, at, end, path)[1]
    if wire == _END_GROUP:
        raise _Misfit(start, path, "a group ends that did not start")
    if wire != _GROUP:
        return _scalar(data, at, end, wire, path)
    if depth > _GROUP_LIMIT:
        raise _Misfit(start, path, f"groups are nested deeper than {_GROUP_LIMIT}")
    while at < end:
        inner = at
        tag, at = _varint(data, at, end, path)
        if tag & 7 == _END_GROUP and tag >> 3 == number:
            return at
        if tag & 7 not in _WIRE_NAMES:
            raise _Misfit(inner, path, f"byte 0x{data[inner]:02x} starts no field")
        at = _skip(data, inner, at, end, tag & 7, tag >> 3, path, depth + 1)
    raise _Misfit(end, path, "a group does not end")


def _varint(data: bytes, at: int, end: int, path: _Path | None) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at + shift // 7 >= end:
            raise _Misfit(end, path, "an integer is cut short")
        byte = data[at + shift // 7]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at + shift // 7 + 1
    raise _Misfit(at, path, "an integer is longer than 10 bytes")


def _unknown(descriptor: Descriptor, field: Any, number: int, wire: int) -> str:
    if field is None:
        return f"{descriptor.name} has no field {number}"
    own = _WIRE_TYPE.get(field.type, _VARINT)
    return f"field {number} of {descriptor.name} ({field.name}) is {_WIRE_NAMES[own]}, but {_WIRE_NAMES[wire]} came"
