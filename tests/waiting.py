"""Waiting in tests: for conditions, threads and processes. Machines may be slow, so limits only tell of hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["HANG", "interrupted", "join_all", "wait_until"]

HANG = 300.0  # seconds, after which what has not happened counts as hanging


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, f"not so after {HANG:.0f} s"
        time.sleep(0.001)


def join_all(*threads: threading.Thread) -> None:
    """Wait for threads to end; fail if one does not."""
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive(), f"{thread.name} hangs"


# Processes that are started in the background of a shell ignore the signal, and so do their children.
_HEED_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def interrupted(script: str) -> tuple[str, int]:
    """Run a script that prints "ready" and waits, and interrupt it; return what else it prints and its status."""
    command = [sys.executable, "-c", _HEED_SIGINT + script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=HANG)
        finally:
            process.kill()
    return out, process.returncode
