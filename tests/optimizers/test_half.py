"""Nets in float16: they train as float32 ones do, masters take what float16 would lose, and refusals."""

import numpy as np
import pytest

from netbuilder.data.digit_images import digits
from netbuilder.graph import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.model.initializers import PseudoFP16Initializer, ReversePseudoFP16Initializer
from netbuilder.optimizers import (
    build_fp16_sgd,
    build_multi_precision_sgd,
    build_sgd,
    reset_optimizer_instance_count,
)
from netbuilder.parallel import Parallelize
from netbuilder.proto import ArgumentError, GradientError, ShapeError, TensorProto
from netbuilder.runtime import Workspace
from toy_models import scaled_loss, softmax_loss

BATCH, STEPS = 50, 100
FIRST = 1000  # images to train with; the others test


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process():
    reset_optimizer_instance_count()


def convnet(model, initializer=None, is_test=False):
    """Two convolutions, of which the second ends in a sum, and two layers; in float16 if there is an initializer."""
    given = {"WeightInitializer": initializer, "BiasInitializer": initializer} if initializer else {}
    blob = model.net.FloatToHalf("data", "data_fp16") if initializer else "data"
    brew.conv(model, blob, "conv1", 1, 4, 3, pad=1, **given)
    brew.spatial_bn(model, "conv1", "bn1", 4, is_test=is_test)
    brew.relu(model, "bn1", "bn1")
    brew.max_pool(model, "bn1", "pool1", kernel=2, stride=2)
    brew.conv(model, "pool1", "conv2", 4, 4, 3, pad=1, **given)
    brew.sum(model, ["conv2", "pool1"], "sum2")
    brew.fc(model, "sum2", "fc4", 4 * 16, 32, **given)
    brew.dropout(model, "fc4", "drop4", ratio=0.05, is_test=is_test)
    brew.relu(model, "drop4", "relu4")
    brew.fc(model, "relu4", "fc5", 32, 10, **given)
    return model.net.HalfToFloat("fc5", "fc5_fp32") if initializer else "fc5"


def trained(initializer, build):
    """Return the workspace of a trained net, and its share of right answers on images that it has not seen."""
    model = ModelHelper("train")
    model.AddGradientOperators([softmax_loss(model, convnet(model, initializer))])
    build(model, 0.05, momentum=0.9, policy="step", stepsize=60, gamma=0.1)  # it settles in the end
    test = ModelHelper("test", init_params=False)
    test.net.Softmax(convnet(test, initializer, is_test=True), "answer")

    images, labels = shuffled_digits()
    workspace = Workspace()
    workspace.feed("data", images[:BATCH])
    workspace.feed("label", labels[:BATCH])
    workspace.run_net_once(model.param_init_net)
    start_alike(model, workspace)
    workspace.create_net(model.net, observable="all")
    for step in range(STEPS):
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % FIRST
        workspace.feed("data", images[rows])
        workspace.feed("label", labels[rows])
        workspace.run_net(model.net)
    workspace.feed("data", images[FIRST:])
    workspace.run_net_once(test.net)
    right = workspace.fetch("answer").argmax(axis=1) == labels[FIRST:]
    return workspace, right.mean()


def shuffled_digits():
    images, labels = digits()
    order = np.random.default_rng(5).permutation(len(images))
    images = images.reshape(-1, 1, *images.shape[-2:]).astype(np.float32)
    return images[order] / images.max(), labels[order].astype(np.int32)


def start_alike(model, workspace):
    """Draw weights that do not depend on the type of the net."""
    rng = np.random.default_rng(6)
    for name in ("conv1_w", "conv2_w", "fc4_w", "fc5_w"):
        shape = model.get_param_info(BlobReference(name)).shape
        value = rng.uniform(-1, 1, shape).astype(np.float32) * np.float32(np.sqrt(3 / np.prod(shape[1:])))
        if workspace.fetch(name).dtype == np.float16:
            workspace.feed(name + "_fp32", value)
            value = value.astype(np.float16)
        workspace.feed(name, value)


