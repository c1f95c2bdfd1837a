"""Readers whose records are kept in a database."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.file_readers import CachedReader

__all__ = ["CachedReader"]

__getattr__ = names_of(__name__)
