"""The benchmark of GPUs: training steps against PyTorch, in one table, and a page for a report."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

import netbuilder
from netbuilder.engines.arrays import gpu_count
from netbuilder.engines.engine import find_engine
from netbuilder.engines.gpu_info import describe_gpus, missing_for_gpus
from netbuilder.proto import DeviceError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.bench.machine import describe_machine
from netbuilder.tools.bench.pairs import TimeLimits, Worker
from netbuilder.tools.bench.report import Line
from netbuilder.tools.bench.work import TASKS, Work

__all__ = [
    "LIMIT",
    "PEER_MODES",
    "GpuRow",
    "GpuRun",
    "gpu_lines",
    "gpu_page",
    "gpu_rows",
    "gpu_table",
    "require_gpu",
]

PEER_MODES = ("eager", "compile", "graphs")
"""How PyTorch runs, see ``Work.mode``."""

LIMIT = 600
"""Seconds after which everything has ended, if nothing else is said."""

_TURNS = 3
_START, _ANSWER = 180.0, 90.0  # seconds that a worker may take, see ``TimeLimits``
_WIDEST = 30  # characters of a cell to which others are padded; reasons of failures may be longer
_KINDS = 12  # of operators, in the table of shares
_MIB, _MS = 2**20, 1e-3
_COLUMNS = ("net", "batch", "side", "ms a step", "samples/s", "MiB", "time / netbuilder's", "memory / netbuilder's")
_PLANS = (
    "PyTorch measures cuDNN's plans for convolutions (torch.backends.cudnn.benchmark). netbuilder takes those that the "
    "library's heuristics prefer, except where the side says that plans are measured (exhaustive_search)."
)

Start = Callable[[Work, int], Worker]
"""Starts a worker: is given its work, and the number of steps for warming up."""


@dataclass(frozen=True)
class GpuRow:
    """A training step that is compared with PyTorch.

    Args:
        name: for people.
        work: what is trained.
        steps: per turn.
    """

    name: str
    work: Work
    steps: int


@dataclass(frozen=True)
class GpuRun:
    """How the benchmark runs.

    Args:
        ours: starts netbuilder's side.
        peer: starts PyTorch.
        modes: those of PyTorch.
        tiny: small nets, for tests.
        turns: how often each worker is timed.
        limit: seconds after which no further worker is started, and those that run are killed (``limits``).
        began: by ``time.monotonic``.
        prepare_peer: called before PyTorch is first started; where it raises an error, PyTorch is left out.
    """

    ours: Start
    peer: Start
    modes: Sequence[str] = PEER_MODES
    tiny: bool = False
    turns: int = _TURNS
    limit: float = LIMIT
    began: float = field(default_factory=time.monotonic)
    prepare_peer: Callable[[], object] = lambda: None

    @property
    def left(self) -> float:
        """Seconds that are left; negative when the time is over."""
        return self.began + self.limit - time.monotonic()

    @property
    def is_late(self) -> bool:
        return self.left < 0

    @property
    def limits(self) -> TimeLimits:
        """Those of each worker."""
        return TimeLimits(_START, _ANSWER, self.began + self.limit)


def require_gpu() -> None:
    """Raise DeviceError, with what is missing, if no GPU can be used."""
    if not gpu_count():
        missing = "; ".join(missing_for_gpus())
        raise DeviceError(f"gpu: this benchmark needs an NVIDIA GPU, and none can be used; missing: {missing}")


def gpu_rows(*, tiny: bool = False, batch: int | None = None) -> list[GpuRow]:
    """Return what is measured.

    Args:
        tiny: small nets, for tests.
        batch: of the residual net; None: 256.
    """
    if tiny:
        chosen = {name: TASKS[name].small for name in ("resnet18", "lstm", "mlp")}
        resnet, lstm, mlp = (dataclasses.replace(work, gpu=True) for work in chosen.values())
        resnet = dataclasses.replace(resnet, size=32, batch=2)
    else:
        resnet = Work("resnet50", batch or 256, gpu=True)
        lstm = Work("lstm", 64, size=1024, classes=10_000, decay=0.0, gpu=True)
        mlp = Work("mlp", 1024, size=1024, classes=1024, decay=0.0, gpu=True)
    return [
        GpuRow(f"{resnet.net}, bfloat16", dataclasses.replace(resnet, dtype="bfloat16"), 2 if tiny else 20),
        GpuRow(f"{resnet.net}, TF32", dataclasses.replace(resnet, tf32=True), 2 if tiny else 10),
        GpuRow("lstm, TF32", dataclasses.replace(lstm, tf32=True), 2 if tiny else 20),
        GpuRow("mlp, TF32", dataclasses.replace(mlp, tf32=True), 2 if tiny else 500),
    ]


def gpu_lines(run: GpuRun, batch: int | None = None) -> Iterator[Line]:
    """Measure: first netbuilder in all rows, then PyTorch, the most important row first.

    The first row also has the copy of input, two GPUs if there are as many, and at the end plans that are measured.
    What fails, takes too long, or comes too late is a line, and the rest goes on.

    Raises:
        DeviceError: there is no GPU.
    """
    require_gpu()
    machine = [*describe_gpus(), f"netbuilder {netbuilder.__version__} on {describe_machine()}"]
    yield Line("\n".join(machine), {"kind": "gpu machine", "machine": machine})
    rows = gpu_rows(tiny=run.tiny, batch=batch)
    ours: dict[str, dict[str, Any]] = {}
    for row in rows:
        for line in _attempted(row.name, "netbuilder", run, _ours(row, run, details=row is rows[0])):
            if line.record["kind"] == "gpu":
                ours[row.name] = line.record["ours"]
            yield line
    modes = run.modes
    if modes and (note := _without_peer(run)) is not None:
        yield note
        modes = ()
    for row in rows:
        if row.name in ours:
            yield from (_peer(row, mode, ours[row.name], run) for mode in modes)
        if row is rows[0] and gpu_count() > 1:
            yield from _attempted(row.name, "2 GPUs", run, _on_two(row, ours.get(row.name), run))
    first = rows[0]
    if first.name in ours and first.work.layers and find_engine("CUDNN").available():  # it has convolutions
        plans = _measured_plans(first, ours[first.name], run)
        yield from _attempted(first.name, "netbuilder, plans measured", run, plans, may_be_late=True)


def _attempted(
    name: str, side: str, run: GpuRun, lines: Iterator[Line], *, may_be_late: bool = False
) -> Iterator[Line]:
    """Yield lines; if they cannot be had, one that says why.

    Args:
        name, side: what is measured.
        run: how the benchmark runs.
        lines: the results.
        may_be_late: whether it is acceptable that there was no time for them.
    """
    record = {"kind": "gpu failed", "name": name, "side": side}
    if run.is_late:
        why = _late("not run", run)
        yield Line(f"{name}, {side}: {why}", {**record, "why": why}, good=may_be_late)
        return
    try:
        yield from lines
    except Exception as error:  # whatever it is, it must not cost the other results
        text, reason = _reasons(error, run)
        yield Line(f"{name}, {side}: {text}", {**record, **reason}, good=may_be_late and run.is_late)


def _late(what: str, run: GpuRun) -> str:
    return f"{what}: {run.limit:.0f} s are over"


def _reasons(error: Exception, run: GpuRun) -> tuple[str, dict[str, str]]:
    """Return text about an error, and for the record one line and, if there is more, all of it: a worker's output."""
    first, *more = str(error).strip().splitlines() or [type(error).__name__]
    if run.is_late:
        why = _late("not finished", run)
    else:
        why = f"FAILED: {first[:200]}{f' ... {more[-1].strip()[:200]}' if more else ''}"
    return (f"{why}\n{error}", {"why": why, "error": str(error)}) if more else (why, {"why": why})


