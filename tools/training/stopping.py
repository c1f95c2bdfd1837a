"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) end a run after the current step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from netbuilder.tools.training.callbacks import Callback

if TYPE_CHECKING:
    from netbuilder.tools.training.run import Run

__all__ = ["SAME", "Stopping"]

SAME = 0.5  # seconds in which a second signal is the same request: a terminal, a shell and a launcher may all send it


class Stopping(Callback):
    """Records the first of these signals, which stops the run; a second one has its usual effect.

    A second SIGHUP has none, since the system and the shell both send it when a terminal is closed. Signals that the
    process ignores, as SIGHUP under ``nohup``, stay ignored.

    Attributes:
        by: the signal that was received; None: none so far.
    """

    name = "stopping"
    _SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self) -> None:
        self.by: signal.Signals | None = None
        self._at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():  # other threads may not set handlers
            for number in self._SIGNALS:
                if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *details: object) -> None:
        self._restore_handlers()

    def stops(self, run: Run) -> bool:
        return self.by is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.by is None:
            self.by, self._at = signal.Signals(number), now
            # Not print(), which the signal may have interrupted; and the terminal may be closed.
            with contextlib.suppress(OSError):
                os.write(2, f"{self.by.name}: finishing this step; send it again to end at once\n".encode())
        elif now - self._at > SAME and signal.Signals(number).name != "SIGHUP":
            self._restore_handlers()
            signal.raise_signal(number)

    def _restore_handlers(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
