"""Elements of the drawing of a net."""

from __future__ import annotations

from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Blob", "Box"]


@dataclass(frozen=True)
class Blob:
    """One version of a blob.

    Args:
        name: the blob.
        shape: its shape and type as text, "" if they are not known.
        writer: index of the operator that writes it; -1: it exists before the net runs.
        nbytes: its size in plain order; 0: not known.
    """

    name: str
    shape: str
    writer: int
    nbytes: int = 0


@dataclass(frozen=True)
class Box:
    """An operator in the drawing.

    Args:
        type, name, line: of the operator; the line of the program that made it.
        lane, row: where it is drawn.
        inputs, outputs: indices of blobs.
        arguments: by name, as text.
        backward: whether it belongs to the backward pass.
    """

    type: str
    name: str
    line: str
    lane: int
    row: int
    inputs: list[int]
    outputs: list[int]
    arguments: dict[str, str]
    backward: bool
