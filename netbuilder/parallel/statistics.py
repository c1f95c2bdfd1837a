"""Statistics of batch normalization for parameters that no step has trained with, such as averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed import ProcessGroup
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.input import prefetch
from netbuilder.parallel.running import CreateNet, RunNet
from netbuilder.parallel.shares import share_sizes
from netbuilder.proto import NetError
from netbuilder.proto.arguments import set_argument
from netbuilder.runtime import Workspace, default

__all__ = ["estimate_statistics"]


def estimate_statistics(
    model: ModelHelper,
    batches: Iterable[Mapping[str, Any]],
    *,
    blobs: Sequence[str],
    group: ProcessGroup | None = None,
    workspace: Workspace | None = None,
) -> int:
    """Set the running means and variances of a model to the means of those of batches.

    Each batch is normalized by its own; each device's share of it counts by its number of samples. Weights that are
    averages need this: the running statistics are those of activations that other weights have computed.

    Args:
        model: the forward pass in test mode, made by ``Parallelize`` over this process's devices with
            ``weighted_shares``; for this purpose only, as its normalizations are changed to those of training. Its net
            is created by this function.
        batches: this process's samples, in random order, by the names of the inputs.
        blobs: names of the inputs, without the replicas' scopes.
        group: the processes whose batches count together; None: this one alone.
        workspace: has the parameters; None: the current default one.

    Returns:
        The number of samples of all processes; 0 if nothing is normalized over batches, and ``batches`` is not read.

    Raises:
        NetError: there are no samples.

    Source: Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018,
    arXiv:1803.05407, section 3.2.
    """
    workspace, group = workspace or default.workspace(), group or ProcessGroup()
    names = _normalize_by_batches(model)
    if not names:
        return 0
    devices = Replicas.load(model.net.Proto()).devices
    CreateNet(model, workspace=workspace)
    sums: dict[str, Any] = dict.fromkeys(names, 0.0)
    seen = 0
    with prefetch(model, batches, blobs=blobs, workspace=workspace) as given:
        for batch in given:
            RunNet(model, 1, workspace=workspace)
            samples = len(batch[blobs[0]])
            for scope, share in zip(devices.scopes, share_sizes(samples, len(devices.scopes))):
                for name in names if share else ():
                    sums[name] = sums[name] + share * workspace.fetch(scope + name).astype(np.float64)
            seen += samples
    (whole,) = group.sum(seen)
    if not whole:
        raise NetError(f"model {model.name!r}: there are no samples to estimate its running statistics from")
    for name in names:
        shape = workspace.fetch(devices.scopes[0] + name).shape
        mean = group.allreduce(np.zeros(shape) + sums[name]) / whole
        for scope in devices.scopes:
            workspace.feed(scope + name, mean.astype(np.float32))
    return int(whole)


def _normalize_by_batches(model: ModelHelper) -> list[str]:
    """Let batches be normalized by their own statistics, to which they set the running ones.

    Returns:
        The names of these, without the replicas' scopes.
    """
    net = model.net.Proto()
    scopes = Replicas.load(net).devices.scopes
    found: dict[str, None] = {}
    for op in net.op:
        if op.type == "SpatialBN":
            running = list(op.input[3:5])
            set_argument(op, "is_test", 0)
            set_argument(op, "momentum", 0.0)
            op.output[1:] = [*running, *(f"{name}_of_batch" for name in running)]
            for name in running:
                found[next(name.removeprefix(scope) for scope in scopes if name.startswith(scope))] = None
    return [*found]
