"""A net modifier that computes norms of blobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.watching import BlobWatcher, as_float
from netbuilder.graph import BlobReference, Net
from netbuilder.proto import NetError

__all__ = ["ComputeNormForBlobs"]

__getattr__ = names_of(__name__)


class ComputeNormForBlobs(BlobWatcher):
    """Compute sum(|x|^p), without the root, of each blob, float32, shape (1,), as ``<blob>_l<p>_norm``; no gradient.

    Args:
        blobs, logging_frequency: see ``BlobWatcher``.
        p: 1 or 2.
        compute_averaged_norm: divide it by the number of elements; the name then ends with ``_averaged_l<p>_norm``.
        row_index: use only this row of a matrix, as ``<blob>_row_<row_index>``; None: all rows.

    Raises:
        NetError: ``row_index`` is negative.
    """

    def __init__(
        self,
        blobs: Sequence[Any],
        logging_frequency: int,
        p: int = 2,
        compute_averaged_norm: bool = False,
        row_index: int | None = None,
    ) -> None:
        super().__init__(blobs, logging_frequency)
        if row_index is not None and row_index < 0:
            raise NetError(f"ComputeNormForBlobs: row_index must not be negative, got {row_index}")
        self._p = p
        self._averaged = compute_averaged_norm
        self.row_index = row_index

    def field_name_suffix(self) -> str:
        return f"{'_averaged' if self._averaged else ''}_l{self._p}_norm"

    def add(self, net: Net, blob: BlobReference) -> tuple[BlobReference, BlobReference]:
        row = self.row_index
        if row is not None:
            name = net.NextScopedBlob(prefix=f"{blob}_row_{row}")
            blob = net.Slice([blob], name, starts=[row, 0], ends=[row + 1, -1])
        name = net.NextScopedBlob(prefix=f"{blob}{self.field_name_suffix()}")
        norm = net.LpNorm(as_float(net, blob), name, p=self._p, average=self._averaged)
        net.StopGradient(norm, net.NextScopedBlob(norm + "_stop_gradient"))
        return blob, norm
