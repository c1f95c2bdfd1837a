"""The memory of a net as text: totals by kind, the peak of the arena, and the largest values."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.proto.errors import bytes_text
from netbuilder.runtime.profile.memory import KINDS
from netbuilder.runtime.profile.table import again_text
from netbuilder.runtime.profile.text_table import Report, TextTable
from netbuilder.tools.profiling.net_memory import NetMemory

__all__ = ["memory_report"]


def memory_report(found: NetMemory, top: int = 20) -> Report:
    """Return the memory of a net as tables, after a summary.

    Args:
        found: the memory.
        top: how many values to list, the largest first.
    """
    tables = (_totals(found), _in_arena(found, top), _outside(found, top))
    return [_summary(found), *(table for table in tables if table is not None)]


def _summary(found: NetMemory) -> str:
    memory, several = found.memory, any(arena.plan > 1 for arena in found.maps)
    lines = [f"net {found.net!r}: {bytes_text(memory.total)} planned"]
    if memory.gpus:
        lines.append(", ".join(f"GPU {number}: {bytes_text(nbytes)}" for number, nbytes in memory.gpus.items()))
    for arena in found.maps:
        name = f"plan {arena.plan}: " if several else ""
        where = "" if arena.gpu is None else f" on GPU {arena.gpu}"
        lines.append(
            f"{name}arena{where} {bytes_text(arena.nbytes)} for {len(arena.values)} values and "
            f"{len(arena.steps)} steps; at most {bytes_text(arena.live)} are needed at the same time"
            + (f", in step {arena.peak} ({arena.steps[arena.peak]})" if arena.values else "")
        )
    if again := again_text(memory.predicted_again):
        lines.append(f"computed again: {again}")
    if not memory.whole:
        lines.append("the operators that follow one whose output shapes depend on data are not included")
    return "\n".join(lines)


def _totals(found: NetMemory) -> TextTable:
    rows: list[Sequence[str]] = [(bytes_text(found.memory.arena), "arena", "values that share memory, and scratch")]
    rows += [(bytes_text(getattr(found.memory, kind)), kind, text) for kind, text in KINDS.items()]
    return TextTable("by kind", ("bytes", "kind", "what"), rows)


def _in_arena(found: NetMemory, top: int) -> TextTable | None:
    values = sorted(
        (value for arena in found.maps for value in arena.values), key=lambda value: (-value.nbytes, value.start)
    )
    rows = [
        (bytes_text(value.nbytes), f"{value.start} to {value.end}", value.kind, value.title, value.made_by)
        for value in values[:top]
    ]
    title = f"in the arena, the {len(rows)} largest of {len(values)}"
    return TextTable(title, ("bytes", "steps", "kind", "value", "first step"), rows) if rows else None


def _outside(found: NetMemory, top: int) -> TextTable | None:
    rows = [(bytes_text(held.nbytes), held.kind, held.name) for held in found.held[:top]]
    title = f"outside the arena, the {len(rows)} largest of {len(found.held)}"
    return TextTable(title, ("bytes", "kind", "value"), rows) if rows else None