def _ours(row: GpuRow, run: GpuRun, *, details: bool) -> Iterator[Line]:
    """Measure our side, its shares of the limit, and with ``details`` the copy of input."""
    with run.ours(row.work, _warmup(run)) as worker:
        taken = _taken(worker, row.steps, run)
        record = {"kind": "gpu", "name": row.name, "work": dataclasses.asdict(row.work), "ours": taken}
        text = f"{row.name}, batch {row.work.batch}: {_one('netbuilder', taken, row.work)}"
        yield Line(text, record, math.isfinite(taken["loss"]))
        yield from _attempted(row.name, "shares of the limit", run, _shares(row, worker))
        if details:
            yield from _attempted(row.name, "copy of input", run, _input(row, worker, taken["seconds"]))


def _warmup(run: GpuRun) -> int:
    return 1 if run.tiny else 10


def _taken(worker: Worker, steps: int, run: GpuRun) -> dict[str, Any]:
    times = [worker.run(steps)[0] for _ in range(run.turns)]
    loss = math.nan if worker.loss is None else worker.loss
    return {"seconds": statistics.median(times), "times": times, "peak": worker.peak, "loss": loss, **worker.info}


def _without_peer(run: GpuRun) -> Line | None:
    """Find or install PyTorch; return why there is none."""
    if run.is_late:
        return None  # each line says so
    try:
        run.prepare_peer()
    except Exception as error:
        text = f"PyTorch is not compared: {str(error).strip() or type(error).__name__}"
        return Line(text, {"kind": "gpu note", "text": text})
    return None


