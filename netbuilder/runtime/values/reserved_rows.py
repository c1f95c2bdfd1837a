"""Blobs whose values are in one row, see ``netbuilder.engines.buffer_rows``."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.engines.buffer_rows import new_row, part_of_row
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime.values.blob import Blob

__all__ = ["reserve_row"]


def reserve_row(blobs: Sequence[tuple[Blob, TensorSpec]]) -> None:
    """Let blobs have values of given specs in one row; nothing happens if one of them has a buffer for its values."""
    if len({id(blob) for blob, _ in blobs}) < len(blobs) or any(blob.has_buffer_for(spec) for blob, spec in blobs):
        return
    _, parts = new_row([spec.nbytes for _, spec in blobs])
    for (blob, spec), part in zip(blobs, parts):
        blob.reserve(spec, part_of_row(part, spec))
