"""The benchmark of GPUs: training steps against PyTorch, in one table, and a page for a report."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from netbuilder.ops.engines.arrays import gpu_count
from netbuilder.ops.engines.gpu_info import describe_gpus, missing_for_gpus
from netbuilder.proto import DeviceError
from netbuilder.tools.bench.pairs import Worker
from netbuilder.tools.bench.report import Line
from netbuilder.tools.bench.work import TASKS, Work

__all__ = ["PEER_MODES", "GpuRow", "GpuRun", "gpu_lines", "gpu_page", "gpu_rows", "require_gpu"]

PEER_MODES = ("eager", "compile", "graphs")
"""How PyTorch runs, see ``Work.mode``; ratios are to the fastest."""

_TURNS = 3
_LIMIT = 570.0  # seconds, so that all ends within ten minutes
_KINDS = 12  # of operators, in the table of shares
_MIB, _MS = 2**20, 1e-3

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
        limit: seconds after which no further worker is started.
        began: by ``time.monotonic``.
    """

    ours: Start
    peer: Start
    modes: Sequence[str] = PEER_MODES
    tiny: bool = False
    turns: int = _TURNS
    limit: float = _LIMIT
    began: float = field(default_factory=time.monotonic)

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.began > self.limit


def require_gpu() -> None:
    """Raise DeviceError, with what is missing, if no GPU can be used."""
    if not gpu_count():
        raise DeviceError(f"gpu: this benchmark needs a GPU; missing: {'; '.join(missing_for_gpus())}")


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
    """Measure all rows, the copy of input, the shares of the limit, and two GPUs if there are as many.

    Raises:
        DeviceError: there is no GPU.
    """
    require_gpu()
    yield Line("\n".join(describe_gpus()), {"kind": "gpu machine", "machine": describe_gpus()})
    rows = gpu_rows(tiny=run.tiny, batch=batch)
    for row in rows:
        try:
            ours, *more = _ours(row, run, details=row is rows[0])
        except RuntimeError as error:
            yield Line(f"{row.name}: FAILED: {error}", {"kind": "gpu failed", "name": row.name}, good=False)
            continue
        yield _compared(row, ours, [_peer(row, mode, run) for mode in run.modes])
        yield from more
    if gpu_count() > 1 and not run.is_late:
        yield _on_two(rows[0], run)


def _ours(row: GpuRow, run: GpuRun, *, details: bool) -> list[Any]:
    """Return the measurement of our side, and with ``details`` the lines of input and of shares."""
    with run.ours(row.work, _warmup(run)) as worker:
        taken, lines = _taken(worker, row.steps, run), list[Line]()
        if details:
            fed = worker.ask(steps=row.steps, way="fed")["seconds"][0]
            kinds = worker.ask(steps=1, way="shares")["kinds"]
            lines = [_input_line(row, taken["seconds"], fed), _shares_line(row, kinds)]
        return [taken, *lines]


def _warmup(run: GpuRun) -> int:
    return 1 if run.tiny else 10


def _taken(worker: Worker, steps: int, run: GpuRun) -> dict[str, Any]:
    times = [worker.run(steps)[0] for _ in range(run.turns)]
    return {"seconds": statistics.median(times), "times": times, "peak": worker.peak, "loss": worker.loss,
            "version": worker.info.get("version", "")}  # fmt: skip


def _peer(row: GpuRow, mode: str, run: GpuRun) -> dict[str, Any]:
    """Return the measurement of PyTorch in one mode; or why there is none."""
    if run.is_late:
        return {"mode": mode, "why": f"not run: {run.limit:.0f} s are over"}
    try:
        with run.peer(dataclasses.replace(row.work, mode=mode), _warmup(run)) as worker:
            return {"mode": mode, **_taken(worker, row.steps, run)}
    except (RuntimeError, DeviceError) as error:
        return {"mode": mode, "why": f"failed: {str(error).strip().splitlines()[-1][:200]}"}


