"""Running statistics estimated for parameters: against NumPy, over devices and processes; errors."""

import numpy as np
import pytest

from netbuilder.distributed import ProcessGroup
from netbuilder.model import ModelHelper, brew
from netbuilder.parallel import Parallelize_CPU, estimate_statistics
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from thread_ranks import on_ranks, thread_worlds

EPSILON = 1e-5


def built(devices=1, normal=True):
    """A model with two normalizations, one of the other's results, and its workspace."""
    model, workspace = ModelHelper("forward", arg_scope={"order": "NCHW"}, init_params=False), Workspace()

    def forward(model, loss_scale):
        x = "data"
        if normal:
            x = brew.spatial_bn(model, "data", "a", 3, is_test=True, momentum=0.7, epsilon=EPSILON)
            x = brew.spatial_bn(model, model.net.Sigmoid(x, "s"), "b", 3, is_test=True, epsilon=EPSILON)
        brew.fc(model, x, "scores", 3 * 4, 2)
        return []

    Parallelize_CPU(model, lambda model: None, forward, devices=range(devices), weighted_shares=True)
    shapes = {"scores_w": (2, 12), "scores_b": (2,)}
    for blob in (*model.GetParams(""), *model.GetComputedParams("")):
        name = str(blob).rpartition("/")[2]
        fill = np.zeros if name.endswith(("_b", "_rm")) else np.ones
        workspace.feed(str(blob), fill(shapes.get(name, (3,)), np.float32))
    return model, workspace


def drawn(*sizes):
    rng = np.random.default_rng(0)
    return [{"data": rng.normal(2, 3, (size, 3, 2, 2)).astype(np.float32)} for size in sizes]


def want(shares):
    """Means and unbiased variances of both layers, weighted by the samples."""
    found = dict.fromkeys(("a_rm", "a_riv", "b_rm", "b_riv"), 0.0)
    for x in shares:
        for layer in "ab":
            mean, var, count = x.mean((0, 2, 3)), x.var((0, 2, 3)), x.size // 3
            found[f"{layer}_rm"] += len(x) * mean
            found[f"{layer}_riv"] += len(x) * var * count / (count - 1)
            x = (x - mean[:, None, None]) / np.sqrt(var + EPSILON)[:, None, None]
            x = 1 / (1 + np.exp(-x))
    return {name: value / sum(map(len, shares)) for name, value in found.items()}


@pytest.mark.parametrize("devices", [1, 2])
def test_they_are_the_means_of_those_of_the_shares(devices):
    model, workspace = built(devices)
    batches = drawn(6, 6, 3, 1)
    assert estimate_statistics(model, batches, blobs=["data"], workspace=workspace) == 16
    parts = [part for batch in batches for part in np.array_split(batch["data"].astype(np.float64), devices)]
    for name, value in want([part for part in parts if len(part)]).items():
        for device in range(devices):
            np.testing.assert_allclose(workspace.fetch(f"cpu_{device}/{name}"), value, rtol=1e-5, err_msg=name)


def test_batches_of_processes_count_together():
    worlds, batches = thread_worlds(2), [drawn(6, 4), drawn(5)]

    def estimated(rank):
        model, workspace = built()
        group = ProcessGroup.over(worlds[rank])
        count = estimate_statistics(model, batches[rank], blobs=["data"], workspace=workspace, group=group)
        return count, {name: workspace.fetch(f"cpu_0/{name}") for name in ("a_rm", "a_riv", "b_rm", "b_riv")}

    whole = want([batch["data"].astype(np.float64) for part in batches for batch in part])
    for count, found in on_ranks(2, estimated):
        assert count == 15
        for name, value in whole.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


def test_nothing_to_estimate_and_nothing_to_estimate_from():
    model, workspace = built(normal=False)
    assert estimate_statistics(model, iter(()), blobs=["data"], workspace=workspace) == 0
    model, workspace = built()
    with pytest.raises(NetError, match="'forward': there are no samples to estimate its running statistics from"):
        estimate_statistics(model, [], blobs=["data"], workspace=workspace)
