"""Text files as readers."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.file_readers import TextFileReader

__all__ = ["TextFileReader"]

__getattr__ = names_of(__name__)
