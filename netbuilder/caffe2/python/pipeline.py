"""Tasks whose threads read, process and write records."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.operations import ops
from netbuilder.jobs.pipeline import (
    DEFAULT_QUEUE_CAPACITY,
    NetProcessor,
    Output,
    ProcessingReader,
    make_processor,
    normalize_processor_output,
    pipe,
    pipe_and_output,
    processor_name,
)

__all__ = [
    "DEFAULT_QUEUE_CAPACITY",
    "NetProcessor",
    "Output",
    "ProcessingReader",
    "make_processor",
    "normalize_processor_output",
    "ops",
    "pipe",
    "pipe_and_output",
    "processor_name",
]

__getattr__ = names_of(__name__)
