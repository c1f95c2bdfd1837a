"""Optimizers by name: all of them train, are the same on any number of devices, and refuse what they do not know."""

import numpy as np
import pytest

from netbuilder import optimizers
from netbuilder.model import ModelHelper
from netbuilder.optimizers import OPTIMIZERS, EarlyStopping, build_optimizer, optimizer_by_name
from netbuilder.parallel import Parallelize_CPU, RunInitNet, RunNet, feed_shares
from netbuilder.proto import ArgumentError
from netbuilder.runtime import Workspace
from toy_models import layers


def test_every_optimizer_has_a_name():
    classes = {value for name, value in vars(optimizers).items() if name.endswith("Optimizer")}
    assert {*OPTIMIZERS.values()} == classes - {optimizers.Optimizer}, (
        "import the optimizer and its builder in netbuilder/optimizers/__init__.py"
    )
    builders = {name.removeprefix("build_").replace("_", "-") for name in dir(optimizers) if name.startswith("build_")}
    assert set(OPTIMIZERS) == builders - {"optimizer"}


def test_a_name_is_one_class_s():
    with pytest.raises(ArgumentError, match=r"netbuilder\.optimizers\.adam\.AdamOptimizer has the name 'adam'"):

        class Mine(optimizers.Optimizer, name="adam"):
            pass

    assert OPTIMIZERS["adam"] is optimizers.AdamOptimizer


def trained(name, devices):
    model, workspace = ModelHelper("named"), Workspace(seed=1)

    def update(model):
        build_optimizer(model, optimizer_by_name(name, policy="fixed"))

    options = {"devices": range(devices), "weighted_shares": True}
    Parallelize_CPU(model, lambda model: None, layers(5, 8, 3), optimizer_builder_fun=update, **options)
    rng, losses = np.random.default_rng(0), []
    labels = rng.integers(0, 3, 12).astype(np.int32)
    data = (rng.standard_normal((3, 5))[labels] + 0.1 * rng.standard_normal((12, 5))).astype(np.float32)
    for number in range(30):
        next(feed_shares(model, {"data": data, "label": labels}, workspace=workspace))
        if not number:
            RunInitNet(model, workspace=workspace)
        RunNet(model, workspace=workspace)
        losses.append(np.mean([workspace.fetch(f"cpu_{k}/loss") for k in range(devices)]))
    return losses, {name: workspace.fetch(f"cpu_0/{name}") for name in ("fc1_w", "fc2_w", "fc2_b")}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [name for name, about in OPTIMIZERS.items() if not about.for_float16])
def test_the_usual_rate_trains_alike_on_one_device_and_two(name):
    losses, one = trained(name, 1)
    assert losses[-1] < 0.9 * losses[0]
    _, two = trained(name, 2)
    for blob, value in one.items():
        assert np.linalg.norm(two[blob] - value) <= 1e-4 * np.linalg.norm(value), blob


def test_settings_reach_the_optimizer():
    made = optimizer_by_name("sgd", 0.5, momentum=0.9, nesterov=False, policy="step",
                             policy_arguments={"stepsize": 3, "gamma": 0.1})  # fmt: skip
    found = made.attributes
    assert (found["base_learning_rate"], found["momentum"], found["nesterov"]) == (0.5, 0.9, False)
    assert (found["policy"], found["init_kwargs"]) == ("step", {"stepsize": 3, "gamma": 0.1})
    assert optimizer_by_name("adam").attributes["alpha"] == 0.001


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("adm", {}, "unknown optimizer 'adm'; did you mean 'adam'"),
        ("x", {}, "unknown optimizer 'x'; the optimizers are adadelta, adagrad"),
        ("adam", {"beta_2": 0.9}, "optimizer 'adam': unknown argument 'beta_2'; did you mean 'beta2'"),
        ("adam", {"momentum": 0.9}, "unknown argument 'momentum'; the arguments are beta1, beta2"),
        ("ftrl", {"policy": "step"}, "optimizer 'ftrl' has a fixed rate, so policy must be 'fixed', got 'step'"),
        ("sgd", {"momentum": -1}, "momentum must be a number in "),
    ],
)
def test_refusals(name, options, match):
    with pytest.raises(ArgumentError, match=match):
        optimizer_by_name(name, 0.1, **options)


def test_early_stopping():
    stopping = EarlyStopping(2, least=0.05)
    assert [stopping.update(value) for value in (0.5, 0.54, 0.56)] == [False, False, False]
    assert (stopping.best, stopping.best_at, stopping.seen) == (0.56, 3, 3)
    again = EarlyStopping(2, least=0.05)
    again.restore(stopping.state())
    assert [again.update(value) for value in (0.6, float("nan"))] == [False, True]
    assert again.stops
    loss = EarlyStopping(1, larger_is_better=False)
    assert [loss.update(value) for value in (2.0, 1.0, 1.0)] == [False, False, True]
    unknown = EarlyStopping(2)
    assert [unknown.update(float("nan")) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ((0,), "patience must be a whole number of at least 1, got 0"),
        ((1, -1), "least must be a number of at least 0"),
    ],
)
def test_early_stopping_refuses(options, match):
    with pytest.raises(ArgumentError, match=match):
        EarlyStopping(options[0], **({"least": options[1]} if len(options) > 1 else {}))
