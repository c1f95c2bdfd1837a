"""Prefetched batches split over replicas, and losses read as means over them: against feeding and fetching."""

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace
from netbuilder.model import brew
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import Parallelize_CPU, RunInitNet, RunNet, loss_reader, prefetch
from netbuilder.proto import NetError, ShapeError
from netbuilder.zoo import create_mlp

F32 = np.float32


def batches(count=6, samples=12):
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield {"data": rng.standard_normal((samples, 6)), "label": rng.integers(0, 4, samples)}


def parallel_model(devices, net_type):
    def forward(model, loss_scale):
        softmax, loss = create_mlp(model, "data", [6, 16, 4], label="label")
        brew.accuracy(model, [softmax, "label"], "accuracy")
        return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]

    model = ModelHelper(name="parallel")
    Parallelize_CPU(
        model, lambda model: None, forward, None, lambda model: build_sgd(model, 0.1, momentum=0.9), devices=devices,
        net_type=net_type,
    )  # fmt: skip
    return model


@pytest.mark.one_in(3)
@pytest.mark.parametrize("net_type", ["simple", "dag"])
@pytest.mark.parametrize("devices", [[0], [0, 1], [0, 1, 2]])
def test_training_is_the_same_to_the_bit(devices, net_type):
    found = []
    for beside in (False, True):
        model, workspace = parallel_model(devices, net_type), Workspace(threads=3)
        first = next(batches())
        share = 12 // len(devices)
        for k, device in enumerate(devices):
            for name, dtype in {"data": F32, "label": np.int32}.items():
                workspace.feed(f"cpu_{device}/{name}", first[name][k * share : (k + 1) * share].astype(dtype))
        RunInitNet(model, workspace=workspace)
        losses = []
        if beside:
            reader = loss_reader(model, ["loss", "accuracy"], workspace=workspace)
            dtypes = {"data": F32, "label": np.int32}
            with prefetch(model, batches(), blobs=["data", "label"], dtypes=dtypes, workspace=workspace) as input:
                for _ in input:
                    RunNet(model, wait=False, workspace=workspace)
                    losses.append(reader.read())
            losses = [*losses[1:], reader.last()]
            assert reader.last() is None
        else:
            for batch in batches():
                for k, device in enumerate(devices):
                    part = slice(k * share, (k + 1) * share)
                    workspace.feed(f"cpu_{device}/data", batch["data"][part].astype(F32))
                    workspace.feed(f"cpu_{device}/label", batch["label"][part].astype(np.int32))
                RunNet(model, workspace=workspace)
                means = {
                    name: float(np.mean([workspace.fetch(f"cpu_{device}/{name}") for device in devices]))
                    for name in ("loss", "accuracy")
                }
                losses.append(means)
        found.append((losses, {b: workspace.fetch(b) for b in map(str, model.GetParams())}))
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        np.testing.assert_array_equal(value, found[1][1][name])


def test_batches_that_the_replicas_cannot_share():
    model, workspace = parallel_model([0, 1], "dag"), Workspace()
    with prefetch(model, batches(1, 5), blobs=["data", "label"], workspace=workspace) as input:
        with pytest.raises(ShapeError, match=r"'data' of shape \(5, 6\) has 5 samples along axis 0, which cannot"):
            next(input)
    with prefetch(model, batches(1, 5), blobs=["cpu_0/data", "label"], even=False, workspace=workspace) as input:
        next(input)
    assert workspace.fetch("cpu_1/data").shape == (2, 6)


def test_a_model_that_is_not_parallel():
    model = ModelHelper(name="alone")
    for make in (lambda: prefetch(model, [], blobs=["data"]), lambda: loss_reader(model, ["loss"])):
        with pytest.raises(NetError, match="has no record of replicas"):
            make()
