"""The benchmark of predictors: an exported and reloaded ResNet-50, compared with other libraries on the same net."""

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

from netbuilder.tools.bench.our_predictor import OUTPUTS, export
from netbuilder.tools.bench.pairs import Comparison, Worker, compare
from netbuilder.tools.bench.report import as_which

__all__ = ["BATCHES", "PEERS", "Prediction", "Predictors", "difference", "predict"]

BATCHES = (1, 32)
"""Default batches."""

BOUND = 1e-3
"""Largest difference of outputs that counts as rounding, relative to the largest value."""

PEERS = ("onnxruntime", "openvino")
"""The libraries that netbuilder is compared with; ``peer_<name>.py`` is the program of each."""


@dataclass(frozen=True)
class Predictors:
    """What is measured: a residual net in test mode, from an array to arrays.

    Args:
        batch: images per run.
        threads: of each side.
        layers: of the net.
        size: height and width of the images in pixels.
        warmup: runs before the first turn.
    """

    batch: int
    threads: int
    layers: int = 50
    size: int = 224
    warmup: int = 3

    @property
    def steps(self) -> int:
        """Runs per turn."""
        return max(2, 20 // self.batch)


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
            each.append(f"{name} {1e3 * seconds:.1f} ms ({work.batch / seconds:.1f} images/s)")
        line = (
            f"predict, ResNet-{work.layers}, batch {work.batch}, threads {work.threads}, {len(self.times.ours)} pairs: "
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
            times = compare(ours, *peers, pairs=pairs, steps=steps or work.steps)
        found = _outputs(folder / OUTPUTS)
        apart = [difference(x, y) for name in pythons for x, y in zip(found, _outputs(folder / f"{name}.npz"))]
    return Prediction(
        work, [f"{name} {peer.info['version']}" for name, peer in zip(pythons, peers)], times, _worst(apart)
    )


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
