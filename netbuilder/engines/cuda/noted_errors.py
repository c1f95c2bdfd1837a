"""Checks of values on a GPU without a wait: what is wrong is noted in the GPU's memory, and raised when the host waits.

Kernels note the first wrong value and what it is wrong for (a slot). The host reads the note where it waits anyway: at
the end of a run, and when it reads a value.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, with_prelude
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.gpu import GPU, after_reads, gpu

__all__ = ["REPORT", "Slot", "checked_kernel", "checked_range", "note_of", "raise_noted", "slot_of"]

REPORT = """
__device__ __forceinline__ void report(u64* note, i64 slot, i64 value) {  // the first one stays
    if (atomicCAS(note, 0ULL, (u64)slot) == 0) note[1] = (u64)value;
}
"""
"""A function of kernels that check: notes a wrong value."""


class Slot:
    """What a value can be wrong for.

    Args:
        number: what kernels note.
        error: returns the error for a wrong value.
    """

    def __init__(self, number: int, error: Callable[[int], Exception]) -> None:
        self.number = np.int64(number)
        self.error = error


class _Note:
    """The note of a GPU: the number of a slot, 0 if all is right, and the wrong value."""

    def __init__(self, here: GPU) -> None:
        with here:
            self.array = here.xp.zeros(2, np.int64)
        self.slots: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()
        self.made = 0

    def slot(self, error: Callable[[int], Exception]) -> Slot:
        self.made += 1
        slot = self.slots[self.made] = Slot(self.made, error)
        return slot


_notes: weakref.WeakKeyDictionary[GPU, _Note] = weakref.WeakKeyDictionary()
_slots: weakref.WeakKeyDictionary[Any, dict[Any, Slot]] = weakref.WeakKeyDictionary()


def note_of(here: GPU) -> _Note:
    """Return the note of a GPU."""
    found = _notes.get(here)
    return _notes.setdefault(here, _Note(here)) if found is None else found


def slot_of(ctx: Any, here: GPU, key: Any, error: Callable[[int], Exception]) -> Slot:
    """Return the slot of a check by an operator's kernel.

    Args:
        ctx: the run context of the operator; the slot is there as long as it is.
        here: the GPU.
        key: which of the operator's checks it is.
        error: returns the error for a wrong value; where the operator is gets added to it.
    """
    own = _slots.setdefault(ctx, {})
    if key not in own:
        located = ctx.located
        own[key] = note_of(here).slot(lambda value: located(error(value)))
    return own[key]


def raise_noted(number: int) -> None:
    """Raise the error for what kernels have noted on a GPU since the last call, if there is any; waits for the GPU."""
    here = gpu(number)
    note = _notes.get(here)
    if note is None or not note.made:
        return
    with here:
        slot, value = note.array.get().tolist()
        if not slot:
            return
        note.array.fill(0)
    found = note.slots.get(slot)
    raise IndexError(f"index {value} is out of range") if found is None else found.error(value)


after_reads.append(raise_noted)


@functools.cache
def checked_kernel(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that checks integers of a type."""
    kind = c_type(dtype)
    lines = [
        REPORT,
        f'extern "C" __global__ void NAME(const {kind}* given, {kind}* safe, i64 lowest, i64 extent, i64 size, '
        "i64 slot, u64* note) {",
        f"const i64 i = blockIdx.x * (i64){THREADS} + threadIdx.x;",
        "if (i >= size) return;",
        "const i64 value = (i64)given[i];",
        "const bool wrong = value < lowest || value >= extent;",
        "if (wrong) report(note, slot, value);",
        f"safe[i] = wrong ? ({kind})(lowest > 0 ? lowest : 0) : given[i];",
        "}",
    ]
    return Kernel("checked", with_prelude("\n".join(lines)))


def checked_range(ctx: Any, values: Any, lowest: int, extent: int, error: Callable[[int], Exception]) -> Any:
    """Return integers on a GPU with those outside of [lowest, extent) replaced by one that is inside.

    If there are any, the error is raised when the host waits next.

    Args:
        ctx: the run context of the operator.
        values: of any integer type.
        lowest, extent: the range, which is not empty.
        error: returns the error for a wrong value.
    """
    number = values.device.id
    with gpu(number) as here:
        given = here.xp.ascontiguousarray(values)  # which makes one index an array of one axis
        safe = here.xp.empty(values.shape, values.dtype)
        slot = slot_of(ctx, here, (lowest, extent, str(error(0))), error)
        size = np.int64(given.size)
        checked_kernel(given.dtype)(
            -(-given.size // THREADS),
            (given, safe, np.int64(lowest), np.int64(extent), size, slot.number, note_of(here).array),
        )
    return safe
