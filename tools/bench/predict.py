"""Benchmarks of prediction: an exported net of ours, or models of others, compared with other libraries."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from netbuilder.exchange.onnx import read_onnx
from netbuilder.proto import ArgumentError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.bench.our_predictor import INPUTS, MODEL, OUTPUTS, export
from netbuilder.tools.bench.pairs import Comparison, Worker, compare
from netbuilder.tools.bench.report import Line, as_which

__all__ = [
    "BATCHES",
    "PEERS",
    "SHARED",
    "Model",
    "Prediction",
    "Predictors",
    "difference",
    "failure",
    "model_files",
    "predict",
    "summary",
    "worst",
]

BATCHES = (1, 32)
"""Default batches."""

BOUND = 1e-3
"""Largest difference of outputs that counts as rounding, relative to the largest value."""

PEERS = ("onnxruntime", "openvino")
"""The libraries that netbuilder is compared with; ``peer_<name>.py`` is the program of each."""

SHARED = "onnxruntime"
"""The peer of which several threads can share one object, as they can a predictor."""


_TURN = 0.3  # seconds that the turn of a model takes, about


class Work(Protocol):
    """What is measured: a model in test mode, from arrays to arrays."""

    @property
    def batch(self) -> int:
        """Inputs per run."""
        ...

    @property
    def threads(self) -> int:
        """Threads of each side, for each run."""
        ...

    @property
    def warmup(self) -> int:
        """Runs before the first turn."""
        ...

    @property
    def callers(self) -> int:
        """Threads that run one predictor at the same time; 0: the worker's own thread alone."""
        ...

    @property
    def name(self) -> str:
        """What is measured, for people."""
        ...

    @property
    def record(self) -> dict[str, Any]:
        """The same for JSON."""
        ...

    def write(self, folder: Path) -> None:
        """Write the model and its inputs, see ``our_predictor.export``."""
        ...

    def steps(self, seconds: float) -> int:
        """Return the runs per turn, of each caller, for a run that takes ``seconds``."""
        ...


@dataclass(frozen=True)
class Predictors:
    """A net of ours, exported and loaded again.

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
    def name(self) -> str:
        net = f"ResNet-{self.layers}" if self.layers else "MLP"
        callers = f", {counted(self.callers, 'caller')}" if self.callers else ""
        return f"predict, {net}, batch {self.batch}, threads {self.threads}{callers}"

    @property
    def record(self) -> dict[str, Any]:
        callers = {"callers": self.callers}
        return {"kind": "predict", "layers": self.layers, "batch": self.batch, "threads": self.threads, **callers}

    def write(self, folder: Path) -> None:
        export(folder, layers=self.layers, batch=self.batch, size=self.size)

    def steps(self, seconds: float) -> int:
        return max(2, (20 if self.layers else 5000) // self.batch)


@dataclass(frozen=True)
class Model:
    """An ONNX model.

    Args:
        file: the model. The file of the same name with ``.npz`` has its inputs by name; without one they are random
            numbers, or ones where the model wants integers.
        batch: extent of the inputs' dynamic axes.
        threads, warmup, callers: see ``Predictors``.
    """

    file: Path
    batch: int
    threads: int
    warmup: int = 3
    callers: int = 0

    @property
    def name(self) -> str:
        return f"{self.file.stem}, batch {self.batch}, threads {self.threads}"

    @property
    def record(self) -> dict[str, Any]:
        return {"kind": "models", "model": self.file.stem, "batch": self.batch, "threads": self.threads}

    def write(self, folder: Path) -> None:
        for part in (self.file, *self.file.parent.glob(f"{self.file.name}*data")):  # and what it stores outside
            shutil.copyfile(part, folder / (MODEL if part == self.file else part.name))
        inputs = self.file.with_suffix(".npz")
        if inputs.exists():
            shutil.copyfile(inputs, folder / INPUTS)
        else:
            np.savez(folder / INPUTS, **self._inputs())

    def _inputs(self) -> dict[str, Any]:
        read = read_onnx(self.file)
        rng, found = np.random.default_rng(0), {}
        for name in read.inputs:
            shape = [extent if isinstance(extent, int) else self.batch for extent in read.extents[name] or ()]
            dtype = read.dtypes[name]
            found[name] = (rng.standard_normal(shape) if dtype.kind == "f" else np.ones(shape)).astype(dtype)
        return found

    def steps(self, seconds: float) -> int:
        return max(2, min(200, int(_TURN / max(seconds, 1e-6))))


@dataclass(frozen=True)
class Prediction:
    """What was found.

    Args:
        work: what was measured.
        peers: the names of the peers, with their versions.
        times: of all sides, in seconds.
        first: of each side, the seconds of processor time from reading the model to the first outputs, so with a
            session, or a predictor and its plan, but without imports at the start of its program; NaN: not known.
        whole: likewise from the start of the process.
        apart: the largest difference between our outputs and those of a peer, relative to the largest value.
        plain: types of the nodes that ONNX's reference implementation runs on our side.
    """

    work: Work
    peers: Sequence[str]
    times: Comparison
    first: Sequence[float]
    whole: Sequence[float]
    apart: float
    plain: Sequence[str] = ()

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
            digits = 1 if seconds >= 0.01 else 4
            each.append(f"{name} {1e3 * seconds:.{digits}f} ms ({work.batch / seconds:.4g} inputs/s)")
        line = (
            f"{work.name}, {counted(len(self.times.ours), 'pair')}: "
            f"{', '.join(each)}; {self.times.ratio:.2f} x as fast{as_which(self.times, self.peers)} "
            f"(pairs {low:.2f} to {high:.2f}); first outputs in {self.first[0] / self.first[1]:.2f} of its processor "
            f"time, with imports {self.whole[0] / self.whole[1]:.2f}; "
            f"outputs {self.apart:.1e} apart"
        )
        if self.plain:
            line += f"; run by ONNX's reference implementation: {', '.join(self.plain)}"
        return line if self.good else f"{line}: NOT the same work: differences above {BOUND:.0e} are more than rounding"

    @property
    def record(self) -> dict[str, Any]:
        """The result as a record for JSON."""
        return {
            **self.work.record,
            "sides": ["netbuilder", *self.peers],
            "seconds": [list(seconds) for seconds in (self.times.ours, *self.times.peers)],
            "peer": self.peers[self.times.best],
            "ratio": self.times.ratio,
            "spread": list(self.times.spread),
            "first": list(self.first),
            "whole": list(self.whole),
            "apart": self.apart,
            "plain": list(self.plain),
        }


def predict(
    work: Work,
    pythons: Mapping[str, str],
    *,
    pairs: int,
    steps: int | None = None,
    scripts: Path = Path(__file__).parent,
) -> Prediction:
    """Measure all sides alternately, and compare their outputs.

    A run takes arrays and returns arrays, on all sides; loading and warm-up are not part of it.

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
        work.write(folder)
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
            seconds = [statistics.median(side.run(work.warmup)) for side in sides]
            times = compare(*sides, pairs=pairs, steps=steps or work.steps(min(seconds)))
    first, whole = (
        [float(side.info.get(name, math.nan)) for side in (ours, peers[times.best])] for name in ("first", "whole")
    )
    names = [f"{name} {peer.info['version']}" for name, peer in zip(pythons, peers)]
    return Prediction(work, names, times, first, whole, worst(apart), ours.info["plain"])


