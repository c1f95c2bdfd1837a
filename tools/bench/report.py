"""Results of benchmarks: for each measurement a line of text, and a record for JSON."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.profile.text_table import TextTable
from netbuilder.tools.bench.pairs import Comparison
from netbuilder.tools.bench.work import Task, Work
from netbuilder.tools.results import write_json

__all__ = ["SAME", "Line", "as_which", "compared", "of_all", "pairs_table", "with_equality", "write_records"]

SAME = 1e-4
"""Largest relative difference of losses that counts as rounding."""


@dataclass(frozen=True)
class Line:
    """One measurement.

    Args:
        text: for people.
        record: for programs; times in seconds.
        good: whether the result is acceptable; otherwise the program's exit status is not 0.
    """

    text: str
    record: dict[str, Any]
    good: bool = True


def compared(task: Task, names: Sequence[str], result: Comparison, losses: Sequence[float | None]) -> Line:
    """Return the line for sides that ran alternately.

    Args:
        task: with the batch and threads that were used.
        names: of the sides, netbuilder first.
        losses: last loss of each side; if one is not finite, the result is marked as doubtful.
    """
    unit, factor = task.unit
    work, (low, high) = task.work, result.spread
    sides = [result.ours, *result.peers]
    each = ", ".join(f"{name} {factor * statistics.median(seconds):.1f} {unit}" for name, seconds in zip(names, sides))
    text = (
        f"{work.net}, {_type(work)}batch {work.batch}, {_threads(work.threads)}, {len(result.ours)} pairs: {each}; "
        f"{result.ratio:.2f} x as fast{as_which(result, names[1:])} (pairs {low:.2f} to {high:.2f}), "
        f"{1 / result.ratio:.2f} of its time"
    )
    diverged = [name for name, loss in zip(names, losses) if loss is not None and not math.isfinite(loss)]
    if diverged:
        text += f"; DOUBTFUL: the loss of {' and '.join(diverged)} is not finite"
    record = {
        "kind": "pairs",
        "work": dataclasses.asdict(work),
        "sides": list(names),
        "seconds": [list(seconds) for seconds in sides],
        "peer": names[1 + result.best],
        "ratio": result.ratio,
        "spread": [low, high],
        "losses": list(losses),
    }
    return Line(text, record, not diverged)


def with_equality(line: Line, firsts: Sequence[float], taken: Sequence[int]) -> Line:
    """Return the line of sides that began with equal parameters, with what else they are compared by.

    Args:
        firsts: losses of the sides' first steps, netbuilder's first; the result counts only if they are equal up to
            rounding.
        taken: peak resident memory of each side's steps above start-up, in bytes.
    """
    apart = float(np.max([abs(loss / firsts[0] - 1) for loss in firsts[1:]]))
    ratio = taken[0] / max(min(taken[1:]), 1)
    text = (
        f"{line.text}; memory {', '.join(f'{nbytes / 2**20:.0f}' for nbytes in taken)} MiB: {ratio:.2f} of the least "
        f"peer's; first losses {apart:.0e} apart"
    )
    same = apart <= SAME
    if not same:
        text += f": NOT the same work: more than {SAME:.0e} is no rounding"
    record = {**line.record, "firsts": list(firsts), "apart": apart, "memory": list(taken), "memory_ratio": ratio}
    return Line(text, record, line.good and same)


def of_all(ratios: Mapping[str, float], memory: Mapping[str, float]) -> Line:
    """Return the line about several nets.

    Args:
        ratios: net -> how many times as fast as the fastest peer.
        memory: net -> memory divided by the least of a peer.
    """
    least, most = min(ratios, key=ratios.__getitem__), max(memory, key=memory.__getitem__)
    text = (
        f"{counted(len(ratios), 'net')}: median {statistics.median(ratios.values()):.2f} x as fast, least "
        f"{ratios[least]:.2f} ({least}); memory at the median {statistics.median(memory.values()):.2f} of the peer's, "
        f"at most {memory[most]:.2f} ({most})"
    )
    return Line(text, {"kind": "train-models", "ratios": dict(ratios), "memory": dict(memory)})


def pairs_table(lines: Sequence[Line]) -> TextTable:
    """Return a table of the results of sides that ran alternately."""
    rows = []
    for record in (line.record for line in lines if line.record.get("kind") == "pairs"):
        work = record["work"]
        ours, *peers = (statistics.median(seconds) for seconds in record["seconds"])
        low, high = record["spread"]
        times = (f"{1e3 * seconds:.1f}" for seconds in (ours, peers[record["sides"][1:].index(record["peer"])]))
        rows.append((
            work["net"], work["dtype"], str(work["batch"]), str(work["threads"]), *times, record["peer"],
            f"{record['ratio']:.2f}", f"{low:.2f} to {high:.2f}",
        ))  # fmt: skip
    head = ("net", "type", "batch", "threads", "ms", "peer's ms", "fastest peer", "times as fast", "pairs")
    return TextTable("all pairs", head, rows)


def as_which(result: Comparison, peers: Sequence[str]) -> str:
    """Return " as " and the name of the peer that a ratio is to; "" if there is only one."""
    return f" as {peers[result.best]}" if len(peers) > 1 else ""


def _type(work: Work) -> str:
    return "" if work.dtype == "float32" else f"{work.dtype}, "


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count != 1 else ''}"


def write_records(file: str | Path, machine: str, busy: float, lines: Sequence[Line]) -> None:
    """Write all records, the machine, and the share of its cores that other work used before."""
    found = {"machine": machine, "busy": busy, "results": [line.record for line in lines]}
    write_json(str(file), found)
