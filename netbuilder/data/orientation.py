"""The orientation that cameras store with an image (EXIF): found in JPEG, PNG and WebP files, and applied to pixels.

Source: CIPA DC-008, "Exchangeable image file format for digital still cameras", 2023, section 4.6.5, tag 0x0112.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["ORIENTATION_TAG", "find_orientation", "swaps_sides", "turned"]

Array = np.ndarray[Any, np.dtype[Any]]
Bytes = bytes | memoryview

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG"
ORIENTATION_TAG, _SHORT = 0x0112, 3
_MARK = b"Exif\0\0"
_ALONE = {0x01, *range(0xD0, 0xD9)}  # JPEG markers without a segment
_LAST = (0xD9, 0xDA)  # end of the image, and begin of its data
_MOST = 10_000  # entries and chunks that are looked at


def find_orientation(data: Bytes) -> int:
    """Return the orientation of an image file, 1 to 8; 1, upright, where it has none or one that is damaged.

    Args:
        data: the bytes of the file. Formats other than JPEG, PNG and WebP have none, or their decoders apply it (TIFF).
    """
    if data[:3] == _JPEG:
        blocks = _of_jpeg(data)
    elif data[:4] == _PNG:
        blocks = _of_png(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        blocks = _of_webp(data)
    else:
        return 1
    return next((found for block in blocks if (found := _in_tiff(block))), 1)


def swaps_sides(orientation: int) -> bool:
    """Say whether an image of this orientation is turned by a quarter, so that its height becomes its width."""
    return orientation > 4


def turned(pixels: Array, orientation: int, cv2: Any = None) -> Array:
    """Return pixels (H, W, C) upright, contiguous.

    Args:
        pixels: as they are stored.
        orientation: 1 to 8.
        cv2: OpenCV, which is faster; None: NumPy.
    """
    if orientation == 1:
        return pixels
    if cv2 is None:
        found = pixels.swapaxes(0, 1) if swaps_sides(orientation) else pixels
        found = found[::-1] if orientation in (3, 4, 7, 8) else found
        found = found[:, ::-1] if orientation in (2, 3, 6, 7) else found
        return np.ascontiguousarray(found)
    found = pixels
    if swaps_sides(orientation):
        found = cv2.transpose(found)
    if orientation != 5:
        found = cv2.flip(found, {2: 1, 6: 1, 4: 0, 8: 0, 3: -1, 7: -1}[orientation])
    height, width, channels = pixels.shape
    return found.reshape(*((width, height) if swaps_sides(orientation) else (height, width)), channels)


def _of_jpeg(data: Bytes) -> Iterator[Bytes]:
    at, end = 2, len(data)
    while at + 4 <= end and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _LAST:
            return
        if marker == 0xFF or marker in _ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if marker == 0xE1 and data[at + 4 : at + 10] == _MARK:
            yield data[at + 10 : at + 2 + length]
        at += 2 + max(length, 2)


def _of_png(data: Bytes) -> Iterator[Bytes]:
    at = 8
    for _ in range(_MOST):
        if at + 8 > len(data):
            return
        length = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"eXIf":
            yield data[at + 8 : at + 8 + length]
        at += 12 + length


def _of_webp(data: Bytes) -> Iterator[Bytes]:
    at = 12
    for _ in range(_MOST):
        if at + 8 > len(data):
            return
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"EXIF":
            block = data[at + 8 : at + 8 + length]
            yield block[len(_MARK) :] if block[: len(_MARK)] == _MARK else block
        at += 8 + length + length % 2


def _in_tiff(block: Bytes) -> int:
    """Return the orientation in the first folder of a TIFF header; 0 if there is none."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(block[:2]))
    try:
        if order is None:
            return 0
        (at,) = struct.unpack_from(f"{order}I", block, 4)
        (count,) = struct.unpack_from(f"{order}H", block, at)
        for place in range(at + 2, at + 2 + 12 * min(count, _MOST), 12):
            tag, kind, number, value = struct.unpack_from(f"{order}HHIH", block, place)
            if tag == ORIENTATION_TAG:
                return value if kind == _SHORT and number == 1 and 1 <= value <= 8 else 0
    except struct.error:  # cut short
        pass
    return 0
