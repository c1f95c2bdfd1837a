"""Statistics of batch normalization for parameters that no step has trained with, such as averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    group: ProcessGroup | None = None,
    workspace: Workspace | None = None,
) -> int:
    """Set running means and variances to the means of those of batches, which the parameters as they are normalize.

    Each device's share of a batch counts by its number of samples. Weights that are averages need this: the running
    statistics are those of activations that other weights have computed.

    Args:
        model: the forward pass in training mode, made by ``Parallelize`` over this process's devices, with
            ``weighted_shares`` and without updates. Its net is created by this function.
        batches: by the names of the inputs, this process's samples, in random order.
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
    names = _momentum_of_zero(model)
    if not names:
        return 0
    devices = Replicas.load(model.net.Proto()).devices
    CreateNet(model, workspace=workspace)
    sums: dict[str, Any] = dict.fromkeys(names, 0.0)
    seen, read = 0, iter(batches)
    first = next(read, None)
    blobs = [] if first is None else [*first]
    with prefetch(model, _again(first, read), blobs=blobs, workspace=workspace) as given:
        for batch in given:
            RunNet(model, 1, workspace=workspace)
            samples = len(next(iter(batch.values())))
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


def _again(first: Mapping[str, Any] | None, rest: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    if first is not None:
        yield first
        yield from rest


def _momentum_of_zero(model: ModelHelper) -> list[str]:
    """Let each batch set the running statistics to its own; return their names, without the replicas' scopes."""
    net = model.net.Proto()
    scopes = Replicas.load(net).devices.scopes
    found = {}
    for op in net.op:
        if op.type == "SpatialBN":
            set_argument(op, "momentum", 0.0)
            for name in op.output[1:3]:
                found[next(name.removeprefix(scope) for scope in scopes if name.startswith(scope))] = None
    return [*found]
