"""The loss scale: what builders get, and warnings where it is missing or applied twice."""

import warnings

import numpy as np
import pytest

from netbuilder import optimizers, parallel
from netbuilder.model import ModelHelper, brew
from netbuilder.parallel.loss_scale import LossScale
from parallel_models import OPTIMIZERS, no_input, parallelize
from toy_models import mlp, softmax_loss


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_it_is_one_over_the_number_of_devices(count):
    seen = []

    def forward(model, loss_scale):
        seen.append(loss_scale)
        return mlp(model, loss_scale)

    parallelize(range(count), forward)
    assert seen == [1.0 / count] * count and all(isinstance(scale, float) for scale in seen)


def test_the_learning_rate_is_not_touched():
    rates = []
    for count in (1, 4):
        model, _ = parallelize(range(count), optimizer=lambda model: optimizers.build_sgd(model, 0.25))
        rates += [
            a.f for op in model.net.Proto().op if op.type == "LearningRate" for a in op.arg if a.name == "base_lr"
        ]
    assert rates == [-0.25, -0.25]


def unscaled(model, loss_scale):
    x = brew.fc(model, "data", "fc", 6, 4)
    # a half that is not the scale
    x, _ = model.net.Dropout(x, ["dropped", "mask"], ratio=0.5, is_test=0)
    loss = softmax_loss(model, x)
    return [loss]


def test_a_builder_that_ignores_it_is_warned_of_once_by_the_losss_name():
    with pytest.warns(
        UserWarning,
        match=r"loss 'cpu_0/loss', made at .*:\d+ in softmax_loss, is not multiplied by loss_scale, so",
    ) as seen:
        parallelize([0, 1], unscaled)
    assert len(seen) == 1


def quiet(forward, count=2, optimizer=OPTIMIZERS["sgd"]):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return parallelize(range(count), forward, optimizer)


def test_on_one_device_it_may_be_ignored():
    quiet(unscaled, count=1)


def scaled_by(scale_loss):
    def forward(model, loss_scale):
        loss = softmax_loss(model, brew.fc(model, "data", "fc", 6, 4))
        return [scale_loss(model, loss, loss_scale)]

    return forward


def by_constant(model, loss, scale):
    return model.net.Mul([loss, model.param_init_net.ConstantFill([], "factor", shape=[], value=scale)], "scaled")


@pytest.mark.parametrize(
    "scale_loss",
    [
        lambda model, loss, scale: model.Scale(loss, scale=scale),
        lambda model, loss, scale: model.Scale(loss, scale=0.3 * scale),
        lambda model, loss, scale: model.Scale(loss, scale=scale * 3 / 7),
        lambda model, loss, scale: model.Scale(loss, scale=float(np.float32(scale))),
        lambda model, loss, scale: model.net.AveragedLoss(model.Scale(loss, "half", scale=scale), "mean"),
        by_constant,
    ],
    ids=["scale", "weighted", "computed", "float32", "early", "constant"],
)
def test_all_ways_of_applying_it_are_seen(scale_loss):
    quiet(scaled_by(scale_loss))


def test_of_two_losses_the_one_without_is_named():
    def forward(model, loss_scale):
        plain = model.net.AveragedLoss(brew.fc(model, "data", "other", 6, 4), "plain")
        return [*mlp(model, loss_scale), plain]

    with pytest.warns(UserWarning, match="loss 'cpu_0/plain', made at .*, is not multiplied") as seen:
        parallelize([0, 1], forward)
    assert len(seen) == 1


def test_scaling_the_rate_as_well_is_warned_of():
    def update(model):
        rate = model.net.LearningRate(brew.iter(model, "ITER"), "rate", base_lr=-0.1, policy="fixed")
        rate = model.net.Scale(rate, "share", scale=0.5)
        one = model.param_init_net.ConstantFill([], "one", shape=[1], value=1.0)
        for param in model.GetParams():
            model.net.WeightedSum([param, one, model.param_to_grad[param], rate], param)

    model = ModelHelper("net")
    with pytest.warns(
        UserWarning, match=r"the learning rate 'cpu_0/rate' is multiplied by 1/2, at .*:\d+ in update, although"
    ):
        parallel.Parallelize_CPU(model, no_input, mlp, update, devices=[0, 1])


def test_scaling_gradients_as_well_is_warned_of():
    def build(model):
        for param, gradient in model.param_to_grad.items():
            if str(param) == "cpu_0/fc1_w":
                model.net.Scale(gradient, gradient, scale=0.5)
        return optimizers.build_sgd(model, 0.1)

    with pytest.warns(UserWarning, match="the gradient 'cpu_0/fc1_w_grad' is multiplied by 1/2"):
        parallelize([0, 1], optimizer=build)


def test_numbers_computed_from_it_are_known():
    scale = LossScale(0.5)
    assert -(scale / 2) * 4 == -1.0
    assert [scale.gave(value) for value in (0.5, -0.25, -1.0, 0.25, 3.0)] == [True, True, True, True, False]
    assert 1 / scale == 2.0 and scale.gave(2.0)
    with pytest.raises(TypeError):
        scale * "x"


@pytest.mark.parametrize("optimizer", ["build_sgd", "build_adam", "build_adagrad"])
def test_a_learning_rate_computed_from_it_is_warned_of(optimizer):
    seen = []

    def forward(model, loss_scale):
        seen.append(loss_scale)
        return mlp(model, loss_scale)

    def build(model):
        return getattr(optimizers, optimizer)(model, 0.1 * seen[0])

    with pytest.warns(UserWarning, match="the base rate 0.05 was computed from loss_scale.*steps become too small"):
        parallelize([0, 1], forward, build)
