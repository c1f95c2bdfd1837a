"""A net modifier that extracts single elements or rows of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.watching import BlobWatcher
from netbuilder.graph import BlobReference, Net
from netbuilder.proto import NetError

__all__ = ["GetEntryFromBlobs"]

__getattr__ = names_of(__name__)


class GetEntryFromBlobs(BlobWatcher):
    """Extract one element of each matrix, shape (1, 1), as ``<blob>_<i1>_<i2>``, or a row as ``<blob>_<i1>_all``.

    Args:
        blobs, logging_frequency: see ``BlobWatcher``.
        i1: the row.
        i2: the column; -1: the whole row.

    Raises:
        NetError: ``i1`` is negative, or ``i2`` less than -1.
    """

    def __init__(self, blobs: Sequence[Any], logging_frequency: int, i1: int = 0, i2: int = 0) -> None:
        super().__init__(blobs, logging_frequency)
        if i1 < 0 or i2 < -1:
            raise NetError(f"GetEntryFromBlobs: i1 must be at least 0 and i2 at least -1, got {i1} and {i2}")
        self._i1, self._i2 = i1, i2

    def field_name_suffix(self) -> str:
        return f"_{self._i1}_{'all' if self._i2 == -1 else self._i2}"

    def field_type(self) -> Any:
        return float

    def add(self, net: Net, blob: BlobReference) -> tuple[BlobReference, BlobReference]:
        row = net.Slice([blob], starts=[self._i1, 0], ends=[self._i1 + 1, -1])
        name = net.NextScopedBlob(prefix=f"{blob}{self.field_name_suffix()}")
        if self._i2 == -1:
            return blob, net.Copy([row], [name])
        return blob, net.Slice([row], name, starts=[0, self._i2], ends=[-1, self._i2 + 1])
