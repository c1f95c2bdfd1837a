"""Models that were read are trained: gradients equal PyTorch's, on one device and on two; what was trained exports."""

import functools
import importlib.util
from pathlib import Path

import numpy as np
import pytest

if importlib.util.find_spec("onnx") is None:
    pytest.skip("needs the package onnx", allow_module_level=True)

import onnx

from netbuilder import ModelHelper, Workspace
from netbuilder.exchange.onnx import ReferenceNodeWarning, onnx_model, read_onnx
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import Parallelize_CPU, RunInitNet, RunNet
from netbuilder.proto import NetError

FOLDER = Path(__file__).resolve().parents[2] / "recorded" / "onnx"
MODELS = ("vit", "convnext", "efficientnet", "swin", "bert", "gpt2", "qwen3", "gemma3", "segformer")
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
    assert read.reference_nodes == {}
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


@pytest.mark.one_in(2)
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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", MODELS)
def test_what_was_trained_is_exported(name):
    """After a step, the net in test mode is an ONNX model again, with the parameters of the step."""
    x = recorded(name)[0]
    read = read_onnx(FOLDER / f"{name}.onnx", training=True, shapes={"x": x.shape})
    model = ModelHelper(name)
    (loss,) = forward(read, model, 1.0)
    model.AddGradientOperators([loss])
    build_sgd(model, 0.01)
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    workspace.feed("x", x)
    workspace.feed("label", LABELS)
    workspace.run_net(workspace.create_net(model.net))
    net = read.in_test_mode().net
    parameters = {blob: workspace.fetch(blob) for blob in read.parameters}
    shapes = {"x": TensorSpec(x.shape, x.dtype)}
    again = onnx_model(net, parameters, shapes=shapes, outputs=["scores"], dynamic_batch=False)
    workspace.run_net_once(net)
    want = workspace.fetch("scores")
    assert np.abs(want - recorded(name)[2]).max() > 1e-3
    session = pytest.importorskip("onnxruntime").InferenceSession(again.SerializeToString())
    for scores in (session.run(None, {"x": x})[0], read_onnx(again, reference=False).predictor().run(x=x)["scores"]):
        np.testing.assert_allclose(scores, want, rtol=1e-3, atol=1e-5 * np.abs(want).max())


def test_frozen_parameters():
    read = read_onnx(FOLDER / "gpt2.onnx", training=True, shapes={"x": (4, 6)})
    model = ModelHelper("gpt2")
    read.add_to(model, frozen=["body.h.0.*", "body.wte.*"])
    trained = {str(name) for name in model.params}
    assert "head.weight" in trained and not any(name.startswith("body.h.0.") for name in trained)
    assert "body.wte.weight" in {str(name) for name in model.GetComputedParams()}
    with pytest.raises(NetError, match="frozen: 'body.q.*' fits none of the parameters"):
        read.add_to(ModelHelper("other"), frozen=["body.q.*"])


def test_a_model_with_reference_nodes_cannot_be_trained():
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 2))
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ())
    graph = onnx.helper.make_graph([onnx.helper.make_node("Det", ["x"], ["y"])], "g", [x], [y])
    with pytest.warns(ReferenceNodeWarning, match="Det"):
        read = read_onnx(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9))
    with pytest.raises(NetError, match="'g' cannot be trained: nodes of the types Det run in ONNX's reference"):
        read.add_to(ModelHelper("g"))
