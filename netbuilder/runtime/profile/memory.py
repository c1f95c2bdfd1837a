"""The memory of a net's plans, and the peak memory of the process."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netbuilder.ops.core.operator import STRING
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.plan.binding import needs_temporary
from netbuilder.runtime.profile.timing import Recorder, TimedPlan

__all__ = ["Memory", "memory_of", "peak_resident"]


@dataclass(frozen=True)
class Memory:
    """Bytes, on the host and on GPUs together; memory that several values share counts once.

    Args:
        values: values that the net makes, including copies in other layouts, and the arena that they share.
        scratch: scratch memory of the lanes at most; it is in the arena, unless memory is not reused.
        outside: external values that the net reads: parameters and inputs.
        parameters: those of ``outside`` that the caller named as parameters.
        peak_resident: peak resident memory of the process since it started; 0 where the system does not report it.
    """

    values: int
    scratch: int
    outside: int
    parameters: int
    peak_resident: int


def memory_of(net: RuntimeNet, recorder: Recorder, parameters: Collection[str]) -> Memory:
    """Return the memory of the plans that have run; values that kernels publish count in ``peak_resident`` only."""
    chosen = set(parameters)
    values = [value for plan in recorder.plans for call in plan.calls if call.step is not None
              for value in (*call.step.inputs, *call.step.outputs) if value is not None]  # fmt: skip
    outside = {value.name: value.blob for value in values if value.blob is not None}
    made = [value.buffer for value in values if value.blob is None]
    blobs = {name: net.find_blob(name) for call in recorder.alone for name in call.instruction.outputs}
    made += [blob.buffer for blob in blobs.values() if blob is not None]
    made += [plan.plan.arena.memory(plan.plan.memory.nbytes) for plan in recorder.plans if plan.plan.memory.nbytes]
    before = [_extent(blob.buffer) for blob in outside.values()]
    whole = _union([*before, *map(_extent, made)])
    return Memory(
        values=whole - _union(before) + sum(map(_temporaries, recorder.plans)),
        scratch=sum(map(_scratch, recorder.plans)),
        outside=_union(before),
        parameters=_union(_extent(blob.buffer) for name, blob in outside.items() if name in chosen),
        peak_resident=peak_resident(),
    )


def peak_resident() -> int:
    """Return the peak resident memory of the process in bytes; 0 where the system does not report it."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _extent(buffer: Any) -> tuple[int, int]:
    """Return the addresses of a buffer's begin and end; (0, 0) for anything but an array of numbers."""
    if getattr(buffer, "dtype", STRING) == STRING:
        return 0, 0
    start = buffer.ctypes.data if hasattr(buffer, "ctypes") else buffer.data.ptr
    return start, start + buffer.nbytes


def _union(extents: Iterable[tuple[int, int]]) -> int:
    """Return how many bytes the union of several extents covers."""
    total, reached = 0, 0
    for start, end in sorted(extents):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _scratch(plan: TimedPlan) -> int:
    most: dict[int, int] = {}
    for step in plan.plan.steps:
        most[step.lane] = max(most.get(step.lane, 0), step.prepared.scratch)
    return sum(most.values())


def _temporaries(plan: TimedPlan) -> int:
    """Return the bytes of temporaries for results that are then copied."""
    return sum(
        value.spec.nbytes
        for step in plan.plan.steps
        for j, value in enumerate(step.outputs)
        if value is not None and value.spec is not None and needs_temporary(step, j)
    )
