"""Damage to bytes and to messages: small, as by failing disks, and large, as by an attacker."""

from __future__ import annotations

import random
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

__all__ = ["NUMBERS", "damaged_bytes", "damaged_message", "damaged_text"]

NUMBERS = (
    0, 1, 2, 3, 4, 7, 8, 16, 100, 127, 128, 255, 256, 1000, 65535, 65536, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
    2**62, 2**63 - 1, -1, -2, -3, -7, -128, -65536, -(2**31), -(2**63),
)  # fmt: skip
"""Numbers that mean something to those who count in fields of a fixed width."""

_FORMS = ("<B", "<H", ">H", "<I", ">I", "<Q", ">Q")
_TOKENS = (
    b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc3", b'"', b"'", b",", b",,", b"\n", b"\r", b"\r\n", b"\t", b" ",
    b"-", b"-1", b"+1", b"0x10", b"1e9", b"nan", b"99999999999999999999", b"9" * 400, b"\xd9\xa3", b"\xc2\xb2", b"{",
    b"}", b"[", b":", b"#", b"..", b"/", b"a" * 5000,
)  # fmt: skip


def damaged_bytes(rng: random.Random, data: bytes, others: list[bytes] | None = None) -> bytes:
    """Return ``data`` with a few places changed, cut out, doubled, or put in from other files."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        size = len(out)
        at = rng.randrange(min(size, 64) if rng.random() < 0.3 else size) if size else 0
        length = min(rng.choice((1, 2, 4, 8, 16, 100, 4096)), size - at)
        way = rng.randrange(9)
        if way == 0 and size:
            out[at] ^= 1 << rng.randrange(8)
        elif way == 1 and size:
            out[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif way in (2, 3):
            form = rng.choice(_FORMS)
            width = struct.calcsize(form)
            number = rng.choice(NUMBERS) if way == 2 else rng.choice((size, size - at, size // 4096, at))
            out[at : at + width] = struct.pack(form, number % (1 << 8 * width))
        elif way == 4:
            del out[at : at + length]
        elif way == 5:
            out[at:at] = out[at : at + length]
        elif way == 6:
            out[at:at] = rng.randbytes(length)
        elif way == 7:
            del out[at:]
        elif others:
            source = rng.choice(others)
            begin = rng.randrange(len(source)) if source else 0
            out[at : at + length] = source[begin : begin + length]
    return bytes(out)


def damaged_text(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes of a text with odd pieces put in, or as ``damaged_bytes`` does it."""
    if rng.random() < 0.3:
        return damaged_bytes(rng, data)
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        out[at : at + rng.choice((0, 0, 1, 3, 10))] = rng.choice(_TOKENS)
    return bytes(out)


def damaged_message(rng: random.Random, message: Any, texts: tuple[str, ...] = ()) -> None:
    """Change some fields of a message, and of those in it, to values that they can hold and should not.

    Args:
        message: is changed.
        texts: that strings may become, such as names of operators.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        target = _some_part(rng, message)
        fields = list(target.DESCRIPTOR.fields)
        held = [field for field, _ in target.ListFields()]
        field = rng.choice(held) if held and rng.random() < 0.85 else rng.choice(fields)
        _damage(rng, target, field, texts)


def _some_part(rng: random.Random, message: Any) -> Any:
    """Return the message or one that it holds, at any depth."""
    while True:
        inside = []
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                inside += [value] if hasattr(value, "DESCRIPTOR") else list(value)
        if not inside or rng.random() < 0.2:
            return message
        message = rng.choice(inside)


def _damage(rng: random.Random, target: Any, field: Any, texts: tuple[str, ...]) -> None:
    repeated = _is_repeated(field)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        _damage_part(rng, target, field, repeated)
        return
    value = _value(rng, field, texts)
    if not repeated:
        if rng.random() < 0.15:
            target.ClearField(field.name)
        else:
            setattr(target, field.name, value)
        return
    held = getattr(target, field.name)
    way = rng.randrange(4)
    if way == 0 and held:
        del held[rng.randrange(len(held))]
    elif way == 1:
        held.append(value)
    elif way == 2 and held:
        held.append(rng.choice(held))
    elif held:
        held[rng.randrange(len(held))] = value


def _damage_part(rng: random.Random, target: Any, field: Any, repeated: bool) -> None:
    if not repeated:
        if target.HasField(field.name) and rng.random() < 0.7:
            target.ClearField(field.name)
        else:
            getattr(target, field.name).SetInParent()
        return
    held = getattr(target, field.name)
    way = rng.randrange(4)
    if way == 0 and held:
        del held[rng.randrange(len(held))]
    elif way == 1 and held:
        held.add().CopyFrom(rng.choice(held))
    elif way == 2 and len(held) > 1:
        parts = [type(part)() for part in held]
        for copy, part in zip(parts, held):
            copy.CopyFrom(part)
        rng.shuffle(parts)
        del held[:]
        held.extend(parts)
    else:
        held.add()


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _value(rng: random.Random, field: Any, texts: tuple[str, ...]) -> Any:
    kinds = FieldDescriptor
    if field.type in (kinds.TYPE_FLOAT, kinds.TYPE_DOUBLE):
        return rng.choice((0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"), 2.0**40))
    if field.type == kinds.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == kinds.TYPE_STRING:
        return rng.choice(("", "x", "y", "\0", "é", "a" * 300, "../x", *texts))
    if field.type == kinds.TYPE_BYTES:
        return rng.choice((b"", b"x", b"\xff\xfe", b"\0", rng.randbytes(8), b"a" * 1000))
    if field.type == kinds.TYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    number = rng.choice(NUMBERS)
    if field.type in (kinds.TYPE_INT32, kinds.TYPE_SINT32, kinds.TYPE_SFIXED32):
        return (number + 2**31) % 2**32 - 2**31
    if field.type in (kinds.TYPE_UINT32, kinds.TYPE_FIXED32):
        return number % 2**32
    if field.type in (kinds.TYPE_UINT64, kinds.TYPE_FIXED64):
        return number % 2**64
    return number
