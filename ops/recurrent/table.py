"""The blobs that a recurrent net keeps of its steps: a table in its last output, and RecurrentNetworkBlobFetcher."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.recurrent.arena import ALIGNMENT, Slot
from netbuilder.proto import BlobError, ShapeError

__all__ = ["KeptBlob", "RecurrentNetworkBlobFetcher", "kept_arrays", "table_bytes"]

Array = Any

_MARK = b"nbsteps1"


@operator_class(frozen=True)
class KeptBlob:
    """A blob of the step net that is kept.

    Args:
        name: the step net's name.
        slot: the location of the array that holds it.
        first: its first row in step 0; -1: it is the same in all steps.
        window: its number of rows; 0: a single row, without that axis.
    """

    name: str
    slot: Slot
    first: int = 0
    window: int = 0

    def of_step(self, memory: Array, time: int) -> Array:
        """Return the value in a step, a view of ``memory``."""
        array = self.slot.of(memory)
        if self.first < 0:
            return array
        row = self.first + time
        return array[row : row + self.window] if self.window else array[row, ...]


def table_bytes(steps: int, timestep: str, kept: Sequence[KeptBlob]) -> Array:
    """Return the table as bytes, a multiple of 64: its text, its size and a marker."""
    rows = [[k.name, k.slot.offset, k.slot.shape, k.slot.dtype.str, k.first, k.window] for k in kept]
    text = json.dumps([steps, timestep, rows]).encode()
    text += b" " * (-(len(text) + 8 + len(_MARK)) % ALIGNMENT)
    return np.frombuffer(text + len(text).to_bytes(8, "little") + _MARK, np.uint8)


def kept_arrays(memory: Array) -> Iterator[tuple[str, int, Array]]:
    """Yield (the step net's blob, step, value) for each blob of the steps that a recurrent net has kept.

    Args:
        memory: its last output, on the host.

    Raises:
        ShapeError: ``memory`` is not the last output of a recurrent net.
    """
    end = memory[-16:].tobytes() if memory.ndim == 1 and memory.dtype == np.uint8 else b""
    if end[8:] != _MARK:
        raise ShapeError(
            "RecurrentNetworkBlobFetcher: the input must be the last output of a RecurrentNetwork that has run "
            f"(step_workspaces), got shape {memory.shape} of type {memory.dtype}"
        )
    size = int.from_bytes(end[:8], "little")
    steps, timestep, rows = json.loads(memory[-16 - size : -16].tobytes())
    kept = [KeptBlob(row[0], Slot(row[1], tuple(row[2]), np.dtype(row[3])), *row[4:]) for row in rows]
    for time in range(steps):
        yield timestep, time, np.array([time], np.int32)
        for blob in kept:
            yield blob.name, time, blob.of_step(memory, time)


@register
@operator_class(frozen=True)
class RecurrentNetworkBlobFetcher(Operator):
    """Store the blobs that a recurrent net has kept of its steps as separate blobs, and return their names.

    The blob ``b`` of step ``t`` is stored as ``<prefix>_<b><t>``: the states before and after the step, the step
    number, and what the backward step net reads again.
    """

    signature = """
        step_workspaces (M): uint8, the last output of a RecurrentNetwork
        -> names (K): string
    """
    dynamic = True
    stateful = True
    effects = ""
    outputs_on_host = True
    prefix: str = ""

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host"

    def flops(self, memory: Any) -> int:
        return 0


@kernel(RecurrentNetworkBlobFetcher)
def fetch_step_blobs(op: RecurrentNetworkBlobFetcher, ctx: RunContext, memory: Any) -> tuple[Any, ...]:
    found = []
    for blob, time, value in kept_arrays(ctx.host(memory)):
        name = f"{op.prefix}_{blob}{time}"
        if name in ctx.op_def.output:
            raise BlobError(f"RecurrentNetworkBlobFetcher: a step's blob would be {name!r}, the output's own name")
        ctx.workspace.make(name).store(value)
        found.append(name.encode())
    names = np.empty(len(found), object)
    names[:] = found
    return (names,)