def model_files(paths: Sequence[str]) -> list[Path]:
    """Return the models among files and folders.

    Raises:
        ArgumentError: there is none.
    """
    if not paths:
        raise ArgumentError("netbuilder-benchmark models needs --models FILE,FOLDER: ONNX models, or folders of them")
    found = [file for path in map(Path, paths) for file in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]
    missing = [str(file) for file in found if not file.is_file()]
    if missing or not found:
        what = f"no such file: {', '.join(missing)}" if missing else f"no *.onnx in {', '.join(paths)}"
        raise ArgumentError(f"--models: names ONNX models, or folders of them: {what}")
    return found


def summary(found: Sequence[Prediction]) -> Line:
    """Return the line about all models: the median of the ratios, and the least one."""
    ratios = {each.work.record["model"]: each.times.ratio for each in found}
    first = statistics.median(each.first[0] / each.first[1] for each in found)
    whole = statistics.median(each.whole[0] / each.whole[1] for each in found)
    least = min(ratios, key=ratios.__getitem__)
    text = (
        f"{counted(len(found), 'model')}: median {statistics.median(ratios.values()):.2f} x as fast, least "
        f"{ratios[least]:.2f} ({least}); first outputs in {first:.2f} of the peer's processor time, with imports "
        f"{whole:.2f}; "
        f"{sum(each.good for each in found)} with equal outputs, {sum(not each.plain for each in found)} without nodes "
        "run by ONNX's reference implementation"
    )
    return Line(text, {"kind": "models", "ratios": ratios}, all(each.good for each in found))


def failure(model: Model, error: Exception) -> Line:
    """Return the line about a model that a side cannot run."""
    return Line(f"{model.name}: {error}", {**model.record, "error": str(error)}, False)


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


def worst(apart: Sequence[float]) -> float:
    """Return the largest difference; NaN if there is one."""
    return float(np.max(apart))


def difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays relative to the largest element of the second one.

    >>> difference(np.float32([1, 2]), np.float32([1, 4]))
    0.5
    """
    if a.shape != b.shape:
        return float("inf")
    if not a.size:
        return 0.0
    return float(np.abs(a.astype(np.float64) - b).max() / max(np.abs(b.astype(np.float64)).max(), 1e-30))
