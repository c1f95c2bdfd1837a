"""Workers that run alternately, so that the ratios of their times are right even if the machine's speed drifts."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Comparison", "Side", "Way", "Worker", "compare"]


class Worker:
    """A process that runs steps on command (see ``worker.serve``); the end of a ``with`` block ends it.

    Attributes:
        info: its description of itself, such as its version.
        loss: of the last step; None: it has no loss.
        peak: peak resident memory of the process in bytes after the last steps; 0: not known.

    Raises:
        RuntimeError: it ended before it was ready; the message has the last lines of its output.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            text=True,
        )
        self.loss: float | None = None
        self.peak = 0
        self.info: dict[str, Any] = self._answer()["ready"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, text = self._process.communicate()
            last = "\n".join(text.strip().splitlines()[-15:])
            raise RuntimeError(f"worker {self.name!r} ended with code {self._process.returncode}: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer

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
        """Send a command; return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


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
