"""Records: blobs by the names of their fields. All that the library's own room has, and their values."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.graph import records
from netbuilder.graph.records import *  # noqa: F403
from netbuilder.runtime.records import FeedRecord, FetchRecord

__all__ = ["FeedRecord", "FetchRecord"]
__all__ += records.__all__

__getattr__ = names_of(__name__)
