"""Check the size that the header of an image file claims, before memory is allocated for it."""

from __future__ import annotations

import io
import os
from typing import Any

from netbuilder.proto import NetError, ParseError

__all__ = ["MAX_PIXELS", "check_image_size", "check_resized", "claimed_size", "pixel_limit"]

Bytes = bytes | memoryview

MAX_PIXELS = 1 << 27
"""Default limit on the pixels of an image; see ``pixel_limit``."""

_PNG = b"\x89PNG"
_VARIABLE = "NETBUILDER_MAX_PIXELS"
_PIXELS_PER_BYTE = 10_000  # more than the best compression of any usual format: PNG reaches 8,256, with one bit a pixel
_WITHOUT_SIZE = {0x01, *range(0xD0, 0xD9)}  # JPEG markers without a segment after them
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # JPEG markers of frame headers, which have height and width


def pixel_limit(given: int | None = None) -> int:
    """Return the limit on pixels of an image: ``given``, or the variable NETBUILDER_MAX_PIXELS, or ``MAX_PIXELS``.

    Raises:
        NetError: the limit is not a positive whole number.
    """
    text = given if given is not None else os.environ.get(_VARIABLE) or MAX_PIXELS
    try:
        limit = int(text)
    except (TypeError, ValueError):
        limit = 0
    if limit < 1:
        what = "max_pixels" if given is not None else f"the variable {_VARIABLE}"
        raise NetError(f"{what} must be a whole number, 1 or greater, got {text!r}")
    return limit


def check_image_size(data: Bytes, where: str, max_pixels: int | None = None, pillow: Any = None) -> None:
    """Raise an error if the header of an image file claims more pixels than are allowed, or than its bytes can hold.

    Args:
        data: the bytes of the file.
        where: what to call the image in errors.
        max_pixels: see ``pixel_limit``.
        pillow: module PIL.Image, which reads headers of formats other than JPEG and PNG; None: those are not checked.

    Raises:
        ParseError: it claims too many pixels.
        NetError: the limit is wrong.
    """
    limit = pixel_limit(max_pixels)
    if data[:4] == _PNG:
        _check_chunks(data, where)
    size = claimed_size(data, pillow)
    if size is None:
        return
    height, width = size
    if height * width > limit:
        raise ParseError(
            f"{where}: its header says {height} x {width} pixels, and {limit:,} are allowed; if it is right, give "
            f"max_pixels (on a command line: --max-pixels), or set the variable {_VARIABLE}"
        )
    if height * width > _PIXELS_PER_BYTE * len(data):
        raise ParseError(
            f"{where}: its header says {height} x {width} pixels, which {len(data)} bytes cannot hold; it is damaged"
        )


def check_resized(height: int, width: int) -> None:
    """Raise NetError if an image of this size, in pixels, would have more than MAX_PIXELS and ``pixel_limit()``."""
    if height * width > MAX_PIXELS and height * width > (limit := pixel_limit()):
        raise NetError(
            f"an image cannot be resized to {height} x {width} pixels: {limit:,} are allowed; give a smaller size, or "
            f"set the variable {_VARIABLE}"
        )


def claimed_size(data: Bytes, pillow: Any = None) -> tuple[int, int] | None:
    """Return height and width from the header of an image file; None if the format is unknown or the header incomplete.

    >>> claimed_size(b"\\x89PNG\\r\\n\\x1a\\n" + bytes(8) + bytes([0, 0, 0, 3, 0, 0, 0, 2]))
    (2, 3)
    """
    if data[:3] == b"\xff\xd8\xff":
        return _size_of_jpeg(data)
    if data[:4] == _PNG:
        return int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big")
    if pillow is None:
        return None
    try:
        with pillow.open(io.BytesIO(data)) as image:
            return int(image.size[1]), int(image.size[0])
    except Exception:  # Pillow raises many types; decoding will raise an error with the reason
        return None


def _check_chunks(data: Bytes, where: str) -> None:
    """Raise an error for a PNG with a chunk that ends after the file: decoders would allocate memory for it."""
    at = 8
    while at + 8 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), bytes(data[at + 4 : at + 8])
        if length > len(data) - at - 12:
            raise ParseError(f"{where}: a PNG with a chunk {kind!r} of {length} bytes at byte {at} of {len(data)}")
        if kind == b"IEND":
            return
        at += 12 + length


def _size_of_jpeg(data: Bytes) -> tuple[int, int] | None:
    at, end = 2, len(data)
    while at + 9 <= end:
        if data[at] != 0xFF:  # decoders skip other bytes
            at += 1
            continue
        marker = data[at + 1]
        if marker in (0x00, 0xFF) or marker in _WITHOUT_SIZE:
            at += 1 if marker == 0xFF else 2
        elif marker in _FRAMES:
            return int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
        else:
            at += 2 + max(int.from_bytes(data[at + 2 : at + 4], "big"), 2)
    return None
