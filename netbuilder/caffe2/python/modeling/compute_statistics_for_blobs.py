"""A net modifier that computes minimum, maximum, mean and standard deviation of blobs."""

from __future__ import annotations

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.watching import BlobWatcher, as_float
from netbuilder.graph import BlobReference, Net

__all__ = ["ComputeStatisticsForBlobs"]

__getattr__ = names_of(__name__)


class ComputeStatisticsForBlobs(BlobWatcher):
    """Compute minimum, maximum, mean and standard deviation of each blob, shape (4,), as ``<blob>_summary``.

    Args:
        blobs, logging_frequency: see ``BlobWatcher``.
    """

    def field_name_suffix(self) -> str:
        return "_summary"

    def add(self, net: Net, blob: BlobReference) -> tuple[BlobReference, BlobReference]:
        name = net.NextScopedBlob(prefix=f"{blob}{self.field_name_suffix()}")
        return blob, net.Summarize(as_float(net, blob), name, to_file=0)
