"""Datum, the record of Caffe's image databases: an image, raw or encoded, and one whole number as its label.

Fields of the message: 1 channels, 2 height, 3 width, 4 data, 5 label, 6 float_data, 7 encoded.
"""

from __future__ import annotations

from netbuilder.proto import ParseError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Datum", "read_datum"]

_NAMES = {1: "channels", 2: "height", 3: "width", 5: "label", 7: "encoded"}
_VARINT, _BYTES, _FIXED32 = 0, 2, 5


@dataclass(frozen=True)
class Datum:
    """An image and its label.

    Args:
        channels, height, width: shape of raw data.
        data: pixels (channels, height, width), one byte each; or the bytes of an image file.
        label: of the image.
        floats: whether the record holds floats instead of ``data``.
        encoded: whether ``data`` is an image file.
    """

    channels: int = 0
    height: int = 0
    width: int = 0
    data: bytes = b""
    label: int = 0
    floats: bool = False
    encoded: bool = False


def read_datum(value: bytes, where: str = "record") -> Datum:
    """Parse a Datum.

    Raises:
        ParseError: ``value`` is not a Datum.

    >>> read_datum(bytes.fromhex("08011002180122020a0b2805"))
    Datum(channels=1, height=2, width=1, data=b'\\n\\x0b', label=5, floats=False, encoded=False)
    """
    numbers: dict[str, int] = {}
    data, floats, at = b"", False, 0
    while at < len(value):
        tag, at = _varint(value, at, where)
        field, wire = tag >> 3, tag & 7
        if field in _NAMES and wire == _VARINT:
            numbers[_NAMES[field]], at = _varint(value, at, where)
        elif field in (4, 6) and wire == _BYTES:
            length, at = _varint(value, at, where)
            if length > len(value) - at:
                raise ParseError(f"{where} is not a Datum: field {field} of {length} bytes, {len(value) - at} are left")
            data, floats = (value[at : at + length], floats) if field == 4 else (data, True)
            at += length
        elif field == 6 and wire == _FIXED32:
            floats, at = True, at + 4
        else:
            raise ParseError(f"{where} is not a Datum: field {field} of wire type {wire} at byte {at}")
    label = numbers.get("label", 0)
    return Datum(
        numbers.get("channels", 0), numbers.get("height", 0), numbers.get("width", 0), data,
        label - (1 << 64) if label >> 63 else label, floats, bool(numbers.get("encoded", 0)),
    )  # fmt: skip


def _varint(value: bytes, at: int, where: str) -> tuple[int, int]:
    """Return the varint at byte ``at``, and where it ends."""
    number = shift = 0
    while at < len(value) and shift < 64:
        byte = value[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise ParseError(f"{where} is not a Datum: the number that ends at byte {at} is not complete")
