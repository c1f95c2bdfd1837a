"""Files with the metrics of a run: lines of JSON, event files of TensorBoard, plots."""

from __future__ import annotations

import functools
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from netbuilder.proto import NetError, opened_files
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.os_errors import error_text
from netbuilder.proto.structured_text import parse_json
from netbuilder.tools.picture import check_picture, figure_classes, save_picture
from netbuilder.tools.training.appended_file import AppendedFile

__all__ = ["Metrics"]

_CURVES = {
    "Loss": {"loss": "training", "held_out_loss": "held out"},
    "Accuracy": {"training_accuracy": "training", "top1": "held out", "top5": "held out, top 5"},
    "Images per second": {"rate": "training"},
}
"""Title of each plot -> its values, with their names in the legend."""

_AT_ONCE = 1 << 14  # bytes of lines that are written together


class Metrics:
    """Context manager that writes metrics.

    A file that cannot be written, as where the disk is full, does not end the run: standard error says so once, and
    each later write tries again.

    Args:
        lines: file to which a line of JSON is appended for each step and each epoch, or None.
        events: folder for TensorBoard, or None.
        plot: image (.png) with a plot of the epochs, written again after each epoch, or None.
        title: of the plot.

    Raises:
        NetError: a package is missing, or matplotlib cannot write files with this ending.
        OSError: a file cannot be opened.

    Attributes:
        incomplete: options whose files lack something, since they could not be written.
    """

    def __init__(
        self, lines: str | None = None, events: str | None = None, plot: str | None = None, title: str = ""
    ) -> None:
        self._title = title
        self._plot = Path(plot) if plot else None
        self._epochs: list[dict[str, Any]] = []
        self.incomplete: set[str] = set()
        self._said: set[str] = set()
        self._left = 0  # bytes that the last attempt to write has left
        if plot:
            check_picture(plot)
            Path(plot).parent.mkdir(parents=True, exist_ok=True)
        self._record = _event_records() if events else None
        self._files: dict[str, AppendedFile] = {}
        self._earlier = Path(lines) if lines else None
        if lines:
            self._files["--metrics"] = AppendedFile(lines)
            if not self._files["--metrics"].ends_with(b"\n"):  # a run was killed, or its disk was full
                self._files["--metrics"].append(b"\n")
        if events and self._record is not None:
            name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
            self._files["--tensorboard"] = AppendedFile(Path(events) / name)
            self._files["--tensorboard"].append(self._record())

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *details: object) -> None:
        self._write_files()
        for file in self._files.values():
            file.close()
        self._files = {}

    def read_earlier(self, epochs: int) -> None:
        """Read the first ``epochs`` epochs of an earlier run from the file of lines, to plot them too."""
        if self._plot is None or self._earlier is None or not epochs:
            return
        found: dict[int, dict[str, Any]] = {}
        for line in opened_files.read_text(self._earlier).splitlines():
            try:
                entry = parse_json(line)
            except ValueError:
                continue  # an incomplete line of a run that was killed
            if isinstance(entry, dict) and entry.get("kind") == "epoch" and entry.get("epoch", 0) <= epochs:
                found[entry["epoch"]] = entry  # the last entry, if an epoch was trained again
        self._epochs = [found[number] for number in sorted(found)]

    def step(self, number: int, values: Mapping[str, Any]) -> None:
        """Write the metrics of a training step."""
        self._write("step", number, values)

    def epoch(self, number: int, steps: int, values: Mapping[str, Any]) -> None:
        """Write the metrics of an epoch.

        Args:
            number: from 1.
            steps: number of steps until its end.
            values: metrics by name.
        """
        self._epochs.append({"epoch": number, **values})
        self._write("epoch", steps, {"epoch": number, **values})
        self._write_files()
        if self._plot is not None:
            self._attempt("--plot", functools.partial(self.draw, self._plot))

    def average(self, steps: int, values: Mapping[str, Any]) -> None:
        """Write the results of the average of the last epochs, with which a run of ``steps`` steps ends."""
        self._write("average", steps, values)
        self._write_files()

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if lines := self._files.get("--metrics"):
            lines.append(json.dumps({"kind": kind, "step": step, **values}).encode() + b"\n")
        if (events := self._files.get("--tensorboard")) and self._record is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)) and name != "epoch":
                    events.append(self._record(f"{kind}/{name}", value, step))
        if max((len(file.unwritten) for file in self._files.values()), default=0) - self._left > _AT_ONCE:
            self._write_files()

    def _write_files(self) -> None:
        """Write what the files lack; after an error the next call tries again."""
        for option, file in self._files.items():
            self._attempt(option, file.write)
        self._left = max((len(file.unwritten) for file in self._files.values()), default=0)

    def _attempt(self, option: str, write: Callable[[], object]) -> None:
        try:
            write()
            self.incomplete.discard(option)
        except OSError as error:
            self.incomplete.add(option)
            if option not in self._said:
                self._said.add(option)
                print(
                    f"netbuilder-train: {option} cannot be written: {error_text(error)}; training continues",
                    file=sys.stderr, flush=True,
                )  # fmt: skip

    def draw(self, path: Path) -> None:
        figure_class, whole_numbers = figure_classes()
        figure = figure_class(figsize=(12, 3.5), layout="constrained")
        numbers = [entry["epoch"] for entry in self._epochs]
        for axes, (title, names) in zip(figure.subplots(1, len(_CURVES)), _CURVES.items()):
            for name, label in names.items():
                values = [entry.get(name, float("nan")) for entry in self._epochs]
                if any(value == value for value in values):
                    axes.plot(numbers, values, marker=".", label=label)
            axes.set_title(title)
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(whole_numbers(integer=True, min_n_ticks=1))
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
        if self._title:
            figure.suptitle(self._title)
        save_picture(figure, path)


def _event_records() -> Callable[..., bytes]:
    """Return a function that makes a record of an event file of a name, value and step; of nothing, the first one.

    tensorboardX's own writer stops the program for ever when its thread has met a full disk.
    """
    try:
        from tensorboardX import record_writer, summary
        from tensorboardX.proto.event_pb2 import Event
    except ImportError:
        raise NetError(f"--tensorboard needs the package tensorboardX; {how_to_install('plot')}") from None

    def record(name: str | None = None, value: float = 0.0, step: int = 0) -> bytes:
        event = Event(wall_time=time.time(), step=step)
        if name is None:
            event.file_version = "brain.Event:2"
        else:
            event.summary.CopyFrom(summary.scalar(name, value))
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        sums = [struct.pack("<I", record_writer.masked_crc32c(part)) for part in (length, data)]
        return length + sums[0] + data + sums[1]

    return record
