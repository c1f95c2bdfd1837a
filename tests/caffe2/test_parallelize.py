"""Parallelize and Parallelize_BMUF through the compatibility layer: steps and losses are as in Caffe2."""

import numpy as np
import pytest

from netbuilder.caffe2.python import cnn, core, data_parallel_model, workspace


def forward(model, loss_scale):
    score = model.FC("data", "fc", 16, 1, ("ConstantFill", {}), ("ConstantFill", {}))
    squares = model.SquaredL2Distance([model.Sigmoid(model.FlattenToVec(score, "flat"), "sigmoid"), "label"], "squares")
    return [model.Scale(model.AveragedLoss(squares, "loss"), scale=loss_scale)]


def update(model):
    rate = model.net.LearningRate([model.Iter("iteration")], "rate", base_lr=-0.1, policy="fixed")
    one = model.param_init_net.ConstantFill([], "one", shape=[1], value=1.0)
    for param in model.GetParams():
        model.WeightedSum([param, one, model.param_to_grad[param], rate], param)


def build(**options):
    workspace.ResetWorkspace()
    model, rng = cnn.CNNModelHelper(order="NHWC", name="blocks"), np.random.default_rng(26)
    data_parallel_model.Parallelize_CPU_BMUF(model, lambda model: None, forward, update, devices=[0, 1], **options)
    for device in (0, 1):
        data = rng.random((32, 16), np.float32)
        with core.DeviceScope(core.DeviceOption(0, device)):
            workspace.FeedBlob(f"cpu_{device}/data", data)
            workspace.FeedBlob(f"cpu_{device}/label", np.round(data[:, 0]))
    data_parallel_model.RunInitNet(model)
    return model


def fetch(name):
    return workspace.FetchBlob(name)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [None, 0.75])
def test_the_rule_to_the_bit(nesterov, momentum):
    model = build(nesterov=nesterov, block_momentum=momentum)
    assert list(model._device_grouped_blobs) == ["fc_w", "fc_b"]
    assert not fetch("cpu_0/fc_w_v").any() and fetch("cpu_0/fc_w_v").shape == (1, 16)
    data_parallel_model.RunNet(model, 1)
    names = ("fc_w", "fc_b")
    speed = {name: fetch(f"cpu_0/{name}_v") for name in names}
    held = {name: fetch(f"cpu_0/{name}_g") for name in names}
    workspace.RunNetOnce(model.net)
    both = {name: [fetch(f"cpu_{device}/{name}") for device in (0, 1)] for name in names}
    workspace.RunNetOnce(model._global_model_param_updates_net)
    kept = np.float32(0.5 if momentum is None else momentum)
    for name in names:
        change = (both[name][0] + both[name][1]) / np.float32(2) - held[name]
        now = fetch(f"cpu_0/{name}_v")
        np.testing.assert_array_equal(now, kept * speed[name] + change)
        want = held[name] + now - (kept * (now - speed[name]) if nesterov else 0)  # Caffe2's sign
        for blob in (f"cpu_0/{name}", f"cpu_1/{name}", f"cpu_0/{name}_g"):
            np.testing.assert_array_equal(fetch(blob), want)


def test_warm_up():
    model = build(warmup_iterations=3)
    assert model._warmup_iterations == 3
    data_parallel_model.RunWarmup(model)
    np.testing.assert_array_equal(fetch("cpu_1/fc_w"), fetch("cpu_0/fc_w"))
    np.testing.assert_array_equal(fetch("cpu_0/fc_w_g"), fetch("cpu_0/fc_w"))
    assert fetch("cpu_0/fc_w").any() and not fetch("cpu_0/fc_w_v").any()
    assert fetch("cpu_0/iteration").tolist() == [3]


def test_what_scripts_read_from_the_model():
    model = build()
    assert model._data_parallel_model_init_nets == [model.param_init_net, model._global_model_init_net]
    assert model._data_parallel_model_nets == [model.net, (model._global_model_param_updates_net, 1)]
    assert model._warmup_broadcast is None and model._warmup_iterations is None
    with pytest.raises(ValueError, match="RunWarmup: model 'blocks.*' has no warm-up"):
        data_parallel_model.RunWarmup(model)


@pytest.mark.parametrize("call", [data_parallel_model.Parallelize_CPU, data_parallel_model.Parallelize])
def test_losses_of_several_numbers(call):
    """Each of them has the gradient 1."""
    workspace.ResetWorkspace()

    def forward(model, loss_scale):
        scores = model.FC("data", "fc", 2, 1, ("ConstantFill", {}), ("ConstantFill", {}))
        return [model.Scale(model.FlattenToVec(scores, "flat"), "scaled", scale=loss_scale)]

    model = cnn.CNNModelHelper(order="NHWC", name="vector")
    call(model, lambda model: None, forward, update, devices=[0, 1], cpu_device=True)
    data = np.float32([[1, 2], [3, 4], [5, 7]])
    for device in (0, 1):
        workspace.FeedBlob(f"cpu_{device}/data", data)
    workspace.RunNetOnce(model.param_init_net)
    workspace.RunNetOnce(model.net)
    for device in (0, 1):
        np.testing.assert_array_equal(workspace.FetchBlob(f"cpu_{device}/fc_w_grad"), data.sum(0, keepdims=True))


def test_gradient_memory_of_a_model_that_only_evaluates():
    """Scripts such as those of non-local networks give the same options for training and evaluation."""
    workspace.ResetWorkspace()
    model = cnn.CNNModelHelper(order="NHWC", name="evaluation", init_params=False)
    data_parallel_model.Parallelize_CPU(
        model, lambda model: None, forward, None, devices=[0, 1], optimize_gradient_memory=True
    )
    for device in (0, 1):
        shapes = {"data": (4, 16), "label": (4,), "fc_w": (1, 16), "fc_b": (1,)}
        for name, shape in shapes.items():
            workspace.FeedBlob(f"cpu_{device}/{name}", np.full(shape, "fc" not in name, np.float32))
    data_parallel_model.RunInitNet(model)
    data_parallel_model.RunNet(model, 1)
    assert fetch("cpu_1/loss") == np.float32(0.5 * 0.5**2)  # the score is 0
    with pytest.raises(TypeError, match="optimize_gradient_memory"):
        data_parallel_model.Parallelize_CPU(
            model, lambda model: None, forward, None, devices=[0], optimise_gradient_memory=True
        )
