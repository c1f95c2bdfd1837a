"""Blobs whose values are in one row, see ``netbuilder.ops.engines.rows``."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.rows import as_row, new_row, part_of_row
from netbuilder.runtime.values.blob import Blob

__all__ = ["make_row_of", "reserve_row"]


def make_row_of(blobs: Sequence[Blob]) -> None:
    """Move the values of blobs to one row; nothing happens if one of them may not be moved, or if they are in one."""
    if len({id(blob) for blob in blobs}) < len(blobs) or not all(blob.may_move for blob in blobs):
        return
    if as_row([blob.buffer for blob in blobs]) is not None:
        return
    _, parts = new_row([blob.buffer.nbytes for blob in blobs])
    for blob, part in zip(blobs, parts):
        spec = blob.spec
        assert isinstance(spec, TensorSpec)
        blob.move(part_of_row(part, spec))


def reserve_row(blobs: Sequence[tuple[Blob, TensorSpec]]) -> None:
    """Let blobs have values of given specs in one row; nothing happens if one of them has a buffer for its values."""
    if len({id(blob) for blob, _ in blobs}) < len(blobs) or any(blob.has_buffer_for(spec) for blob, spec in blobs):
        return
    _, parts = new_row([spec.nbytes for _, spec in blobs])
    for (blob, spec), part in zip(blobs, parts):
        blob.reserve(spec, part_of_row(part, spec))
