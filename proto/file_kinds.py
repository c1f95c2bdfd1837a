"""What a file is by its first bytes, for the errors about files of another kind."""

from __future__ import annotations

import struct

__all__ = ["kind_of"]

_STARTS = {
    b"PK\x03\x04": "a ZIP archive, as .npz and PyTorch's .pth are",
    b"\x1f\x8b": "compressed by gzip",
    b"\x93NUMPY": "an array of NumPy",
    b"\x89HDF\r\n": "an HDF5 file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"SQLite format 3": "an SQLite database",
}
_LMDB = 16, struct.pack("<I", 0xBEEFC0DE)
_MINIDB = struct.Struct("<ii")
_A_MINIDB = (
    "a minidb database: netbuilder-make-db --inspect describes one of images, load_checkpoint reads one of parameters, "
    "and netbuilder-predict and load_predictor_from_db one of predictor_exporter"
)
_MOST_VERSIONS = 64  # an ONNX model begins with the number of its format


def kind_of(data: bytes) -> str:
    """Return what the bytes of a file are, or "" if that is not known.

    >>> kind_of(b"\\x93NUMPY\\x01\\x00"), kind_of(b"")
    ('an array of NumPy', '')
    """
    place, magic = _LMDB
    if data[place : place + len(magic)] == magic:
        return "an LMDB database"
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data):
        return "a safetensors file, which load_weights reads"
    if _is_minidb(data):
        return _A_MINIDB
    if data[:1] == b"\x08" and data[1:2] < bytes([_MOST_VERSIONS]) and data[2:3] in (b"\x12", b"\x3a"):
        return "an ONNX model, which read_onnx reads"
    if _is_net(data):
        return "a net of netbuilder or Caffe2, which load_predictor reads together with its init net"
    return next((kind for start, kind in _STARTS.items() if data.startswith(start)), "")


def _is_net(data: bytes) -> bool:
    """Whether a NetDef begins here: with its name or without, an operator, of which an input or output comes first."""
    start = _end_of_text(data, 0) if data[:1] == b"\x0a" else 0
    if start is None or data[start : start + 1] != b"\x12":
        return False
    start += 1
    while data[start : start + 1] >= b"\x80":  # the operator's length
        start += 1
    return data[start + 1 : start + 2] in (b"\x0a", b"\x12") and _end_of_text(data, start + 1) is not None


def _end_of_text(data: bytes, start: int) -> int | None:
    """Return where a field of text ends that begins at ``start``; None if it is none, or of more than 127 letters."""
    if start + 1 >= len(data) or data[start + 1] > 127:
        return None
    end = start + 2 + data[start + 1]
    text = data[start + 2 : end]
    return end if text.isascii() and text.decode("ascii").isprintable() else None


def _is_minidb(data: bytes) -> bool:
    """Whether the first record fits, and its key is text."""
    if len(data) < _MINIDB.size:
        return False
    key, value = _MINIDB.unpack_from(data)
    start = _MINIDB.size
    if key <= 0 or value < 0 or start + key + value > len(data):
        return False
    return data[start : start + key].isascii() and data[start : start + key].decode("ascii").isprintable()