@pytest.mark.slow
def test_a_float16_convnet_trains_as_well_as_a_float32_one():
    _, single = trained(None, build_sgd)
    workspace, mixed = trained(PseudoFP16Initializer, build_multi_precision_sgd)
    _, half = trained(PseudoFP16Initializer, build_fp16_sgd)
    assert single > 0.9
    assert mixed >= single - 0.01 and half >= single - 0.01, (single, mixed, half)
    for name in ("conv1_w", "conv2_w_grad", "sum2", "pool1", "fc5", "relu4_grad"):
        assert workspace.fetch(name).dtype == np.float16, name
    for name in ("fc4_w", "conv1_b"):
        master = workspace.fetch(name + "_fp32")
        assert master.dtype == np.float32
        np.testing.assert_array_equal(workspace.fetch(name), master.astype(np.float16))


def one_layer(initializer=PseudoFP16Initializer, name="model"):
    model = ModelHelper(name)
    brew.fc(model, "x", "y", 2, 1, ("ConstantFill", {"value": 1.0}), WeightInitializer=initializer)
    return model


def test_masters_keep_steps_that_float16_loses():
    """1 - 1e-4 rounds to 1 in float16: without a master the weight would never move."""
    model = ModelHelper("model")
    fill = ("ConstantFill", {"value": 1.0})
    given = {"WeightInitializer": PseudoFP16Initializer, "BiasInitializer": PseudoFP16Initializer}
    brew.fc(model, "x", "y", 2, 1, fill, **given)
    model.AddGradientOperators({"y": "y_grad"})
    optimizer = build_multi_precision_sgd(model, 1e-4)
    workspace = Workspace()
    workspace.feed("x", np.ones((1, 2), np.float16))
    workspace.feed("y_grad", np.ones((1, 1), np.float16))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    for _ in range(20):
        workspace.run_net(model.net)
    np.testing.assert_allclose(workspace.fetch("y_w_fp32"), 1 - 20e-4, 1e-6)
    np.testing.assert_array_equal(workspace.fetch("y_w"), np.float16(1 - 20e-4))
    kept = {str(blob) for blob in optimizer.get_auxiliary_parameters().local}
    assert kept == {"y_w_momentum", "y_w_fp32", "y_b_momentum", "y_b_fp32"}


def test_parameters_and_their_masters():
    model = one_layer()
    assert [str(p) for p in model.GetParams()] == ["y_w", "y_b"]
    assert model.get_param_info(BlobReference("y_w")).blob_copy == {TensorProto.FLOAT: "y_w_fp32"}
    assert model.get_param_info(BlobReference("y_b")).blob_copy is None


@pytest.mark.parametrize("first", ["half", "single"])
@pytest.mark.parametrize("clip", [{}, {"max_gradient_norm": 1e9}])
def test_without_momentum_all_parameters_go_downhill(first, clip):
    model = ModelHelper("model")
    fills = {"weight_init": ("ConstantFill", {"value": 1.0}), "bias_init": ("ConstantFill", {"value": 1.0})}
    given = {"WeightInitializer": PseudoFP16Initializer, "BiasInitializer": PseudoFP16Initializer}

    def half():
        model.net.HalfToFloat(brew.fc(model, "h", "half", 1, 1, **fills, **given), "half32")

    def single():
        brew.fc(model, "x", "single", 1, 1, **fills)

    for add in (half, single) if first == "half" else (single, half):
        add()
    loss = model.net.AveragedLoss(model.net.Add(["half32", "single"], "sum"), "loss")
    model.AddGradientOperators([loss])
    build_multi_precision_sgd(model, 0.25, **clip)
    workspace = Workspace()
    workspace.feed("h", np.ones((1, 1), np.float16))
    workspace.feed("x", np.ones((1, 1), np.float32))
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    assert {workspace.fetch(name).item() for name in ("half_w", "half_b", "single_w", "single_b")} == {0.75}


