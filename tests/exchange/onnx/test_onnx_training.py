"""Models that were read are trained: gradients equal PyTorch's, on one device and on two; what was trained exports."""

import functools
import importlib.util
from pathlib import Path

import numpy as np
import pytest

if importlib.util.find_spec("onnx") is None:
    pytest.skip("needs the package onnx", allow_module_level=True)

from netbuilder import ModelHelper, Workspace
from netbuilder.exchange.onnx import read_onnx
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import Parallelize_CPU, RunInitNet, RunNet

FOLDER = Path(__file__).resolve().parents[2] / "recorded" / "onnx"
MODELS = ("vit", "convnext", "efficientnet", "swin", "bert", "gpt2")
LABELS = np.int32([0, 1, 2, 0])


@functools.cache
def recorded(name):
    """Return the input, and PyTorch's loss, scores and gradients by parameter."""
    data = dict(np.load(FOLDER / f"{name}.npz"))
    gradients = {key[2:]: value for key, value in data.items() if key.startswith("d ")}
    return data["x"], float(data["loss"]), data["scores"], gradients


def forward(read, model, loss_scale):
    scores = read.add_to(model)["scores"]
    _, loss = model.net.SoftmaxWithLoss([scores, "label"], ["probabilities", "loss"])
    return [model.Scale(loss, scale=loss_scale)]


def trained(name, devices):
    """Return the model after one step on so many devices, and its workspace."""
    x = recorded(name)[0]
    share = len(x) // devices
    read = read_onnx(FOLDER / f"{name}.onnx", training=True, shapes={"x": (share, *x.shape[1:])})
    assert read.reference_nodes == ()
    model = ModelHelper(name)
    Parallelize_CPU(
        model,
        lambda model: None,
        functools.partial(forward, read),
        optimizer_builder_fun=lambda model: build_sgd(model, 0.0),
        devices=range(devices),
        combine_spatial_bn=devices > 1,
    )
    workspace = Workspace()
    RunInitNet(model, workspace=workspace)
    for i in range(devices):
        part = slice(i * share, (i + 1) * share)
        workspace.feed(f"cpu_{i}/x", x[part])
        workspace.feed(f"cpu_{i}/label", LABELS[part])
    RunNet(model, workspace=workspace)
    return read, workspace


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_those_of_pytorch(name, devices):
    _, loss, _, gradients = recorded(name)
    read, workspace = trained(name, devices)
    losses = [workspace.fetch(f"cpu_{i}/loss") for i in range(devices)]
    assert np.mean(losses) == pytest.approx(loss, rel=1e-5)
    found = {key: workspace.fetch(f"cpu_0/{key}_grad") for key in gradients if key in read.trained}
    assert len(found) > 0.9 * len(gradients)
    largest = max(np.abs(value).max() for value in gradients.values())
    for key, value in found.items():
        np.testing.assert_allclose(value, gradients[key], rtol=1e-3, atol=2e-6 * largest, err_msg=key)
