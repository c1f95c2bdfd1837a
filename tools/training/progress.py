"""What the trainer shows within an epoch: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

__all__ = ["Progress"]

_EVERY = 60.0  # seconds between plain lines


class Progress:
    """Shows the steps of one epoch; a context manager.

    Args:
        title: what comes first.
        steps: how many there will be.
    """

    def __init__(self, title: str, steps: int) -> None:
        self._title = title
        self._steps = steps
        self._done = 0
        self._images = 0
        self._began = self._shown = time.perf_counter()
        self._bar: Any = None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=steps, desc=title, unit="step", leave=False, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *details: object) -> None:
        if self._bar is not None:
            self._bar.close()

    @property
    def rate(self) -> float:
        """Images per second so far."""
        return self._images / max(time.perf_counter() - self._began, 1e-9)

    @property
    def left(self) -> float:
        """Seconds that the rest of the epoch will take at this rate."""
        return (time.perf_counter() - self._began) / max(self._done, 1) * (self._steps - self._done)

    def step(self, images: int, loss: float | None, top1: float | None = None) -> None:
        """Count a step over so many images; ``loss`` and ``top1`` are the last ones known, None before the first."""
        shown = "-" if loss is None else f"{loss:.3f}"
        if top1 is not None:
            shown += f", top-1 {top1:.0%}"
        self._done += 1
        self._images += images
        if self._bar is not None:
            self._bar.update()
            self._bar.set_postfix_str(f"loss {shown}, {self.rate:.0f} images/s", refresh=False)
        elif time.perf_counter() - self._shown > _EVERY:
            self._shown = time.perf_counter()
            print(f"{self._title}: step {self._done}/{self._steps}, loss {shown}, {self.rate:.0f} images/s, "
                  f"{_duration(self.left)} left", flush=True)  # fmt: skip


def _duration(seconds: float) -> str:
    """Return a time in words.

    >>> _duration(8.4), _duration(140), _duration(7500)
    ('8 s', '2 min 20 s', '2 h 5 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
