"""Ctrl-C and SIGTERM end a run after the current step."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Stopping"]


class Stopping:
    """Context manager that records the first of these signals; a second one has its usual effect.

    Attributes:
        by: the signal that was received; None: none so far.
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
        self._restore_handlers()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.by = signal.Signals(number)
        self._restore_handlers()
        # Not print(), which the signal may have interrupted.
        os.write(2, f"{self.by.name}: finishing this step; send it again to end at once\n".encode())

    def _restore_handlers(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
