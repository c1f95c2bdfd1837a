"""What a run leaves for other programs: lines of JSON, event files of TensorBoard, curves in a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from netbuilder.proto import NetError
from netbuilder.proto.whole_file import whole_file

__all__ = ["Metrics"]

_CURVES = {
    "Loss": {"loss": "training", "held_out_loss": "held out"},
    "Accuracy": {"training_accuracy": "training", "top1": "held out", "top5": "held out, top 5"},
    "Images per second": {"rate": "training"},
}
"""Title -> the values that are drawn, with their names in the legend."""


class Metrics:
    """Writes what is measured; a context manager.

    Args:
        lines: file that a line of JSON is added to for each step and each epoch, or None.
        events: folder for TensorBoard, or None.
        plot: picture (.png) with the curves of the epochs, drawn anew after each, or None.
        title: of the picture.

    Raises:
        NetError: a package is missing, or pictures of this kind cannot be written.
        OSError: a file cannot be written.
    """

    def __init__(
        self, lines: str | None = None, events: str | None = None, plot: str | None = None, title: str = ""
    ) -> None:
        self._title = title
        self._plot = Path(plot) if plot else None
        self._epochs: list[dict[str, Any]] = []
        if plot:
            _check_picture(plot)
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

    @property
    def wanted(self) -> bool:
        """Whether anything is written."""
        return bool(self._lines or self._events or self._plot)

    def go_on(self, epochs: int) -> None:
        """Draw so many epochs of an earlier run before the next ones, as far as the file of lines has them."""
        if self._plot is None or self._earlier is None or not epochs:
            return
        found: dict[int, dict[str, Any]] = {}
        for line in self._earlier.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut short when a run was ended
            if isinstance(entry, dict) and entry.get("kind") == "epoch" and entry.get("epoch", 0) <= epochs:
                found[entry["epoch"]] = entry  # the last one, if an epoch was trained again
        self._epochs = [found[number] for number in sorted(found)]

    def step(self, number: int, values: Mapping[str, Any]) -> None:
        """Note a step of training."""
        self._write("step", number, values)

    def epoch(self, number: int, steps: int, values: Mapping[str, Any]) -> None:
        """Note an epoch.

        Args:
            number: from 1.
            steps: done until its end.
            values: what was measured.
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
        figure_class, whole_numbers = _matplotlib()
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
        with whole_file(path) as file:
            figure.savefig(file, format=path.suffix.removeprefix(".") or None)


def _matplotlib() -> Any:
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise NetError("--plot needs the package matplotlib; pip install netbuilder[plot]") from None
    return Figure, MaxNLocator


def _check_picture(path: str) -> None:
    """Raises NetError: no picture of this kind can be written."""
    kinds = sorted(_matplotlib()[0]().canvas.get_supported_filetypes())
    if Path(path).suffix[1:].lower() not in kinds:
        raise NetError(
            f"--plot: {path!r} must end in .png or another ending that matplotlib writes: {', '.join(kinds)}"
        )


def _event_writer(folder: str) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise NetError("--tensorboard needs the package tensorboardX; pip install netbuilder[plot]") from None
    return SummaryWriter(folder)
