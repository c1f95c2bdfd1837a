"""Progress of a command: a bar on a terminal or in a notebook (with tqdm), otherwise a line per minute."""

from __future__ import annotations

import builtins
import sys
import time
import warnings
from typing import Any

__all__ = ["EVERY", "EpochProgress", "Progress"]

EVERY = 60.0  # seconds between plain lines


class Progress:
    """Context manager that shows how many items are done.

    Args:
        title: the first word of the bar or line.
        total: number of items; None: unknown.
        unit: name of one item.
        shown: nothing is shown if not.
    """

    def __init__(self, title: str, total: int | None, unit: str = "image", *, shown: bool = True) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._every = EVERY if shown else float("inf")
        self._done = 0
        self._began = self._shown = time.perf_counter()
        self._bar: Any = None
        if shown and (sys.stderr.isatty() or _in_notebook()):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a notebook without ipywidgets gets a bar of text
                    from tqdm.auto import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, desc=title, unit=unit, leave=False, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *details: object) -> None:
        if self._bar is not None:
            self._bar.close()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._began

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count ``count`` more items as done; ``note`` is shown after the numbers."""
        self._done += count
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
            if self._done == self._total:
                self._bar.refresh()  # tqdm draws ten times a second: the end of a short run would not be seen
        elif time.perf_counter() - self._shown > self._every:
            self._shown = time.perf_counter()
            of = "" if self._total is None else f"/{self._total}"
            left = "" if self._total is None else f", {_duration(self._left(self._total))} left"
            print(f"{self._title}: {self._unit} {self._done}{of}{f', {note}' if note else ''}{left}", flush=True)

    def _left(self, total: int) -> float:
        """Seconds that the rest will take at the present rate."""
        return self.seconds / max(self._done, 1) * (total - self._done)


class EpochProgress(Progress):
    """Shows the steps of one epoch of training, with loss, accuracy and rate.

    Args:
        title: the first word of the bar or line.
        steps: number of steps.
        shown: see ``Progress``.
    """

    def __init__(self, title: str, steps: int, *, shown: bool = True) -> None:
        super().__init__(title, steps, "step", shown=shown)
        self._images = 0

    def __enter__(self) -> EpochProgress:
        return self

    @property
    def rate(self) -> float:
        """Images per second so far."""
        return self._images / max(self.seconds, 1e-9)

    def step(self, images: int, loss: float | None, top1: float | None = None) -> None:
        """Count a step over ``images`` images; ``loss`` and ``top1`` are the last known values, or None."""
        self._images += images
        shown = "-" if loss is None else f"{loss:.4g}"
        if top1 is not None:
            shown += f", top-1 {top1:.0%}"
        self.advance(1, f"loss {shown}, {self.rate:.0f} images/s")


def _in_notebook() -> bool:
    """Whether the program runs in a kernel of Jupyter, whose streams are no terminals."""
    return hasattr(builtins, "__IPYTHON__") and "ipykernel" in sys.modules


def _duration(seconds: float) -> str:
    """Return a time in words.

    >>> _duration(8.4), _duration(140), _duration(7500)
    ('8 s', '2 min 20 s', '2 h 5 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