def _peer(row: GpuRow, mode: str, ours: dict[str, Any], run: GpuRun) -> Line:
    """Measure PyTorch in one mode; or say why there is no result."""
    work = dataclasses.replace(row.work, mode=mode)
    record: dict[str, Any] = {"kind": "gpu peer", "name": row.name, "work": dataclasses.asdict(work), "mode": mode}
    name = f"{row.name}: torch {mode}"
    if run.is_late:
        why = _late("not run", run)
        return Line(f"{name}: {why}", {**record, "why": why})
    try:
        with run.peer(work, _warmup(run)) as worker:
            taken = _taken(worker, row.steps, run)
    except Exception as error:
        text, reason = _reasons(error, run)
        return Line(f"{name}: {text}", {**record, **reason}, good=run.is_late)
    record |= taken | _ratios(taken, ours)
    text = f"{row.name}: {_one(_torch(record), taken, work)}; netbuilder is {record['ratio']:.2f} x as fast"
    if record["memory_ratio"]:
        text += f", using {1 / record['memory_ratio']:.2f} x its memory"
    return Line(text, record, math.isfinite(taken["loss"]))


def _ratios(taken: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return how many times as much time and memory a side takes as netbuilder."""
    memory = taken["peak"] / ours["peak"] if taken["peak"] and ours["peak"] else None
    return {"ratio": taken["seconds"] / ours["seconds"], "memory_ratio": memory}


def _torch(record: dict[str, Any]) -> str:
    return " ".join(filter(None, ["torch", record.get("version", ""), record["mode"]]))


def _one(name: str, taken: dict[str, Any], work: Work) -> str:
    samples = work.batch / taken["seconds"]
    text = f"{name} {taken['seconds'] / _MS:.3f} ms ({samples:,.0f} samples/s, {taken['peak'] / _MIB:,.0f} MiB)"
    return text if math.isfinite(taken["loss"]) else f"{text}; DOUBTFUL: its loss is not finite"


def _input(row: GpuRow, worker: Worker, seconds: float) -> Iterator[Line]:
    fed = worker.ask(steps=row.steps, way="fed")["seconds"][0]
    text = (
        f"{row.name}, each batch copied from the host: {fed / _MS:.3f} ms a step instead of {seconds / _MS:.3f} ms "
        f"({fed / seconds - 1:+.1%})"
    )
    yield Line(text, {"kind": "gpu input", "name": row.name, "seconds": seconds, "fed": fed})


def _shares(row: GpuRow, worker: Worker) -> Iterator[Line]:
    kinds = worker.ask(steps=1, way="shares")["kinds"]
    whole, *each = kinds
    lines = [
        f"{row.name}, least possible time of a step by matrix rate and bandwidth: {whole['limit'] / _MS:.3f} ms, "
        f"{whole['limit'] / whole['seconds']:.0%} of the time of a step; by operators, each timed alone:"
    ]
    lines += [
        f"  {kind['kind']:<28} {kind['calls']:>7.0f} calls {kind['seconds'] / _MS:>10.3f} ms "
        f"{kind['limit'] / kind['seconds'] if kind['seconds'] else 0:>5.0%} of the limit"
        for kind in each[:_KINDS]
    ]
    yield Line("\n".join(lines), {"kind": "gpu shares", "name": row.name, "kinds": list(kinds)})


def _measured_plans(row: GpuRow, ours: dict[str, Any], run: GpuRun) -> Iterator[Line]:
    """Measure our side with the fastest plans of cuDNN. Those that are known are kept, should there be no more time."""
    with run.ours(dataclasses.replace(row.work, exhaustive=True), _warmup(run)) as worker:
        taken = _taken(worker, row.steps, run)
    text = f"{row.name}: {_one('netbuilder, plans measured,', taken, row.work)}"
    record = {"kind": "gpu measured plans", "name": row.name, "work": dataclasses.asdict(row.work)}
    yield Line(text, {**record, **taken, **_ratios(taken, ours)}, math.isfinite(taken["loss"]))


def _on_two(row: GpuRow, one: dict[str, Any] | None, run: GpuRun) -> Iterator[Line]:
    """Compare two GPUs with one, for the same batch on each."""
    two = dataclasses.replace(row.work, batch=2 * row.work.batch, devices=2)
    if one is None:
        with run.ours(row.work, _warmup(run)) as worker:
            one = _taken(worker, row.steps, run)
    with run.ours(two, _warmup(run)) as worker:
        both = _taken(worker, row.steps, run)
    gain = 2 * one["seconds"] / both["seconds"]
    text = (
        f"{row.name}, 2 GPUs with batch {two.batch}: {_one('netbuilder', both, two)}, {gain:.2f} x the samples of one "
        f"GPU ({gain / 2:.0%})"
    )
    record = {"kind": "gpu two", "name": row.name, "work": dataclasses.asdict(two)}
    yield Line(text, {**record, "one": one, "two": both, "gain": gain}, math.isfinite(both["loss"]))


def gpu_page(records: Sequence[dict[str, Any]], date: str) -> str:
    """Return the results as a page in Markdown.

    Args:
        records: of the lines, all or those so far.
        date: when they were measured.
    """
    machine = [line for record in records if record["kind"] == "gpu machine" for line in record["machine"]]
    libraries = {f"PyTorch {record['version']}: {record['libraries']}": None
                 for record in records if record["kind"] == "gpu peer" and record.get("libraries")}  # fmt: skip
    page = [f"# netbuilder on GPUs, {date}", "", *(f"- {line}" for line in [*machine, *libraries]), ""]
    page += [gpu_table(records), "", _PLANS]
    for record in records:
        if record["kind"] == "gpu note":
            page += ["", record["text"]]
        elif record["kind"] == "gpu input":
            page += ["", f"{record['name']}: {record['fed'] / _MS:.3f} ms a step with each batch copied from the host, "
                     f"{record['seconds'] / _MS:.3f} ms without."]  # fmt: skip
        elif record["kind"] == "gpu shares":
            page += ["", f"Operators of {record['name']}, each timed alone:", ""]
            page += ["| kind | calls | ms | of the limit |", "|---|---|---|---|"]
            page += [
                f"| {kind['kind']} | {kind['calls']:.0f} | {kind['seconds'] / _MS:.3f} | "
                f"{kind['limit'] / kind['seconds'] if kind['seconds'] else 0:.0%} |"
                for kind in record["kinds"]
            ]
    for record in records:
        if error := record.get("error"):
            side = record.get("side") or _torch(record)
            page += ["", f"{record['name']}, {side}:", "", *(f"    {line}" for line in error.splitlines())]
    return "\n".join(page) + "\n"


def gpu_table(records: Sequence[dict[str, Any]]) -> str:
    """Return the table of the page, readable as it is: times, memory, and what has none and why."""
    names = list(dict.fromkeys(record["name"] for record in records if "name" in record))
    rows = [row for name in names for record in records if record.get("name") == name for row in _table_rows(record)]
    cells = [_COLUMNS, *rows]
    widths = [max(len(row[i]) for row in cells if len(row[i]) <= _WIDEST) for i in range(len(_COLUMNS))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _table_rows(record: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    name, kind = record["name"], record["kind"]
    if kind == "gpu":
        yield _cells(name, Work(**record["work"]), "netbuilder", record["ours"])
    elif kind == "gpu two":
        text = f"{record['gain']:.2f} x one GPU"
        yield (*_cells(name, Work(**record["work"]), "netbuilder, 2 GPUs", record["two"])[:-2], text, "")
    elif kind == "gpu measured plans":
        yield _cells(name, Work(**record["work"]), "netbuilder, plans measured", record)
    elif kind == "gpu peer":
        yield _cells(name, Work(**record["work"]), _torch(record), record)
    elif kind == "gpu failed":
        yield (name, "", record["side"], *_reason(record))


def _cells(name: str, work: Work, side: str, taken: dict[str, Any]) -> tuple[str, ...]:
    if "seconds" not in taken:
        return (name, str(work.batch), side, *_reason(taken))
    seconds, peak = taken["seconds"], f"{taken['peak'] / _MIB:,.0f}"
    ratios = [f"{taken[key]:.2f}" if taken.get(key) else "" for key in ("ratio", "memory_ratio")]
    if not math.isfinite(taken["loss"]):
        ratios[0] += " (DOUBTFUL: its loss is not finite)"
    return (name, str(work.batch), side, f"{seconds / _MS:.3f}", f"{work.batch / seconds:,.0f}", peak, *ratios)


def _reason(record: dict[str, Any]) -> tuple[str, ...]:
    return ("", "", "", record["why"].replace("|", "\\|"), "")
