"""Readers and writers of records, and pipes."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.limited_readers import (
    CompositeReader,
    CompositeReaderBuilder,
    CounterReader,
    CountUntil,
    ReaderWithDelay,
    ReaderWithLimit,
    ReaderWithLimitBase,
    ReaderWithTimeLimit,
)
from netbuilder.jobs.readers import Pipe, PipedReaderBuilder, Reader, ReaderBuilder, Writer

__all__ = [
    "CompositeReader",
    "CompositeReaderBuilder",
    "CountUntil",
    "CounterReader",
    "Pipe",
    "PipedReaderBuilder",
    "Reader",
    "ReaderBuilder",
    "ReaderWithDelay",
    "ReaderWithLimit",
    "ReaderWithLimitBase",
    "ReaderWithTimeLimit",
    "Writer",
]

__getattr__ = names_of(__name__)
