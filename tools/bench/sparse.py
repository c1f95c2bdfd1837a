"""The benchmark of sparse sums: SparseLengthsSum and its gradient, compared with PyTorch's embedding_bag."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.bench.pairs import Comparison, Worker, compare
from netbuilder.tools.bench.predict import BOUND, difference

__all__ = ["Sums", "SumsFound", "sparse_sums"]

_PEER = Path(__file__).parent / "peer_sparse.py"


@dataclass(frozen=True)
class Sums:
    """What is measured: gathering rows of a table and summing them by segment, in float32, and the sparse gradient.

    Args:
        threads: of each side.
        rows, width: of the table.
        indices, segments: their numbers.
        backward: whether the gradient is computed too.
    """

    threads: int
    rows: int = 1_000_000
    width: int = 64
    indices: int = 100_000
    segments: int = 10_000
    backward: bool = True


@dataclass(frozen=True)
class SumsFound:
    """Times of both sides, in seconds, and the largest difference of their results relative to the largest value."""

    work: Sums
    version: str
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
        ours, theirs = (1e3 * statistics.median(times) for times in (self.times.ours, self.times.peers[0]))
        line = (
            f"sparse, table {work.rows} x {work.width}, {work.indices} indices, {work.segments} segments, "
            f"{'forward and backward' if work.backward else 'forward'}, threads {work.threads}: "
            f"netbuilder {ours:.2f} ms, torch {self.version} {theirs:.2f} ms; {self.times.ratio:.2f} x as fast "
            f"(pairs {low:.2f} to {high:.2f}); results {self.apart:.1e} apart"
        )
        return line if self.good else f"{line}: NOT the same work: differences above {BOUND:.0e} are more than rounding"

    @property
    def record(self) -> dict[str, Any]:
        """The result as a record for JSON."""
        return {
            "kind": "sparse",
            **dataclasses.asdict(self.work),
            "sides": ["netbuilder", f"torch {self.version}"],
            "seconds": [list(self.times.ours), list(self.times.peers[0])],
            "ratio": self.times.ratio,
            "spread": list(self.times.spread),
            "apart": self.apart,
        }


def sparse_sums(work: Sums, python: str, *, pairs: int, steps: int = 20, script: Path = _PEER) -> SumsFound:
    """Measure both sides alternately, and compare their sums and the values of their sparse gradients.

    Args:
        python: an interpreter that has PyTorch.
        pairs: turns of each side.
        steps: runs per turn.
        script: the peer's program.

    Raises:
        RuntimeError: a side failed; the message has the end of its output.
    """
    # Without OMP_WAIT_POLICY=active: a side that waits must not use the cores of the other.
    env = {**os.environ, "OMP_NUM_THREADS": str(work.threads)}
    own = [sys.executable, "-m", "netbuilder.tools.bench.our_sparse"]
    with tempfile.TemporaryDirectory() as name:
        given = ["3", json.dumps(dataclasses.asdict(work)), name]
        with (
            Worker("torch", [python, str(script), *given], env) as peer,
            Worker("netbuilder", [*own, *given], env) as ours,
        ):
            times = compare(ours, peer, pairs=pairs, steps=steps)
        with np.load(Path(name) / "ours.npz") as a, np.load(Path(name) / "peer.npz") as b:
            apart = max(difference(a[key], b[key]) for key in b.files)
    return SumsFound(work, peer.info["version"], times, apart)
