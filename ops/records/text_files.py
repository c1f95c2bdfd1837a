"""CreateTextFileReader and TextFileReaderRead: batches of rows of text files."""

from __future__ import annotations

from typing import Any

from netbuilder.data.text_rows import TextRows
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CreateTextFileReader", "TextFileReaderRead"]


@register
@dataclass(frozen=True)
class CreateTextFileReader(Operator):
    """Open a text file with one row per line and columns separated by tabs; see TextFileReaderRead.

    ``field_types`` has STRING or FLOAT for each column; ``num_passes`` is how many times the file is read.
    """

    signature = "-> handler: object"
    dynamic = True
    stateful = True
    effects = "touches files"
    outputs_on_host = True
    flops_per_element = 0
    filename: str = ""
    num_passes: int = 1
    field_types: tuple[int, ...] = ()

    def check(self) -> None:
        if not self.filename or not self.field_types:
            raise ArgumentError("CreateTextFileReader: filename, and field_types, one per column, must be given")


@kernel(CreateTextFileReader)
def create_text_file_reader(op: CreateTextFileReader, ctx: RunContext) -> tuple[Any, ...]:
    return (TextRows(op.filename, list(op.field_types), op.num_passes),)


@register
@dataclass(frozen=True)
class TextFileReaderRead(Operator):
    """Return the next ``batch_size`` rows of a text file, one output per column; fewer at the end, none after it."""

    signature = "handler: object -> field+ (N): string|float32"
    dynamic = True
    stateful = True
    effects = "touches files"
    outputs_on_host = True
    inputs_on_host = True
    flops_per_element = 0
    batch_size: int = 1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # a source: no gradient

    def check(self) -> None:
        if self.batch_size < 1:
            raise ArgumentError(f"TextFileReaderRead: batch_size must be at least 1, got {self.batch_size}")


@kernel(TextFileReaderRead)
def text_file_reader_read(op: TextFileReaderRead, ctx: RunContext, handler: Any) -> tuple[Any, ...]:
    rows = shared_object(op, handler, TextRows, "CreateTextFileReader")
    if op.n_out != rows.columns:
        raise ArgumentError(f"TextFileReaderRead: {rows.path!r} has {rows.columns} columns, got {op.n_out} outputs")
    return tuple(rows.next(op.batch_size))