def test_replicas_agree_with_one_device():
    images = np.random.default_rng(3).standard_normal((8, 1, 8, 8)).astype(np.float32)
    given = {"WeightInitializer": PseudoFP16Initializer, "BiasInitializer": PseudoFP16Initializer}

    def forward(model, loss_scale):
        half = model.net.FloatToHalf("data", "half")
        brew.conv(model, half, "conv", 1, 4, 3, **given)
        brew.fc(model, brew.relu(model, "conv", "conv"), "fc", 4 * 36, 5, **given)
        single = model.net.HalfToFloat("fc", "single")
        return scaled_loss(model, single, loss_scale)

    found = []
    for count in (1, 2, 4):
        reset_optimizer_instance_count()
        model = ModelHelper(f"model{count}")
        Parallelize(
            model,
            lambda model: None,
            forward,
            optimizer_builder_fun=lambda model: build_multi_precision_sgd(model, 0.1, momentum=0.9),
            devices=list(range(count)),
            cpu_device=True,
        )
        workspace = Workspace()
        workspace.run_net_once(model.param_init_net)
        scopes = [f"cpu_{i}/" for i in range(count)]
        for scope, x, y in zip(scopes, np.split(images, count), np.split(np.arange(8) % 5, count)):
            workspace.feed(scope + "data", x)
            workspace.feed(scope + "label", y.astype(np.int32))
        workspace.create_net(model.net)
        for _ in range(3):
            workspace.run_net(model.net)
        for name in ("conv_w", "conv_w_fp32", "fc_b", "fc_w_fp32"):
            values = [workspace.fetch(scope + name) for scope in scopes]
            assert all((value == values[0]).all() for value in values), name
        found.append(workspace.fetch("cpu_0/fc_w_fp32"))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], 0, 2e-3)


class TestRefusals:
    def test_a_copy_is_no_master(self):
        model = one_layer(ReversePseudoFP16Initializer)
        model.AddGradientOperators({"y": "y_grad"})
        with pytest.raises(ArgumentError, match="'?y_w'? has no float32 master copy; create it with PseudoFP16"):
            build_multi_precision_sgd(model, 0.1)

    def test_weight_decay(self):
        model = one_layer()
        model.AddGradientOperators({"y": "y_grad"})
        with pytest.raises(ArgumentError, match="weight_decay must be a number of at least 0, got -1"):
            build_fp16_sgd(model, 0.1, weight_decay=-1)
        with pytest.raises(ArgumentError, match="not supported: {'sparse_dedup_aggregator': 'sum'}"):
            build_fp16_sgd(model, 0.1, sparse_dedup_aggregator="sum")

    def test_sparse_gradients(self):
        model = ModelHelper("model")
        table = model.param_init_net.UniformFill([], "table", shape=[4, 2])
        model.AddParameter(table)
        model.AddGradientOperators([model.net.AveragedLoss(model.net.Gather([table, "i"], "rows"), "loss")])
        with pytest.raises(GradientError, match="FP16SgdOptimizer: supports only dense gradients"):
            build_fp16_sgd(model, 0.1)

    def test_types_that_do_not_fit(self):
        """A parameter filled in float16 has no master: its update in float32 says what to do."""
        model = ModelHelper("model")
        brew.fc(model, "x", "y", 2, 1, ("Float16UniformFill", {}), ("Float16ConstantFill", {}))
        model.AddGradientOperators({"y": "y_grad"})
        build_fp16_sgd(model, 0.1)
        workspace = Workspace()
        workspace.feed("x", np.ones((1, 2), np.float16))
        workspace.feed("y_grad", np.ones((1, 1), np.float16))
        workspace.run_net_once(model.param_init_net)
        with pytest.raises(
            ShapeError, match="grad must have elements of type float32, got float16; create .* PseudoFP16Initializer"
        ):
            workspace.run_net_once(model.net)
