"""The blobs that a recurrent net keeps of its steps: a table in its last output, and RecurrentNetworkBlobFetcher."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.recurrent.arena import ALIGNMENT, Slot
from netbuilder.proto import BlobError, ShapeError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.structured_text import parse_json

__all__ = ["KeptBlob", "RecurrentNetworkBlobFetcher", "kept_arrays", "table_bytes"]

Array = Any

_MARK = b"nbsteps1"
_MOST_STEPS = 1 << 24  # rows of no elements take no memory, the blobs of steps do


@dataclass(frozen=True)
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
    steps, timestep, kept = _read_table(memory, memory.size - 16 - size)
    for time in range(steps):
        yield timestep, time, np.array([time], np.int32)
        for blob in kept:
            yield blob.name, time, blob.of_step(memory, time)


def _read_table(memory: Array, begin: int) -> tuple[int, str, list[KeptBlob]]:
    """Return the number of steps, the name of the step number, and what is kept; the table begins at ``begin``.

    Raises:
        ShapeError: the table is not one that ``table_bytes`` has written, or says that more is kept than there is.
    """
    try:
        if begin < 0:
            raise ShapeError(f"its size is said to be {memory.size - 16 - begin} bytes, and there are {memory.size}")
        found = parse_json(memory[begin:-16].tobytes(), "its text")
        steps, timestep, rows = found
        kept = [_kept_blob(*row) for row in rows]
        if type(steps) is not int or type(timestep) is not str or steps < 0:
            raise ShapeError(f"steps and the name of their number are {steps!r:.80} and {timestep!r:.80}")
        for blob in kept:
            _check_kept(blob, steps, begin)
        if steps and not any(blob.first >= 0 for blob in kept):
            raise ShapeError(f"it has {steps} steps, and no blob has a row for each")
    except (TypeError, ValueError) as error:  # of both kinds is what unpacks and makes types
        reason = " ".join(str(error).split())
        raise ShapeError(
            f"RecurrentNetworkBlobFetcher: the table in the input, of {memory.size} bytes, is damaged: {reason:.300}; "
            "the input must be the last output of a RecurrentNetwork, unchanged"
        ) from None
    return steps, timestep, kept


def _kept_blob(name: str, offset: int, shape: list[int], dtype: str, first: int, window: int) -> KeptBlob:
    numbers = [offset, *shape, first, window]
    if type(name) is not str or type(dtype) is not str or any(type(number) is not int for number in numbers):
        raise ShapeError(f"a row has {[name, offset, shape, dtype, first, window]!r:.120}")
    return KeptBlob(name, Slot(offset, tuple(shape), np.dtype(dtype)), first, window)


def _check_kept(blob: KeptBlob, steps: int, end: int) -> None:
    """Raise ShapeError unless the values of a blob in all steps are in the first ``end`` bytes."""
    slot, what = blob.slot, f"blob {blob.name!r:.80}"
    if slot.dtype.kind not in "biuf" or min(slot.offset, *slot.shape, blob.window, 0) < 0 or blob.first < -1:
        raise ShapeError(f"{what} has type {slot.dtype}, shape {slot.shape}, offset {slot.offset}, row {blob.first}")
    if slot.offset + slot.nbytes > end:
        raise ShapeError(f"{what} ends at byte {slot.offset + slot.nbytes}, and values end at {end}")
    rows = blob.first + steps - 1 + max(blob.window, 1)
    if blob.first >= 0 and steps and not (slot.shape and rows <= slot.shape[0] and steps <= _MOST_STEPS):
        raise ShapeError(f"{what} of shape {slot.shape} has no {rows} rows, for {steps} steps")


@register
@dataclass(frozen=True)
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
    inputs_on_host = True
    flops_per_element = 0
    prefix: str = ""


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
