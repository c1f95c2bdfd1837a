"""Data sets in databases as readers."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.file_readers import DBFileReader

__all__ = ["DBFileReader"]

__getattr__ = names_of(__name__)
