"""The memory of a net as text: totals by kind, the peak of the arena, and the largest values."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.proto.errors import bytes_text
from netbuilder.runtime.profile.memory import KINDS
from netbuilder.runtime.profile.table import again_text, text_table
from netbuilder.tools.profiling.net_memory import NetMemory

__all__ = ["memory_table"]


def memory_table(found: NetMemory, top: int = 20, *, width: int | None = None) -> str:
    """Return the memory of a net as tables for a terminal.

    Args:
        found: the memory.
        top: how many values to list, the largest first.
        width: cut off lines after so many characters; None: do not.
    """
    parts = [_summary(found), _totals(found), _in_arena(found, top), _outside(found, top)]
    text = "\n\n".join(part for part in parts if part)
    return text if width is None else "\n".join(line[:width] for line in text.splitlines())


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
    if memory.predicted_again:
        lines.append(f"computed again: {again_text(memory.predicted_again)}")
    if not memory.whole:
        lines.append("the operators that follow one whose output shapes depend on data are not included")
    return "\n".join(lines)


def _totals(found: NetMemory) -> str:
    rows: list[Sequence[str]] = [(bytes_text(found.memory.arena), "arena", "values that share memory, and scratch")]
    rows += [(bytes_text(getattr(found.memory, kind)), kind, text) for kind, text in KINDS.items()]
    return text_table("by kind", ("bytes", "kind", "what"), _right(rows))


def _in_arena(found: NetMemory, top: int) -> str:
    values = sorted(
        (value for arena in found.maps for value in arena.values), key=lambda value: (-value.nbytes, value.start)
    )
    rows = [
        (bytes_text(value.nbytes), f"{value.start} to {value.end}", value.kind, value.title, value.made_by)
        for value in values[:top]
    ]
    title = f"in the arena, the {len(rows)} largest of {len(values)}"
    return text_table(title, ("bytes", "steps", "kind", "value", "first step"), _right(rows)) if rows else ""


def _outside(found: NetMemory, top: int) -> str:
    rows = [(bytes_text(held.nbytes), held.kind, held.name) for held in found.held[:top]]
    title = f"outside the arena, the {len(rows)} largest of {len(found.held)}"
    return text_table(title, ("bytes", "kind", "value"), _right(rows)) if rows else ""


def _right(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return rows whose first column is aligned to the right."""
    width = max((len(row[0]) for row in rows), default=0)
    return [(row[0].rjust(width), *row[1:]) for row in rows]
