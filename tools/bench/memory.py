"""How much memory a training step or a prediction takes above start-up, on both sides, and how long it takes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.bench.processes import our_worker, torch_worker
from netbuilder.tools.bench.report import Line
from netbuilder.tools.bench.work import Work

__all__ = ["DEFAULT", "PEERS", "Ours", "Point", "Side", "Taken", "depths_and_batches", "memory_lines", "sides_of"]

PEERS = ("compile", "eager", "checkpoint")
"""How PyTorch runs, see ``Work.mode``; ratios are to the first of those measured."""

DEFAULT = "default"
"""In place of a kind of observable values: as the net says."""

_HEAD = (
    f"{'what':<34} {'side':<34} {'peak MiB':>9} {'ratio':>6} {'ms a step':>10} {'ratio':>6} {'planned':>9} "
    f"{'expected':>9} {'start':>7}"
)


@dataclass(frozen=True)
class Ours:
    """How our side runs; each is measured by itself.

    Args:
        observable: which values can be fetched: ``DEFAULT``, or what ``Workspace.create_net`` takes.
        budgets: values of ``memory_budget``.
    """

    observable: Sequence[str] = (DEFAULT, "outputs")
    budgets: Sequence[float | str] = ()


@dataclass(frozen=True)
class Side:
    """One of the processes that are measured: its name, its work, and whether PyTorch does it."""

    name: str
    work: Work
    is_peer: bool


@dataclass(frozen=True)
class Point:
    """What several sides do."""

    name: str
    sides: Sequence[Side]


@dataclass(frozen=True)
class Taken:
    """What one process took.

    Args:
        name: of the side, with its version.
        start: resident memory after the imports, in bytes.
        peak: peak resident memory, in bytes, above ``start``.
        seconds: of each step.
        planned: bytes that were planned before the first step; None: the side does not plan.
        expected: the peak, above ``start``, that the process expected before the first step; None: it did not say.
        error: why there are no figures; "" if there are.
    """

    name: str
    start: int = 0
    peak: int = 0
    seconds: Sequence[float] = ()
    planned: int | None = None
    expected: int | None = None
    error: str = ""


def sides_of(work: Work, ours: Ours, peers: Sequence[str]) -> list[Side]:
    """Return the sides for some work, the one that ratios refer to first."""
    found = [
        Side(f"torch {mode}", dataclasses.replace(work, mode=mode), True)
        for mode in PEERS
        if mode in peers and not (work.test and mode == "checkpoint")
    ]
    for kind in ours.observable:
        chosen = "" if kind == DEFAULT else kind
        found.append(Side(f"observable {kind}", dataclasses.replace(work, observable=chosen), False))
    if not work.test:
        found += [Side(f"budget {budget}", dataclasses.replace(work, budget=budget), False) for budget in ours.budgets]
    return found


def depths_and_batches(
    work: Work, ours: Ours, peers: Sequence[str], *, batches: Sequence[int], depths: Sequence[int]
) -> Iterator[Point]:
    """Yield points of a net for several batches, and of residual nets of several depths."""
    for batch in batches:
        changed = dataclasses.replace(work, batch=batch)
        yield Point(f"{work.net}, {work.dtype}, batch {batch}", sides_of(changed, ours, peers))
    for depth in depths:
        changed = dataclasses.replace(work, net=f"resnet{depth}")
        yield Point(f"resnet{depth}, {work.dtype}, batch {work.batch}", sides_of(changed, ours, peers))


def memory_lines(points: Iterable[Point], python: str, *, warmup: int, steps: int) -> Iterator[Line]:
    """Measure each side of each point in a fresh process, one after another; yield the rows of a table.

    A process that fails, for example because the machine has not enough memory, is a row with the reason.

    Args:
        points: what is measured.
        python: an interpreter that has PyTorch.
        warmup: steps that are not timed; their memory counts.
        steps: timed steps.

    Raises:
        DeviceError: ``torch.compile`` needs a C++ compiler, and there is none.
    """
    head = f"peak resident memory above start-up; of several sides the ratio is to the first\n{_HEAD}\n"
    for point in points:
        reference: Taken | None = None
        for side in point.sides:
            taken = _measured(side, python, warmup=warmup, steps=steps)
            if reference is None and not taken.error:
                reference = taken
            yield _line(point, side, taken, reference, head)
            head = ""


def _measured(side: Side, python: str, *, warmup: int, steps: int) -> Taken:
    try:
        with (
            torch_worker(side.work, python, warmup=warmup)
            if side.is_peer
            else our_worker(side.work, warmup=warmup) as worker
        ):
            seconds = worker.run(steps)
            info, peak = worker.info, worker.peak
    except (RuntimeError, OSError) as error:
        lines = str(error).strip().splitlines()
        return Taken(side.name, error=lines[-1] if lines else type(error).__name__)
    name = f"torch {info['version']} {side.work.mode}" if side.is_peer else f"netbuilder, {side.name}"
    start, expected = info["start"], info.get("expected")
    return Taken(
        name, start, max(peak - start, 0), seconds, info.get("planned"), expected - start if expected else None
    )


def _line(point: Point, side: Side, taken: Taken, reference: Taken | None, head: str) -> Line:
    record: dict[str, Any] = {
        "kind": "memory",
        "point": point.name,
        "side": taken.name,
        "work": dataclasses.asdict(side.work),
    }
    if taken.error or reference is None:
        text = f"{head}{point.name:<34} {taken.name:<34} failed: {taken.error}"
        return Line(text, {**record, "error": taken.error}, False)
    step, whole = statistics.median(taken.seconds), statistics.median(reference.seconds)
    ratios = taken.peak / max(reference.peak, 1), step / max(whole, 1e-12)
    planned, expected = (
        "" if nbytes is None else f"{nbytes / 2**20:.0f}" for nbytes in (taken.planned, taken.expected)
    )
    text = (
        f"{head}{point.name:<34} {taken.name:<34} {taken.peak / 2**20:>9.0f} {ratios[0]:>6.2f} {1e3 * step:>10.1f} "
        f"{ratios[1]:>6.2f} {planned:>9} {expected:>9} {taken.start / 2**20:>7.0f}"
    )
    found = {
        "start": taken.start,
        "peak": taken.peak,
        "planned": taken.planned,
        "expected": taken.expected,
        "seconds": list(taken.seconds),
        "reference": reference.name,
        "ratio": ratios[0],
        "time_ratio": ratios[1],
    }
    return Line(text.rstrip(), {**record, **found})
