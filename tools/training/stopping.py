"""Ctrl-C and SIGTERM: the current step is finished first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Stopping"]


class Stopping:
    """Context manager that records the first of these signals. A second one takes effect at once, as usual.

    Attributes:
        by: the signal received; None: none so far.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.by: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():  # other threads may not set handlers
            self._before = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *details: object) -> None:
        self._give_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.by = signal.Signals(number)
        self._give_back()
        # Not print(): the signal may have interrupted one.
        os.write(2, f"{self.by.name}: finishing this step; repeat it to end at once\n".encode())

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @property
    def status(self) -> int:
        """The exit status of a program that a signal has ended."""
        return 128 + self.by if self.by is not None else 0
