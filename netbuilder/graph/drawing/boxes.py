"""Elements of the drawing of a net."""

from __future__ import annotations

from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BACKWARD", "FORWARD", "PARTS", "UPDATES", "Blob", "Box"]

PARTS = ("forward", "backward", "updates")
FORWARD, BACKWARD, UPDATES = range(len(PARTS))


@dataclass(frozen=True)
class Blob:
    """One version of a blob.

    Args:
        name: the blob.
        shape: its shape and type as text, "" if they are not known.
        writer: index of the box that writes it; -1: it exists before the net runs.
        nbytes: its size in plain order; 0: not known.
        fed: it is an input of the net, and no parameter.
    """

    name: str
    shape: str
    writer: int
    nbytes: int = 0
    fed: bool = False


@dataclass(frozen=True)
class Box:
    """An operator in the drawing, or one operator on several devices.

    Args:
        index: of the operator in the net.
        type, name, line: of the operator; the line of the program that made it.
        lane: index of its device.
        part: index into ``PARTS``.
        inputs, outputs: indices of blobs.
        arguments: by name, as text.
        copies: number of other devices on which the same is computed; these operators have no box.
    """

    index: int
    type: str
    name: str
    line: str
    lane: int
    part: int
    inputs: list[int]
    outputs: list[int]
    arguments: dict[str, str]
    copies: int = 0
