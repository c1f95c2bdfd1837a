"""Checks that both sides of a benchmark do the same work: equal losses and updates from the same parameters."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.bench.ours import Training, before
from netbuilder.tools.bench.processes import torch_state
from netbuilder.tools.bench.work import MODELS, TASKS, Work

__all__ = ["Agreement", "check", "replay"]

LOSS_BOUND = 1e-3
CHANGE_BOUND = 0.05  # allows for rounding, which normalization over few samples amplifies from step to step


@dataclass(frozen=True)
class Agreement:
    """Differences of the two sides after the same steps.

    Args:
        ours, theirs: the losses, step by step.
        worst_change: for the parameter that differs most, the norm of the difference divided by that of its change.
        worst: name of that parameter.
    """

    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    worst_change: float
    worst: str

    @property
    def loss(self) -> float:
        """The largest difference of losses."""
        return max(abs(a - b) for a, b in zip(self.ours, self.theirs))

    @property
    def holds(self) -> bool:
        """Whether both differences are within their bounds; NaN is not."""
        return self.loss <= LOSS_BOUND and self.worst_change <= CHANGE_BOUND


def check(task: str, python: str, *, threads: int, mode: str = "eager") -> Agreement:
    """Train the small form of a task in PyTorch, then in netbuilder from the same data and parameters.

    Args:
        python: an interpreter that has PyTorch.
        mode: how PyTorch runs, "eager" or "compile".

    Raises:
        DeviceError: "compile" needs a C++ compiler, and there is none.
        RuntimeError: PyTorch failed.
        ArgumentError: the nets have different parameters.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "state.npz")
        work = dataclasses.replace({**TASKS, **MODELS}[task].small, threads=threads, mode=mode)
        torch_state(dataclasses.replace(work, state=file), python)
        with np.load(file) as state:
            return replay(work, state)


def replay(work: Work, state: Mapping[str, Any]) -> Agreement:
    """Train from the parameters of a peer, for as many steps as the peer.

    Args:
        state: ``losses``; ``before_<i>`` and ``after_<i>``, parameter ``i`` before the first step and after the last.
    """
    training = Training(work)
    names = training.parameters()
    first = before(state)
    training.start_from(first)
    losses = []
    for _ in state["losses"]:
        training.step()
        losses.append(training.loss())
    apart = {}
    for i, name in enumerate(names):
        after = state[f"after_{i}"]
        change = max(float(np.linalg.norm(after - first[i])), 1e-6 * after.size**0.5)
        apart[name] = float(np.linalg.norm(training.workspace.fetch(name) - after)) / change
    worst = max(apart, key=lambda name: (np.isnan(apart[name]), apart[name]))
    return Agreement(tuple(losses), tuple(float(x) for x in state["losses"]), apart[worst], worst)
