"""Versions of blobs: which write of a blob each read of it refers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import made_at

__all__ = ["EXTERNAL", "Versions", "history", "number_versions", "reads_of", "writes_of"]

EXTERNAL = -1
"""Instead of the index of the operator that wrote a value: the value exists before the net runs."""


class Versions(NamedTuple):
    """The values that operators read and write, numbered; a value is one version of one blob.

    Args:
        names: blob of each value.
        versions: its version: 0 for the first value, whether it exists before the net runs or an operator writes it.
        writers: index of the operator that writes it, or EXTERNAL.
        readers: indices of the operators that read it, ascending; an operator that reads it twice is listed twice.
        inputs: for each operator, the values it reads.
        outputs: for each operator, the values it writes.
        last: for each blob, its last value.
    """

    names: list[str]
    versions: list[int]
    writers: list[int]
    readers: list[list[int]]
    inputs: list[list[int]]
    outputs: list[list[int]]
    last: dict[str, int]


def number_versions(ops: Iterable[OperatorDef]) -> Versions:
    """Number the values of operators that run in this order, in linear time."""
    names: list[str] = []
    versions: list[int] = []
    writers: list[int] = []
    readers: list[list[int]] = []
    inputs: list[list[int]] = []
    outputs: list[list[int]] = []
    last: dict[str, int] = {}
    for index, op in enumerate(ops):
        read = []
        for name in op.input[:]:  # slices: faster than iteration
            value = last.get(name)
            if value is None:
                value = last[name] = len(names)
                names.append(name)
                versions.append(0)
                writers.append(EXTERNAL)
                readers.append([])
            readers[value].append(index)
            read.append(value)
        written = []
        for name in op.output[:]:
            before = last.get(name)
            value = last[name] = len(names)
            names.append(name)
            versions.append(0 if before is None else versions[before] + 1)
            writers.append(index)
            readers.append([])
            written.append(value)
        inputs.append(read)
        outputs.append(written)
    return Versions(names, versions, writers, readers, inputs, outputs, last)


def history(versions: Versions, blob: str, ops: Sequence[OperatorDef]) -> str:
    """Return lines of text that list the writer and the readers of each version of ``blob``."""
    lines = []
    for value, name in enumerate(versions.names):
        if name != blob:
            continue
        writer = versions.writers[value]
        made = "exists before the net runs" if writer == EXTERNAL else f"written by {describe(ops[writer], writer)}"
        lines.append(f"  version {versions.versions[value]}: {made}")
        lines += [f"    read by {describe(ops[i], i)}" for i in dict.fromkeys(versions.readers[value])]
    return "\n".join(lines)


def describe(op: OperatorDef, index: int) -> str:
    """Return the description of an operator for messages: index, type, outputs and the line that made it."""
    return f"operator {index} {op.type} -> {list(op.output)}{made_at(op)}"


def reads_of(op: OperatorDef) -> Iterator[str]:
    """Yield the blobs that an operator reads: its inputs, and the external inputs of its subgraphs."""
    yield from op.input
    for net in subgraphs(op):
        yield from net.external_input


def writes_of(op: OperatorDef) -> Iterator[str]:
    """Yield the blobs that an operator writes: its outputs, and the external outputs of its subgraphs."""
    yield from op.output
    for net in subgraphs(op):
        yield from net.external_output
