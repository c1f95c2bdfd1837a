"""Training on a number of devices, and the difference between parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder import parallel
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.runtime import Workspace
from netbuilder.tools.proof.models import ProofModel

__all__ = ["difference", "trained"]

Values = dict[str, Any]

_LEAST = 1e-6  # smallest root mean square of the elements to which differences are relative


def trained(
    model: ProofModel, optimizer: Callable[[ModelHelper], Any], devices: int, *, steps: int = 10, threads: int = 1
) -> Values:
    """Train a model on replicas on the CPU; return its parameters by name, without device prefix.

    Args:
        model: what to train; its batches come from a fixed seed.
        optimizer: adds the updates.
        devices: number of replicas, a divisor of ``SAMPLES``.
        steps: number of batches.
        threads: of the workspace.
    """
    reset_names()
    helper = ModelHelper("proof")
    outside = None if model.outside is None else model.outside(helper)
    record = parallel.Parallelize_CPU(
        helper,
        lambda helper: None,
        lambda helper, loss_scale: model.build(helper, loss_scale, outside),
        optimizer_builder_fun=optimizer,
        devices=list(range(devices)),
        **model.options,
    )
    workspace, rng = Workspace(threads=threads, seed=1), np.random.default_rng(5)
    for step in range(steps):
        for name, whole in model.batch(rng).items():
            for blob, share in zip(record.devices.copies(name), np.split(whole, devices, model.axes.get(name, 0))):
                workspace.feed(blob, np.ascontiguousarray(share))
        if step == 0:
            parallel.RunInitNet(helper, workspace=workspace)
        parallel.RunNet(helper, workspace=workspace)
    names = {name: record.blobs(name)[0] for name in record.parameters}
    names.update((name.rpartition("/")[2], name) for name in record.outside)
    return {name: workspace.fetch(blob) for name, blob in sorted(names.items())}


def difference(got: Sequence[Any], want: Sequence[Any]) -> float:
    """Return ||got - want|| / max(||want||, 1e-6 sqrt(n)) over all arrays together, n being the number of elements.

    >>> difference([np.array([3.0, 4.5])], [np.array([3.0, 4.0])])
    0.1
    """
    a, b = (np.concatenate([np.ravel(x).astype(np.float64) for x in arrays]) for arrays in (got, want))
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), _LEAST * np.sqrt(b.size)))
