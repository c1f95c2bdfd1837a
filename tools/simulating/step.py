"""The step of one device: measured with a net of the zoo, or read from a file."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from netbuilder.parallel.simulation.links import Link
from netbuilder.parallel.simulation.step_times import StepTimes
from netbuilder.proto import NetError, opened_files
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.structured_text import parse_json
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.profiling import profile
from netbuilder.tools.profiling.zoo import ZooOptions, load_zoo

__all__ = ["Measured", "measure_step", "read_link", "read_log", "read_record", "read_step"]


def measure_step(net: str, options: ZooOptions, *, threads: int | None, runs: int = 5, warmup: int = 2) -> StepTimes:
    """Train a net of the zoo on one CPU device for a few steps, and return the times of its calls.

    Args:
        net: one of ``netbuilder.tools.training.nets.NETS``.
        options: batch, size of images and so on.
        threads: None: all of the machine.
        runs, warmup: see ``profile``.

    Raises:
        NetError: there is no such net.
    """
    ready = load_zoo(Workspace(threads=threads), net, options)
    found = profile(ready.workspace, ready.name, runs=runs, warmup=warmup, parameters=ready.parameters)
    specs = [ready.workspace.spec(name) for name in ready.statistics]
    statistics = sum(spec.nbytes for spec in specs if spec is not None)
    return StepTimes.of(found, ready.gradients, samples=options.batch, statistics_bytes=statistics)


def read_record(path: str, what: str) -> Any:
    """Return what is stored in a file of JSON.

    Raises:
        ParseError: it is not JSON.
        OSError: it cannot be read.
    """
    return parse_json(opened_files.read_text(path), f"{path!r}, which should have {what}")


def read_step(path: str) -> StepTimes:
    """Return the step that a file has, which ``--save`` wrote.

    Raises:
        NetError: there is no such file, or it has something else.
    """
    record = read_record(path, "the times of a step")
    try:
        return StepTimes.from_dict(record)
    except NetError as error:
        raise NetError(f"{path!r}: {error}") from None


@dataclass(frozen=True)
class Measured:
    """The steps of a run, by its log.

    Args:
        devices: of all processes.
        samples: of a step, over all of them.
        step: seconds of a step, without waiting for input.
        exchanging: the share of it in which values were exchanged.
    """

    devices: int
    samples: int
    step: float
    exchanging: float


def read_log(path: str) -> Measured:
    """Return the fastest epoch in a file that ``netbuilder-train --metrics`` wrote.

    Raises:
        NetError: no line is of an epoch.
        OSError: it cannot be read.
    """
    found = []
    for line in opened_files.read_text(path).splitlines():
        with suppress(ValueError, KeyError, TypeError):  # the last line of a run that was killed
            entry = parse_json(line)
            if entry["kind"] == "epoch":
                step = (entry["seconds"] - entry["input_seconds"]) / entry["steps"]
                found.append(Measured(entry["devices"], entry["batch"], step, entry.get("exchange_share", 0.0)))
    if not found:
        raise NetError(f"{path!r} has no epoch; give a file that netbuilder-train --metrics has written")
    return min(found, key=lambda each: each.step)


def read_link(text: str) -> Link:
    """Return the link that a text gives, or the file that ``--measure`` wrote.

    Raises:
        NetError: it is neither.
    """
    return Link.from_dict(read_record(text, "a link")) if text.endswith(".json") else Link.parse(text)
