"""A queue that threads fill from a reader."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.record_queue import RecordQueue

__all__ = ["RecordQueue"]

__getattr__ = names_of(__name__)
