"""How the time of a training step grows with the batch, the depth, the width, and the number of devices."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.bench.processes import our_worker
from netbuilder.tools.bench.report import Line
from netbuilder.tools.bench.work import Work

__all__ = ["SWEEPS", "Sweeps", "growth"]

SWEEPS = ("batch", "depth", "width", "devices")


@dataclass(frozen=True)
class Sweeps:
    """What is varied, one at a time.

    Args:
        work: the fixed values: the net (for batches and devices), the batch (for the others), the threads.
        batches: samples per step.
        depths: layers of residual nets.
        widths: channels of the first stage's 3x3 convolutions in ResNet-50, which doubles from stage to stage.
        devices: CPU devices that share the batch and the threads.
    """

    work: Work
    batches: Sequence[int]
    depths: Sequence[int]
    widths: Sequence[int]
    devices: Sequence[int]

    def works(self, sweep: str) -> Iterator[tuple[str, Work]]:
        """Yield the points of a sweep: name, and what is trained."""
        if sweep == "batch":
            yield from ((f"batch {n}", dataclasses.replace(self.work, batch=n)) for n in self.batches)
        elif sweep == "depth":
            yield from ((f"resnet{n}", dataclasses.replace(self.work, net=f"resnet{n}")) for n in self.depths)
        elif sweep == "width":
            for n in self.widths:
                yield f"resnet50 of width {n}", dataclasses.replace(self.work, net="resnet50", width=n)
        else:
            for n in self.devices:
                yield f"{n} device{'s' if n != 1 else ''}", dataclasses.replace(self.work, devices=n)


def growth(sweeps: Sweeps, chosen: Sequence[str], *, warmup: int, steps: int) -> Iterator[Line]:
    """Measure each point in its own process.

    Args:
        chosen: some of ``SWEEPS``.
        warmup, steps: of each point.
    """
    for sweep in chosen:
        for name, work in sweeps.works(sweep):
            with our_worker(work, warmup=warmup) as worker:
                seconds = worker.run(steps)
            yield _line(sweep, name, work, seconds)


def _line(sweep: str, name: str, work: Work, seconds: Sequence[float]) -> Line:
    median, per_image = statistics.median(seconds), 1e3 * statistics.median(seconds) / work.batch
    text = (
        f"growth with {sweep}: {name} ({work.net}, {work.dtype}, batch {work.batch}, {work.threads} threads): "
        f"{per_image:.2f} ms per image; {1e3 * median:.1f} ms per step "
        f"(median of {len(seconds)}, {1e3 * min(seconds):.1f} to {1e3 * max(seconds):.1f})"
    )
    record = {
        "kind": "growth",
        "sweep": sweep,
        "work": dataclasses.asdict(work),
        "seconds": list(seconds),
        "seconds_an_image": median / work.batch,
    }
    return Line(text, record)
