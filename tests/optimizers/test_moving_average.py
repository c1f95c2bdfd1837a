"""Moving averages of parameters: their numbers, on one device and several; errors."""

import numpy as np
import pytest

from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import add_moving_averages, build_adam, build_sgd, build_yellowfin, moving_averages
from netbuilder.parallel import (
    GetCheckpointParams,
    GetLearningRateBlobNames,
    Parallelize_CPU,
    Parallelize_GPU,
    RunInitNet,
    RunNet,
    feed_shares,
)
from netbuilder.proto import PROTO_CUDA, ArgumentError, NetError
from netbuilder.runtime import Workspace
from toy_models import scaled_loss


def forward(model, loss_scale=1.0):
    normal = brew.spatial_bn(model, "data", "bn", 3, is_test=False)
    scores = brew.fc(model, normal, "scores", 3 * 4, 2)
    return scaled_loss(model, scores, loss_scale)


def batch(rng):
    return {
        "data": rng.standard_normal((6, 3, 2, 2)).astype(np.float32),
        "label": rng.integers(0, 2, 6).astype(np.int32),
    }


def update(model, decay=0.75):
    build_sgd(model, 0.2, momentum=0.5)
    add_moving_averages(model, decay)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("micro", [1, 3])
def test_each_step_moves_the_average_towards_the_parameter(devices, micro):
    model, workspace, rng = ModelHelper("averaged"), Workspace(seed=2), np.random.default_rng(0)
    Parallelize_CPU(
        model, lambda model: None, forward, optimizer_builder_fun=update, devices=range(devices),
        weighted_shares=True, accumulate_steps=micro,
    )  # fmt: skip
    names = {name: average for name, average in moving_averages(model).items() if name.startswith("cpu_0/")}
    assert sorted(name.removeprefix("cpu_0/") for name in names) == [
        "bn_b", "bn_riv", "bn_rm", "bn_s", "scores_b", "scores_w",
    ]  # fmt: skip
    want = {}
    for _ in range(4):
        for _ in feed_shares(model, batch(rng), workspace=workspace):
            if not want:
                RunInitNet(model, workspace=workspace)
                want = {name: workspace.fetch(name).astype(np.float64) for name in names}
                for name, average in names.items():
                    np.testing.assert_array_equal(workspace.fetch(average), want[name])
            RunNet(model, workspace=workspace)
        for name, average in names.items():
            want[name] = 0.75 * want[name] + 0.25 * workspace.fetch(name)
            np.testing.assert_allclose(workspace.fetch(average), want[name], rtol=1e-5, atol=1e-7, err_msg=name)
            for other in range(1, devices):
                copy = average.replace("cpu_0", f"cpu_{other}")
                np.testing.assert_array_equal(workspace.fetch(copy), workspace.fetch(average), err_msg=name)
    stored = {str(blob) for blob in GetCheckpointParams(model)}
    assert stored.issuperset(names.values())
    assert not [blob for blob in stored if "moving_average_" in blob]  # its constants need not be stored


@pytest.mark.one_in(2)
@pytest.mark.parametrize("build", [build_sgd, build_adam, build_yellowfin])
@pytest.mark.parametrize(("devices", "micro"), [(1, 1), (2, 1), (2, 2)])
def test_equal_weights_from_a_step_on(build, devices, micro):
    model, workspace, rng = ModelHelper("averaged"), Workspace(seed=2), np.random.default_rng(0)

    def update(model):
        build(model, 0.05)
        add_moving_averages(model, None, first_step=2)

    Parallelize_CPU(
        model, lambda model: None, forward, optimizer_builder_fun=update, devices=range(devices),
        weighted_shares=True, accumulate_steps=micro,
    )  # fmt: skip
    names = {name: average for name, average in moving_averages(model).items() if name.startswith("cpu_0/")}
    history = {name: [] for name in names}
    RunInitNet(model, workspace=workspace)
    for number in range(6):
        for _ in feed_shares(model, batch(rng), workspace=workspace):
            RunNet(model, workspace=workspace)
        for name, average in names.items():
            history[name].append(workspace.fetch(name).astype(np.float64))
            want = np.mean(history[name][2:], axis=0) if number >= 2 else history[name][-1]
            np.testing.assert_allclose(workspace.fetch(average), want, rtol=1e-5, atol=1e-7, err_msg=name)
    stored = {str(blob) for blob in GetCheckpointParams(model)}
    assert stored.issuperset(names.values())
    if build is not build_yellowfin:  # whose rate is a blob of its own
        assert not [name for name in GetLearningRateBlobNames(model) if "average" in name]


def test_a_model_on_one_device_without_replicas():
    model, workspace = ModelHelper("plain"), Workspace()
    loss = model.net.AveragedLoss(brew.fc(model, "x", "fc", 2, 1), "loss")
    model.AddGradientOperators([loss])
    build_sgd(model, 1.0)
    assert add_moving_averages(model, 0.5) == {"fc_w": "fc_w_moving_average", "fc_b": "fc_b_moving_average"}
    workspace.feed("x", np.float32([[1, 2]]))
    workspace.run_net_once(model.param_init_net)
    before = workspace.fetch("fc_w")
    workspace.create_net(model.net)
    workspace.run_net(model.net.Name())
    np.testing.assert_allclose(workspace.fetch("fc_w_moving_average"), before - [[0.5, 1]], rtol=1e-5)


def test_refusals():
    model = ModelHelper("refused")
    loss = model.net.AveragedLoss(brew.fc(model, "x", "fc", 2, 1), "loss")
    model.AddGradientOperators([loss])
    operators = len(model.net.Proto().op)
    for decay in (-0.1, 1.0, float("nan")):
        with pytest.raises(ArgumentError, match=r"decay must be a number in"):
            add_moving_averages(model, decay)
    with pytest.raises(ArgumentError, match=r"first_step=3 with decay=0.5; give decay=None, or no first_step"):
        add_moving_averages(model, 0.5, first_step=3)
    with pytest.raises(ArgumentError, match="first_step must be a whole number of at least 0, got -1"):
        add_moving_averages(model, None, first_step=-1)
    with pytest.raises(NetError, match="no operator updates a parameter yet; add moving averages after the updates"):
        add_moving_averages(model, 0.9)
    assert len(model.net.Proto().op) == operators and not moving_averages(model)
    update(model)
    with pytest.raises(NetError, match="has moving averages already"):
        add_moving_averages(model, 0.9)


def test_on_two_gpus(two_gpus):
    """The same averages as on the CPU, each on its replica's GPU."""

    def run(parallelize, prefix, devices):
        model, workspace, rng = ModelHelper("averaged"), Workspace(seed=2), np.random.default_rng(0)
        parallelize(
            model, lambda model: None, forward, optimizer_builder_fun=update, devices=devices, weighted_shares=True
        )
        for number in range(3):
            next(feed_shares(model, batch(rng), workspace=workspace))
            if not number:
                RunInitNet(model, workspace=workspace)
            RunNet(model, workspace=workspace)
        averages = set(moving_averages(model).values())
        places = {op.output[0]: op.device_option for op in model.net.Proto().op if op.output[0] in averages}
        return workspace.fetch(f"{prefix}_1/scores_w_moving_average"), places

    want, _ = run(Parallelize_CPU, "cpu", [0, 1])
    got, places = run(Parallelize_GPU, "gpu", [0, 1])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert {(option.device_type, option.device_id, name[:6]) for name, option in places.items()} == {
        (PROTO_CUDA, 0, "gpu_0/"),
        (PROTO_CUDA, 1, "gpu_1/"),
    }
