"""A net modifier that computes histograms of blobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.watching import BlobWatcher, as_float
from netbuilder.graph import BlobReference, Net
from netbuilder.proto import NetError, TensorProto

__all__ = ["ComputeHistogramForBlobs"]

__getattr__ = names_of(__name__)


class ComputeHistogramForBlobs(BlobWatcher):
    """Compute a normalized histogram of each blob, float32, as ``<blob>_curr_normalized_hist``.

    It has ``num_buckets + 2`` elements: the first is the fraction of elements below ``lower_bound``, the last that of
    elements at or above ``upper_bound``.

    Args:
        blobs, logging_frequency: see ``BlobWatcher``.
        num_buckets: intervals between the bounds.
        lower_bound, upper_bound: the bounds.
        accumulate: count the elements of all runs so far; the name then ends with ``_acc_normalized_hist``.

    Raises:
        NetError: ``num_buckets`` is less than 1.
    """

    def __init__(
        self,
        blobs: Sequence[Any],
        logging_frequency: int,
        num_buckets: int = 30,
        lower_bound: float = 0.0,
        upper_bound: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        super().__init__(blobs, logging_frequency)
        if num_buckets < 1:
            raise NetError(f"ComputeHistogramForBlobs: num_buckets must be at least 1, got {num_buckets}")
        self._accumulate = accumulate
        self._num_buckets = int(num_buckets)
        self._bounds = float(lower_bound), float(upper_bound)

    def field_name_suffix(self) -> str:
        return "_acc_normalized_hist" if self._accumulate else "_curr_normalized_hist"

    def field_type(self) -> Any:
        return (np.float32, (self._num_buckets + 2,))

    def add(self, net: Net, blob: BlobReference) -> tuple[BlobReference, BlobReference]:
        current, all_runs = net.AccumulateHistogram(
            [as_float(net, blob)],
            [net.NextScopedBlob(prefix=f"{blob}_curr_hist"), net.NextScopedBlob(prefix=f"{blob}_acc_hist")],
            num_buckets=self._num_buckets,
            lower_bound=self._bounds[0],
            upper_bound=self._bounds[1],
        )
        counts = net.Cast(
            all_runs if self._accumulate else current,
            net.NextScopedBlob(prefix=f"{blob}_cast_hist"),
            to=TensorProto.FLOAT,
        )
        return blob, net.NormalizeL1(counts, net.NextScopedBlob(prefix=f"{blob}{self.field_name_suffix()}"))
