"""The benchmark of predictors: an exported and reloaded net, compared with other libraries on the same net."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.proto.errors import counted
from netbuilder.tools.bench.our_predictor import OUTPUTS, export
from netbuilder.tools.bench.pairs import Comparison, Worker, compare
from netbuilder.tools.bench.report import as_which

__all__ = ["BATCHES", "PEERS", "SHARED", "Prediction", "Predictors", "difference", "predict"]

BATCHES = (1, 32)
"""Default batches."""

BOUND = 1e-3
"""Largest difference of outputs that counts as rounding, relative to the largest value."""

PEERS = ("onnxruntime", "openvino")
"""The libraries that netbuilder is compared with; ``peer_<name>.py`` is the program of each."""

SHARED = "onnxruntime"
"""The peer of which several threads can share one object, as they can a predictor."""


@dataclass(frozen=True)
class Predictors:
    """What is measured: a net in test mode, from an array to arrays.

    Args:
        batch: inputs per run.
        threads: of each side, for each run.
        layers: of a residual net; 0: a small net of fully connected layers.
        size: height and width of the images in pixels.
        warmup: runs before the first turn.
        callers: threads that run one predictor at the same time; 0: the worker's own thread alone.
    """

    batch: int
    threads: int
    layers: int = 50
    size: int = 224
    warmup: int = 3
    callers: int = 0

    @property
    def steps(self) -> int:
        """Runs per turn, of each caller."""
        return max(2, (20 if self.layers else 5000) // self.batch)

    @property
    def name(self) -> str:
        """What is measured, for people."""
        net = f"ResNet-{self.layers}" if self.layers else "MLP"
        callers = f", {counted(self.callers, 'caller')}" if self.callers else ""
        return f"{net}, batch {self.batch}, threads {self.threads}{callers}"


@dataclass(frozen=True)
class Prediction:
    """What was found.

    Args:
        work: what was measured.
        peers: the names of the peers, with their versions.
        times: of all sides, in seconds.
        apart: the largest difference between our outputs and those of a peer, relative to the largest value.
    """

    work: Predictors
    peers: Sequence[str]
    times: Comparison
    apart: float

    @property
    def good(self) -> bool:
        """Whether all sides compute the same; NaN counts as a difference."""
        return self.apart <= BOUND

    @property
    def text(self) -> str:
        """The result as one line of text."""
        work, (low, high) = self.work, self.times.spread
        each = []
        for name, times in zip(["netbuilder", *self.peers], [self.times.ours, *self.times.peers]):
            seconds = statistics.median(times)
            rate = f"{work.batch / seconds:.1f} images/s" if work.layers else f"{work.batch / seconds:.0f} inputs/s"
            each.append(f"{name} {1e3 * seconds:.{1 if work.layers else 4}f} ms ({rate})")
        line = (
            f"predict, {work.name}, {counted(len(self.times.ours), 'pair')}: "
            f"{', '.join(each)}; {self.times.ratio:.2f} x as fast{as_which(self.times, self.peers)} "
            f"(pairs {low:.2f} to {high:.2f}); outputs {self.apart:.1e} apart"
        )
        return line if self.good else f"{line}: NOT the same work: differences above {BOUND:.0e} are more than rounding"

    @property
    def record(self) -> dict[str, Any]:
        """The result as a record for JSON."""
        return {
            "kind": "predict",
            "layers": self.work.layers,
            "batch": self.work.batch,
            "threads": self.work.threads,
            "callers": self.work.callers,
            "sides": ["netbuilder", *self.peers],
            "seconds": [list(seconds) for seconds in (self.times.ours, *self.times.peers)],
            "peer": self.peers[self.times.best],
            "ratio": self.times.ratio,
            "spread": list(self.times.spread),
            "apart": self.apart,
        }


def predict(
    work: Predictors,
    pythons: Mapping[str, str],
    *,
    pairs: int,
    steps: int | None = None,
    scripts: Path = Path(__file__).parent,
) -> Prediction:
    """Measure all sides alternately, and compare their outputs.

    A run takes an array and returns arrays, on all sides; loading and warm-up are not measured.

    Args:
        pythons: for each peer an interpreter that has it.
        pairs: turns of each side.
        steps: runs per turn; None: ``work.steps``.
        scripts: the folder of the peers' programs.

    Raises:
        RuntimeError: a side failed; the message has the end of its output.
    """
    # Without OMP_WAIT_POLICY=active: a side that waits must not use the cores of the other.
    env = {**os.environ, "OMP_NUM_THREADS": str(work.threads)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(folder, layers=work.layers, batch=work.batch, size=work.size)
        size = [str(work.warmup), name, str(work.threads)]
        own = [sys.executable, "-m", "netbuilder.tools.bench.our_predictor"]
        with ExitStack() as stack:
            peers = [
                stack.enter_context(Worker(name, [python, str(scripts / f"peer_{name}.py"), *size], env))
                for name, python in pythons.items()
            ]
            ours = stack.enter_context(Worker("netbuilder", [*own, *size], env))
            found = _outputs(folder / OUTPUTS)
            apart = [difference(x, y) for name in pythons for x, y in zip(found, _outputs(folder / f"{name}.npz"))]
            sides = [_Callers(side, work.callers) if work.callers else side for side in (ours, *peers)]
            for side in sides:
                side.run(work.warmup)
            times = compare(*sides, pairs=pairs, steps=steps or work.steps)
    return Prediction(
        work, [f"{name} {peer.info['version']}" for name, peer in zip(pythons, peers)], times, _worst(apart)
    )


@dataclass(frozen=True)
class _Callers:
    """A worker in which several threads run the steps at the same time."""

    worker: Worker
    callers: int

    def run(self, steps: int) -> list[float]:
        """Run so many steps in each thread; return the seconds per step."""
        return self.worker.run(steps, callers=self.callers)


def _outputs(file: Path) -> list[np.ndarray[Any, Any]]:
    with np.load(file) as outputs:
        return [outputs[name] for name in outputs.files]


def _worst(apart: Sequence[float]) -> float:
    """Return the largest difference; NaN if there is one."""
    return float(np.max(apart))


def difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays relative to the largest element of the second one.

    >>> difference(np.float32([1, 2]), np.float32([1, 4]))
    0.5
    """
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a.astype(np.float64) - b).max() / max(np.abs(b).max(), 1e-30))
