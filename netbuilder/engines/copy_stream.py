"""Copying what a process writes to a stream of this one, whatever happens to that stream."""

from __future__ import annotations

import contextlib
import os

__all__ = ["copy_stream"]


def copy_stream(reader: int, number: int, prefix: bytes = b"") -> None:
    """Copy a stream to a descriptor; read on where it cannot be written, so that the writer does not wait or end.

    Args:
        reader: a descriptor.
        number: of the descriptor to write to.
        prefix: at the beginning of each line; then whole lines are copied.
    """
    rest = b""
    while part := os.read(reader, 1 << 16):
        if prefix:
            *lines, rest = (rest + part).split(b"\n")
            part = b"".join(prefix + line + b"\n" for line in lines)
        _write_all(number, part)
    if rest:
        _write_all(number, prefix + rest + b"\n")


def _write_all(number: int, data: bytes) -> None:
    """Write to a descriptor; what cannot be written is dropped."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(number, view) :]
