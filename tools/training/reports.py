"""What a run prints, and writes to the files of its metrics."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from netbuilder.graph.replicas import Replicas
from netbuilder.proto.errors import bytes_text
from netbuilder.runtime.profile.memory import Memory
from netbuilder.runtime.profile.process_memory import peak_resident
from netbuilder.runtime.profile.table import again_text
from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.class_report import means_of
from netbuilder.tools.training.metrics import Metrics
from netbuilder.tools.training.rank_report import RankReport, rank_table
from netbuilder.tools.training.step_timing import phase_table

if TYPE_CHECKING:
    from netbuilder.tools.training.run import EpochResults, Evaluation, Run

__all__ = ["Printed", "Recorded"]

_AGAIN = "some values are computed a second time in each step, to save memory"


class Printed(Callback):
    """Prints the planned memory, and the results of each epoch.

    Args:
        start: resident memory of the process, in bytes, before the net was built.
    """

    name = "printed"

    def __init__(self, start: int) -> None:
        self._start = start
        self._first = True  # no epoch has been printed

    def after_plan(self, run: Run, memory: Memory) -> None:
        known = "" if memory.whole else ", without what follows operators whose output shapes depend on data"
        print(f"memory planned for a step: {memory}{known}", flush=True)
        if memory.whole and memory.expected_peak:
            print(
                f"memory of the process, expected after the first step: {bytes_text(memory.expected_peak)}", flush=True
            )
        if again := again_text(memory.predicted_again):
            print(f"{_AGAIN}: {again}", flush=True)

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        epoch, found = results.training, results.held_out
        print(
            f"epoch {results.number}/{run.options.epochs}: loss {epoch.loss:.4g}, "
            f"training accuracy {epoch.accuracy:.2%}, "
            f"held-out loss {found.loss:.4g}, held-out accuracy {found.top1:.2%}{_top5(found)}, "
            f"{epoch.rate:.0f} images/s, {epoch.wait:.1f} s waited for input",
            flush=True,
        )
        print(f"  {phase_table(epoch.shares, epoch.wait, epoch.seconds)}", flush=True)
        if (ranks := run.callbacks.get(RankReport)) and ranks.times:
            print(textwrap.indent(rank_table(ranks.times), "  "), flush=True)
        if self._first:
            self._print_memory(run, epoch.again)
            _print_buckets(run)
        self._first = False

    def after_average(self, run: Run, found: Evaluation) -> None:
        print(
            f"average of the last {run.options.swa:g} epochs: held-out loss {found.loss:.4g}, held-out accuracy "
            f"{found.top1:.2%}{_top5(found)}",
            flush=True,
        )

    def _print_memory(self, run: Run, again: float) -> None:
        if peak := peak_resident():
            print(f"memory of the process: at most {bytes_text(peak)}, of which {bytes_text(self._start)} before the "
                  "net was built", flush=True)  # fmt: skip
        planned = run.model.planned
        if again and (text := again_text(planned.predicted_again if planned is not None else 0.0, again)):
            print(f"{_AGAIN}: {text}", flush=True)


def _top5(found: Evaluation) -> str:
    return "" if found.top5 is None else f" (top-5 {found.top5:.2%})"


def _print_buckets(run: Run) -> None:
    """Print the size of the buckets of gradients, if it was chosen in the first steps."""
    record = Replicas.load(run.model.train.net.Proto())
    name = record.bucket_size if record.world.common else ""
    if name and (size := int(run.model.workspace.fetch(name)[0])):
        print(f"gradients are exchanged in buckets of {bytes_text(size)}, chosen in the first steps", flush=True)


class Recorded(Callback):
    """Writes the results of steps and epochs to the files of metrics.

    Args:
        metrics: the files.
    """

    name = "recorded"

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def after_results(self, run: Run, step: int, results: Mapping[str, float]) -> None:
        self._metrics.step(step, results)

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        epoch, found = results.training, results.held_out
        self._metrics.epoch(results.number, run.steps_done, {
            "loss": epoch.loss, "training_accuracy": epoch.accuracy, **_of_evaluation(found),
            "devices": run.options.replicas, "batch": run.options.batch, "steps": run.steps,
            "rate": epoch.rate, "seconds": epoch.seconds, "input_seconds": epoch.wait,
            "learning_rate": epoch.learning_rate, **{f"{name}_share": of for name, of in epoch.shares.items()},
            **_of_ranks(run.callbacks.get(RankReport)),
        })  # fmt: skip

    def after_average(self, run: Run, found: Evaluation) -> None:
        self._metrics.average(run.steps_done, _of_evaluation(found))


def _of_evaluation(found: Evaluation) -> dict[str, float]:
    return {
        "held_out_loss": found.loss,
        "top1": found.top1,
        **({} if found.top5 is None else {"top5": found.top5}),
        **({} if found.metrics is None else means_of(found.metrics)),
    }


def _of_ranks(report: RankReport | None) -> dict[str, float]:
    """Return what tells of slow ranks; nothing with one process."""
    if report is None or not report.times:
        return {}
    slowest = min(report.times, key=lambda each: each.waiting)
    return {
        "slowest_rank": slowest.rank,
        "rank_wait_least": slowest.waiting,
        "rank_wait_most": max(each.waiting for each in report.times),
    }
