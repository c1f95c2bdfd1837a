"""Workers that run alternately, so that the ratios of their times are right even if the machine's speed drifts."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TextIO

from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.threads import Thread

__all__ = ["Comparison", "Side", "TimeLimits", "Way", "Worker", "compare"]

_CLOSING = 20.0  # seconds that a worker has to end
_KILLING = 10.0  # and one that is killed: a driver that hangs may not let go of it
_STACKS = 2.0  # seconds for writing the stacks of its threads
_LAST, _LAST_WITH_STACKS = 15, 60  # lines of its output in a message


@dataclass(frozen=True)
class TimeLimits:
    """How long a worker may take before it is killed, in seconds.

    Args:
        start: until it is ready.
        answer: for each command.
        until: the end of everything, by ``time.monotonic``.
    """

    start: float
    answer: float
    until: float = math.inf


class Worker:
    """A process that runs steps on command (see ``worker.serve``); the end of a ``with`` block ends it.

    Args:
        name: for people.
        command: what is run.
        env: the environment.
        limits: the process is killed, with those that it has started, when it takes longer; None: it has any time.

    Attributes:
        info: its description of itself, such as its version.
        loss: of the last step; None: it has no loss.
        peak: peak resident memory of the process in bytes after the last steps; 0: not known.

    Raises:
        RuntimeError: it ended before it was ready, or took too long; the message has the last lines of its output.
    """

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, limits: TimeLimits | None = None
    ) -> None:
        self.name = name
        self._limits = limits
        self._own_group = limits is not None and os.name == "posix"
        self._errors = tempfile.TemporaryFile()  # a pipe that is full would stop the worker
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(env),
                text=True,
                start_new_session=self._own_group,
            )
        except BaseException:
            self._errors.close()
            raise
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True)
        self._reader.start()
        self.loss: float | None = None
        self.peak = 0
        try:
            self.info: dict[str, Any] = self._answer("ready", limits.start if limits else math.inf)["ready"]
        except BaseException:
            self._kill()
            self._errors.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(self, doing: str, seconds: float) -> dict[str, Any]:
        began = time.monotonic()
        end = min(began + seconds, self._limits.until if self._limits else math.inf)
        while True:
            try:
                line = self._lines.get(timeout=None if math.isinf(end) else max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(self._hangs(doing, time.monotonic() - began)) from None
            if not line:
                raise RuntimeError(self._ended())
            with contextlib.suppress(ValueError):  # what a library has printed
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer

    def _ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSING)
        self._kill()
        return f"worker {self.name!r} ended with code {self._process.returncode}: {self._output(_LAST)}"

    def _hangs(self, doing: str, waited: float) -> str:
        """End the process; return what it was doing."""
        if self._own_group and hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(OSError):
                self._process.send_signal(signal.SIGUSR1)  # ``worker.show_stacks`` answers it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STACKS)
        self._kill()
        return (
            f"worker {self.name!r} was not {doing} after {waited:.0f} s and was killed; its last output:\n"
            f"{self._output(_LAST_WITH_STACKS)}"
        )

    def _output(self, count: int) -> str:
        """Return the last lines that it has written to its standard error; the file is closed then."""
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        self._errors.close()
        return "\n".join(text.strip().splitlines()[-count:])

    def run(self, steps: int, **more: Any) -> list[float]:
        """Run steps; return the seconds that each took.

        Args:
            more: what the command says besides, to a worker that can do several things.
        """
        answer = self.ask(steps=steps, **more)
        self.loss, self.peak = answer.get("loss"), answer.get("peak", 0)
        seconds: list[float] = answer["seconds"]
        return seconds

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command; return the answer.

        Raises:
            RuntimeError: it failed, has ended, or took too long; the message has the last lines of its output.
        """
        assert self._process.stdin is not None
        text = json.dumps(command)
        try:
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()
        except OSError:
            raise RuntimeError(self._ended()) from None
        answer = self._answer(f"done with {text}", self._limits.answer if self._limits else math.inf)
        if "error" in answer:
            raise RuntimeError(f"worker {self.name!r} failed at {text}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):  # it has ended, and not read all
            if self._process.stdin is not None:
                self._process.stdin.close()
        left = self._limits.until - time.monotonic() if self._limits else math.inf
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(min(_CLOSING, max(left, 1.0)))
        self._kill()
        self._errors.close()

    def _kill(self) -> None:
        """Kill the process, if it still runs, and those that it has started."""
        if self._own_group:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(_KILLING)
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._reader.join(1.0)  # longer only if somebody else has its standard output
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()


def _read(stream: TextIO, lines: queue.SimpleQueue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


@dataclass(frozen=True)
class Comparison:
    """Step times of alternating workers, in seconds: the median of each turn.

    Args:
        ours: netbuilder's times.
        peers: those of each peer, of which there is at least one.
    """

    ours: Sequence[float]
    peers: Sequence[Sequence[float]]

    @property
    def best(self) -> int:
        """Index of the fastest peer, by the median of its times."""
        medians = [statistics.median(times) for times in self.peers]
        return medians.index(min(medians))

    @property
    def ratio(self) -> float:
        """Median time of the fastest peer divided by netbuilder's: how many times faster netbuilder is."""
        return statistics.median(self.peers[self.best]) / statistics.median(self.ours)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest ratio to the fastest peer in a single turn."""
        ratios = [b / a for a, b in zip(self.ours, self.peers[self.best])]
        return min(ratios), max(ratios)


class Side(Protocol):
    """What takes turns: a worker, or one of the things that a worker can do."""

    def run(self, steps: int) -> list[float]:
        """Run steps; return the seconds that each took."""
        ...


@dataclass(frozen=True)
class Way:
    """One of the things that a worker can do.

    Args:
        name: the worker's name for it.
    """

    worker: Worker
    name: str

    def run(self, steps: int) -> list[float]:
        """Run steps in this way; return the seconds that each took."""
        return self.worker.run(steps, way=self.name)


def compare(ours: Side, *peers: Side, pairs: int, steps: int) -> Comparison:
    """Run workers alternately, ``pairs`` times ``steps`` steps each; every other turn is in reverse order."""
    workers = (ours, *peers)
    times: list[list[float]] = [[] for _ in workers]
    for turn in range(pairs):
        order = list(zip(times, workers))
        for found, worker in order if turn % 2 == 0 else reversed(order):
            found.append(statistics.median(worker.run(steps)))
    return Comparison(times[0], times[1:])
