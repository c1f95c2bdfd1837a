"""The benchmark of predictors: an exported and reloaded ResNet-50, compared with onnxruntime on the same net."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.tools.bench.our_predictor import OUTPUTS, export
from netbuilder.tools.bench.pairs import Comparison, Worker, compare

__all__ = ["BATCHES", "Prediction", "Predictors", "difference", "predict"]

BATCHES = (1, 32)
"""Default batches."""

BOUND = 1e-3
"""Largest difference of outputs that counts as rounding, relative to the largest value."""

_PEER = Path(__file__).parent / "peer_onnx.py"


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
    """Times of both sides, in seconds, and the largest difference of their outputs relative to the largest value."""

    work: Predictors
    peer: str
    times: Comparison
    apart: float

    @property
    def good(self) -> bool:
        """Whether both sides compute the same; NaN counts as a difference."""
        return self.apart <= BOUND

    @property
    def text(self) -> str:
        """The result as one line of text."""
        work, (low, high) = self.work, self.times.spread
        ours, theirs = (statistics.median(times) for times in (self.times.ours, self.times.peer))
        line = (
            f"predict, ResNet-{work.layers}, batch {work.batch}, threads {work.threads}, {len(self.times.ours)} pairs: "
            f"netbuilder {1e3 * ours:.1f} ms ({work.batch / ours:.1f} images/s), "
            f"{self.peer} {1e3 * theirs:.1f} ms ({work.batch / theirs:.1f} images/s); "
            f"{self.times.ratio:.2f} x as fast (pairs {low:.2f} to {high:.2f}); outputs {self.apart:.1e} apart"
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
            "sides": ["netbuilder", self.peer],
            "seconds": [list(self.times.ours), list(self.times.peer)],
            "ratio": self.times.ratio,
            "spread": list(self.times.spread),
            "apart": self.apart,
        }


def predict(work: Predictors, python: str, *, pairs: int, steps: int | None = None, script: Path = _PEER) -> Prediction:
    """Measure both sides alternately, and compare their outputs.

    A run takes an array and returns arrays, on both sides; loading and warm-up are not measured.

    Args:
        python: an interpreter that has the peer.
        pairs: turns of each side.
        steps: runs per turn; None: ``work.steps``.
        script: the peer's program.

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
        with (
            Worker("onnxruntime", [python, str(script), *size], env) as peer,
            Worker("netbuilder", [*own, *size], env) as ours,
        ):
            times = compare(ours, peer, pairs=pairs, steps=steps or work.steps)
        with np.load(folder / OUTPUTS) as a, np.load(folder / "peer.npz") as b:
            apart = max(difference(x, y) for x, y in zip(_in_order(a), _in_order(b)))
    return Prediction(work, f"{peer.info.get('name', 'peer')} {peer.info['version']}", times, apart)


def _in_order(outputs: Any) -> list[np.ndarray[Any, Any]]:
    return [outputs[name] for name in outputs.files]


def difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays relative to the largest element of the second one.

    >>> difference(np.float32([1, 2]), np.float32([1, 4]))
    0.5
    """
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a.astype(np.float64) - b).max() / max(np.abs(b).max(), 1e-30))
