"""The worker process of a benchmark: reads commands, runs steps, answers with their times.

It runs by path in the peers' environments, which have no netbuilder, so it must not import netbuilder.

The protocol, one JSON text per line: after the warm-up the worker writes ``{"ready": info}``; to ``{"steps": n}`` it
answers ``{"seconds": [...], "loss": ..., "peak": ...}``, a time for each step, the loss of the last one, and the peak
resident memory of the process in bytes (with ``"forget": true`` that of these steps and later ones), or ``{"error":
text}``; it ends with its input. With ``"callers": n``, as many
threads run the steps at the same time, and there is one time, that of all divided by their number.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

__all__ = [
    "answer_commands",
    "forget_peak",
    "open_answers",
    "peak_resident",
    "resident",
    "serve",
    "serve_gpu",
    "show_stacks",
    "timed",
    "timed_by_callers",
    "timed_together",
]


def serve(
    step: Callable[[], Any],
    *,
    warmup: int,
    loss: Callable[[], float] | None = None,
    info: dict[str, Any] | None = None,
) -> None:
    """Warm up, then answer commands until the input ends.

    Args:
        step: runs one step to its end.
        warmup: number of steps that are not timed.
        loss: returns the loss of the last step; None: there is no loss. That of the first step becomes a part of the
            description.
        info: description that the controller shows with the times.
    """
    answers, info = open_answers(), dict(info or {})
    for number in range(warmup):
        step()
        if loss and not number:
            info["first_loss"] = loss()

    def run(command: dict[str, Any]) -> dict[str, Any]:
        if command.get("forget"):
            forget_peak()
        steps, callers = command["steps"], command.get("callers")
        seconds = [timed_by_callers(step, steps, callers)] if callers else timed(step, steps)
        return {"seconds": seconds, "loss": loss() if loss else None, "peak": peak_resident()}

    answer_commands(answers, run, info)


def timed_by_callers(step: Callable[[], Any], steps: int, callers: int) -> float:
    """Return the seconds per step of threads that run so many steps each, at the same time."""
    start = threading.Barrier(callers + 1)

    def call() -> None:
        start.wait()
        for _ in range(steps):
            step()

    with concurrent.futures.ThreadPoolExecutor(callers) as pool:
        calls = [pool.submit(call) for _ in range(callers)]
        start.wait()
        began = time.perf_counter()
        for each in calls:
            each.result()
        return (time.perf_counter() - began) / (steps * callers)


def serve_gpu(
    step: Callable[[], Any],
    finish: Callable[[], Any],
    *,
    warmup: int,
    peak: Callable[[], int],
    loss: Callable[[], float] | None = None,
    info: dict[str, Any] | None = None,
    others: dict[str, Callable[[int], dict[str, Any]]] | None = None,
) -> None:
    """Warm up, then answer commands until the input ends; steps of one command are timed together.

    Args:
        step: starts one step.
        finish: waits for all steps.
        peak: returns the bytes that the process has of the memory of GPUs.
        warmup, loss, info: see ``serve``.
        others: what else the worker can do, by the "way" of a command; each is given the command's number of steps. An
            error in one of them is its answer, and does not end the worker.
    """
    answers = open_answers()
    first = time.perf_counter()
    for number in range(warmup):
        began = time.perf_counter()
        step()
        finish()
        print(f"step {number} of the warm-up took {time.perf_counter() - began:.3f} s", file=sys.stderr)

    def run(command: dict[str, Any]) -> dict[str, Any]:
        steps = command["steps"]
        if way := command.get("way"):
            try:
                return (others or {})[way](steps)
            except Exception:  # the others may work
                return {"error": traceback.format_exc()}
        return {"seconds": [timed_together(step, finish, steps)], "loss": loss() if loss else None, "peak": peak()}

    answer_commands(answers, run, {**(info or {}), "warmup": time.perf_counter() - first})


def timed_together(step: Callable[[], Any], finish: Callable[[], Any], steps: int) -> float:
    """Return the mean seconds of several steps, which are started one after another without waiting in between."""
    finish()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    finish()
    return (time.perf_counter() - began) / steps


def show_stacks() -> None:
    """Write the stacks of all threads to standard error when the process gets SIGUSR1, or crashes."""
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)


def open_answers() -> TextIO:
    """Return a stream to the controller; what libraries print to standard output goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def answer_commands(answers: TextIO, run: Callable[[dict[str, Any]], dict[str, Any]], info: dict[str, Any]) -> None:
    """Say that the worker is ready, then answer commands with what ``run`` returns until the input ends."""
    print(json.dumps({"ready": info}), file=answers)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers)


def timed(step: Callable[[], Any], steps: int) -> list[float]:
    """Run steps; return the seconds that each took."""
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return seconds


def resident() -> int:
    """Return the resident memory of the process in bytes; where the system does not report it, the peak so far."""
    return _status("VmRSS") or peak_resident()


def peak_resident() -> int:
    """Return the peak resident memory of the process in bytes; 0 where the system does not report it."""
    if peak := _status("VmHWM"):
        return peak
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_peak() -> None:
    """Let the peak resident memory begin at what the process has now, where the system can."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _status(field: str) -> int:
    """Return a size that Linux reports about the process; 0 on other systems."""
    try:
        with open("/proc/self/status") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
