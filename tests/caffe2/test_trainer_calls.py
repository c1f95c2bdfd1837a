"""What Caffe2's trainer examples and its benchmark of nets call."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from caffe2.proto import caffe2_pb2
from caffe2.python import brew, convnet_benchmarks, core, data_parallel_model, model_helper, optimizer, workspace
from caffe2.python.models import shufflenet

from house import ROOT
from netbuilder.proto import ArgumentError
from toy_models import softmax_loss

BATCH = 4


def inputs(model):
    assert model._device_type == caffe2_pb2.CPU and model._devices == [0]  # which the trainers read here
    model.param_init_net.GaussianFill([], ["data"], shape=[BATCH, 3, 8, 8])
    model.param_init_net.ConstantFill([], ["label"], shape=[BATCH], value=1, dtype=core.DataType.INT32)


def forward(model, loss_scale):
    blob = brew.conv(model, "data", "conv", 3, 4, 3, pad=1)
    blob = brew.spatial_bn(model, blob, "bn", 4, is_test=False)
    blob = brew.average_pool(model, brew.relu(model, blob, blob), "pool", kernel=8, stride=1)
    loss = softmax_loss(model, brew.fc(model, blob, "fc", 4, 5))
    brew.accuracy(model, ["softmax", "label"], "accuracy")
    return [model.Scale(loss, scale=loss_scale)]


def update(model):
    optimizer.add_weight_decay(model, 1e-4)
    return optimizer.build_multi_precision_sgd(
        model, 0.1, momentum=0.9, nesterov=1, policy="step", stepsize=10, gamma=0.1
    )


def test_a_trainer_on_one_cpu_device():
    scope = {"order": "NCHW", "use_cudnn": True, "cudnn_exhaustive_search": True, "ws_nbytes_limit": 64 << 20}
    model = model_helper.ModelHelper(name="trained", arg_scope=scope)
    data_parallel_model.Parallelize(
        model, input_builder_fun=inputs, forward_pass_builder_fun=forward, optimizer_builder_fun=update,
        devices=[0], rendezvous=None, optimize_gradient_memory=False, use_nccl=False, cpu_device=True, ideep=False,
        shared_model=True, combine_spatial_bn=True,
    )  # fmt: skip
    data_parallel_model.OptimizeGradientMemory(model, {}, set(), False)
    assert any(name.endswith("_shared") for op in model.net.Proto().op for name in op.output)
    workspace.RunNetOnce(model.param_init_net)
    workspace.CreateNet(model.net)
    losses = []
    for _ in range(4):
        workspace.RunNet(model.net.Proto().name)
        losses.append(float(workspace.FetchBlob("cpu_0/loss")))
    assert losses[-1] < losses[0]
    rate = workspace.FetchBlob(data_parallel_model.GetLearningRateBlobNames(model)[0])
    np.testing.assert_allclose(np.abs(rate), 0.1, rtol=1e-6)


def test_gradient_memory_wants_a_model():
    with pytest.raises(ArgumentError, match="model must be a ModelHelper, got 'model'"):
        data_parallel_model.OptimizeGradientMemory("model", {}, set(), False)


# Generator -> (size of the input, operators of the forward pass with the loss, parameters), as Caffe2's have.
SIZES = {
    "AlexNet": (224, 21, 16), "OverFeat": (231, 21, 16), "VGGA": (224, 29, 22), "Inception": (224, 141, 116),
    "MLP": (256, 64, 122),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_nets_of_the_benchmark(name):
    model, size = convnet_benchmarks.GENERATORS[name]("NCHW", None)
    assert (size, len(model.net.Proto().op), len(model.params)) == SIZES[name]
    assert [op.type for op in model.net.Proto().op][-2:] == ["LabelCrossEntropy", "AveragedLoss"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("extra", [[], ["--forward_only", "--layer_wise_benchmark"]])
def test_the_benchmark_runs(extra, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [
        "convnet_benchmarks", "--model", "MLP", "--batch_size", "2", "--cpu", "--iterations", "1",
        "--warmup_iterations", "0", *extra,
    ])  # fmt: skip
    assert convnet_benchmarks.main() == 0
    out = capsys.readouterr().out
    assert "Main run finished. Milliseconds per iter: " in out
    assert ("xent = LabelCrossEntropy(last, label" in out) is bool(extra)
    assert ("forward only" in out) is bool(extra)


def test_an_unknown_net_of_the_benchmark(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["convnet_benchmarks", "--model", "LeNet"])
    assert convnet_benchmarks.main() == 2
    assert "'LeNet' is not supported" in capsys.readouterr().err
    assert caffe2_pb2.CPU == 0


def test_shufflenet_is_the_same_net():
    """The digest is of Caffe2's operators (PyTorch 1.10), with inputs and first output."""
    model = model_helper.ModelHelper(name="shufflenet", arg_scope={"order": "NCHW"})
    shufflenet.create_shufflenet(model, "data", 3, 10, label="label")
    lines = [f"{op.type} {' '.join(op.input)} > {op.output[0]}" for op in model.net.Proto().op]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == "71ad5cbc087a73b6"
    assert len(model.params) == 222


def test_shufflenet_with_detection_units_runs():
    model = model_helper.ModelHelper(name="shufflenet", arg_scope={"order": "NCHW"})
    builder = shufflenet.ShuffleNetV2Builder(model, "data", 3, 10, width="0.5x", detection=True)
    builder.create()
    assert builder.output_channels == [24, 48, 96, 192, 1024] and str(builder.last_out) == "last_out_L10"
    workspace.RunNetOnce(model.param_init_net)
    workspace.FeedBlob("data", np.ones((1, 3, 224, 224), np.float32))
    workspace.RunNetOnce(model.net)
    assert workspace.FetchBlob("last_out_L10").shape == (1, 10)
    with pytest.raises(ValueError, match="width must be one of .*, got '3x'"):
        shufflenet.ShuffleNetV2Builder(model, "data", 3, 10, width="3x")


def test_old_names_of_numpy_are_there_in_scripts():
    code = "import numpy as np; print(np.asscalar(np.ones((1, 1))), np.zeros(1, np.int).dtype, np.float is float)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "netbuilder.caffe2", "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "1.0 int64 True\n", done.stderr