def _compared(row: GpuRow, ours: dict[str, Any], peers: Sequence[dict[str, Any]]) -> Line:
    ran = [peer for peer in peers if "seconds" in peer]
    text = [f"{row.name}, batch {row.work.batch}: {_one('netbuilder', ours, row.work)}"]
    for peer in peers:
        name = f"torch {peer.get('version', '')} {peer['mode']}".replace("  ", " ")
        text.append(f"{name}: {peer['why']}" if "why" in peer else _one(name, peer, row.work))
    record: dict[str, Any] = {"kind": "gpu", "name": row.name, "work": dataclasses.asdict(row.work), "ours": ours}
    record["peers"] = list(peers)
    if ran:
        best = min(ran, key=lambda peer: float(peer["seconds"]))
        record["ratio"] = best["seconds"] / ours["seconds"]
        record["memory_ratio"] = ours["peak"] / best["peak"] if best["peak"] else None
        text.append(f"{record['ratio']:.2f} x as fast as torch {best['mode']}")
        if record["memory_ratio"]:
            text.append(f"{record['memory_ratio']:.2f} of its memory")
    return Line("; ".join(text), record)


def _one(name: str, taken: dict[str, Any], work: Work) -> str:
    samples = work.batch / taken["seconds"]
    return f"{name} {taken['seconds'] / _MS:.3f} ms ({samples:,.0f} samples/s, {taken['peak'] / _MIB:,.0f} MiB)"


def _input_line(row: GpuRow, seconds: float, fed: float) -> Line:
    text = (
        f"{row.name}, each batch copied from the host: {fed / _MS:.3f} ms a step instead of {seconds / _MS:.3f} ms "
        f"({fed / seconds - 1:+.1%})"
    )
    return Line(text, {"kind": "gpu input", "name": row.name, "seconds": seconds, "fed": fed})


def _shares_line(row: GpuRow, kinds: Sequence[dict[str, Any]]) -> Line:
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
    return Line("\n".join(lines), {"kind": "gpu shares", "name": row.name, "kinds": list(kinds)})


def _on_two(row: GpuRow, run: GpuRun) -> Line:
    """Compare two GPUs with one, for the same batch on each."""
    two = dataclasses.replace(row.work, batch=2 * row.work.batch, devices=2)
    with run.ours(row.work, _warmup(run)) as worker:
        one = _taken(worker, row.steps, run)
    with run.ours(two, _warmup(run)) as worker:
        both = _taken(worker, row.steps, run)
    gain = 2 * one["seconds"] / both["seconds"]
    text = (
        f"{row.name}, 2 GPUs with batch {two.batch}: {_one('netbuilder', both, two)}, {gain:.2f} x the samples of one "
        f"GPU ({gain / 2:.0%})"
    )
    return Line(text, {"kind": "gpu two", "name": row.name, "one": one, "two": both, "gain": gain})


def gpu_page(records: Sequence[dict[str, Any]], date: str) -> str:
    """Return the results as a page in Markdown.

    Args:
        records: of the lines.
        date: when they were measured.
    """
    machine = next(record["machine"] for record in records if record["kind"] == "gpu machine")
    page = [f"# netbuilder on GPUs, {date}", "", *(f"- {line}" for line in machine), ""]
    page.append("| net | batch | side | ms a step | samples/s | MiB | torch / netbuilder |")
    page.append("|---|---|---|---|---|---|---|")
    for record in records:
        if record["kind"] == "gpu":
            work, ours = Work(**record["work"]), record["ours"]
            page.append(_page_row(record["name"], work, "netbuilder", ours, ""))
            for peer in record["peers"]:
                ratio = f"{peer['seconds'] / ours['seconds']:.2f}" if "seconds" in peer else peer["why"]
                page.append(_page_row(record["name"], work, f"torch {peer['mode']}", peer, ratio))
        elif record["kind"] == "gpu two":
            page.append(f"| {record['name']}, 2 GPUs | | netbuilder | {record['two']['seconds'] / _MS:.3f} | | | "
                        f"{record['gain']:.2f} x one GPU |")  # fmt: skip
    for record in records:
        if record["kind"] == "gpu input":
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
    return "\n".join(page) + "\n"


def _page_row(name: str, work: Work, side: str, taken: dict[str, Any], ratio: str) -> str:
    if "seconds" not in taken:
        return f"| {name} | {work.batch} | {side} | | | | {ratio} |"
    seconds = taken["seconds"]
    return (
        f"| {name} | {work.batch} | {side} | {seconds / _MS:.3f} | {work.batch / seconds:,.0f} | "
        f"{taken['peak'] / _MIB:,.0f} | {ratio} |"
    )
