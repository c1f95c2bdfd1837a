"""Files with the metrics of a run: lines of JSON, event files of TensorBoard, plots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from netbuilder.proto import NetError
from netbuilder.proto.structured_text import parse_json
from netbuilder.tools.picture import check_picture, figure_classes, save_picture

__all__ = ["Metrics"]

_CURVES = {
    "Loss": {"loss": "training", "held_out_loss": "held out"},
    "Accuracy": {"training_accuracy": "training", "top1": "held out", "top5": "held out, top 5"},
    "Images per second": {"rate": "training"},
}
"""Title of each plot -> its values, with their names in the legend."""


class Metrics:
    """Context manager that writes metrics.

    Args:
        lines: file to which a line of JSON is appended for each step and each epoch, or None.
        events: folder for TensorBoard, or None.
        plot: image (.png) with a plot of the epochs, written again after each epoch, or None.
        title: of the plot.

    Raises:
        NetError: a package is missing, or matplotlib cannot write files with this ending.
        OSError: a file cannot be written.
    """

    def __init__(
        self, lines: str | None = None, events: str | None = None, plot: str | None = None, title: str = ""
    ) -> None:
        self._title = title
        self._plot = Path(plot) if plot else None
        self._epochs: list[dict[str, Any]] = []
        if plot:
            check_picture(plot)
        self._events: Any = _event_writer(events) if events else None
        self._lines: TextIO | None = None
        for path in filter(None, (lines, plot)):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._earlier = Path(lines) if lines else None
        if lines:
            self._lines = open(lines, "a", encoding="utf-8")

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *details: object) -> None:
        if self._lines is not None:
            self._lines.close()
        if self._events is not None:
            self._events.close()

    def read_earlier(self, epochs: int) -> None:
        """Read the first ``epochs`` epochs of an earlier run from the file of lines, to plot them too."""
        if self._plot is None or self._earlier is None or not epochs:
            return
        found: dict[int, dict[str, Any]] = {}
        for line in self._earlier.read_text(encoding="utf-8").splitlines():
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
        if self._lines is not None:
            self._lines.flush()
        if self._plot is not None:
            self._draw(self._plot)

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if self._lines is not None:
            self._lines.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        if self._events is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)) and name != "epoch":
                    self._events.add_scalar(f"{kind}/{name}", value, step)

    def _draw(self, path: Path) -> None:
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


def _event_writer(folder: str) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise NetError("--tensorboard needs the package tensorboardX; pip install 'netbuilder[plot]'") from None
    return SummaryWriter(folder)
