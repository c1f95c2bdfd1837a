"""AdamW, LAMB, Lion and decoupled weight decay: their formulas in NumPy, what decays, and what is refused."""

import numpy as np
import pytest

from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import OPTIMIZERS, build_adamw, build_lamb, build_lion, build_optimizer, optimizer_by_name
from netbuilder.parallel import Parallelize_CPU, RunInitNet, RunNet, feed_shares
from netbuilder.proto import ArgumentError, GradientError, NetError
from netbuilder.runtime import Workspace
from toy_models import layers

W = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.5]])
G = np.array([[0.5, -1.0, 0.25], [2.0, -0.125, 0.75]])
STEPS, RATE, DECAY = 3, 0.1, 0.3
DECOUPLED = [name for name, about in OPTIMIZERS.items() if about.decouples]


def gradient(w, step):
    return G * step * np.sign(w)


def in_numpy(rule):
    """Return W after the steps of ``rule(w, g, step, state)`` in float64."""
    w, state = W, {"m": 0.0, "v": 0.0}
    for step in range(1, STEPS + 1):
        w = rule(w, gradient(w, step), step, state)
    return w


def running(g, step, state, beta1=0.9, beta2=0.999):
    state["m"] = beta1 * state["m"] + (1 - beta1) * g
    state["v"] = beta2 * state["v"] + (1 - beta2) * g**2
    return state["m"] / (1 - beta1**step) * np.sqrt(1 - beta2**step) / (np.sqrt(state["v"]) + 1e-8)


def adamw(w, g, step, state):
    return w - RATE * DECAY * w - RATE * running(g, step, state)


def lamb(w, g, step, state):
    r = running(g, step, state) + DECAY * w
    return w - RATE * np.linalg.norm(w) / np.linalg.norm(r) * r


def lion(w, g, step, state):
    move = np.sign(0.9 * state["m"] + 0.1 * g)
    state["m"] = 0.99 * state["m"] + 0.01 * g
    return w - RATE * DECAY * w - RATE * move


def ours(build, weight=W, steps=STEPS, fed=gradient):
    """Return the weight after some steps on gradients that are fed."""
    model = ModelHelper("formula")
    brew.fc(model, "x", "y", 3, 2)
    loss = model.net.AveragedLoss(model.net.Sqr("y", "squares"), "loss")
    gradients = model.AddGradientOperators([loss])
    model.net.Copy("fed", gradients["y_w"])
    build(model)
    workspace = Workspace()
    workspace.feed("x", np.zeros((1, 3), np.float32))
    workspace.feed("fed", np.zeros((2, 3), np.float32))
    workspace.run_net_once(model.param_init_net)
    workspace.feed("y_w", weight.astype(np.float32))
    workspace.feed("y_b", np.ones(2, np.float32))
    workspace.create_net(model.net)
    for step in range(1, steps + 1):
        workspace.feed("fed", fed(workspace.fetch("y_w"), step).astype(np.float32))
        workspace.run_net(model.net)
    return workspace.fetch("y_w"), workspace.fetch("y_b")


@pytest.mark.parametrize(
    ("build", "rule"), [(build_adamw, adamw), (build_lamb, lamb), (build_lion, lion)], ids=["adamw", "lamb", "lion"]
)
def test_formulas(build, rule):
    found, _ = ours(lambda model: build(model, RATE, weight_decay=DECAY))
    np.testing.assert_allclose(found, in_numpy(rule), 5e-6)


def test_adamw_as_in_torch():
    """Golden numbers of torch.optim.AdamW(lr=0.1, weight_decay=0.3) of torch 2.14, in float64."""
    golden = [
        [0.6291602250380104, -2.108858776938264, 0.1728237289905592],
        [-0.055344527926401196, 3.0215317631043437, -1.0854967237204942],
    ]
    np.testing.assert_allclose(in_numpy(adamw), golden, 2e-6)
    np.testing.assert_allclose(ours(lambda model: build_adamw(model, RATE, weight_decay=DECAY))[0], golden, 5e-6)


def test_lamb_without_a_norm():
    """The trust ratio is 1 for a weight of 0; without a step the weight stays."""
    found, _ = ours(lambda model: build_lamb(model, 2.0), 0 * W, 1, lambda w, step: G)
    np.testing.assert_allclose(found, -2 * np.sign(G), 1e-4)
    found, _ = ours(lambda model: build_lamb(model, 2.0, weight_decay=0.0), W, 1, lambda w, step: 0 * G)
    np.testing.assert_array_equal(found, W)


@pytest.mark.parametrize("name", [name for name in DECOUPLED if name != "lamb"])  # which normalizes its decay, too
def test_weights_decay_apart_from_the_gradient(name):
    """One step with a decay differs from one without by rate * decay * w, of weights and not of biases."""
    plain, decayed, spared = (
        ours(lambda model, more=more: build_optimizer(model, optimizer_by_name(name, RATE), **more), steps=1)
        for more in (
            {"decoupled_decay": 0.0}, {"decoupled_decay": DECAY}, {"decoupled_decay": DECAY, "no_decay": ["y_w"]}
        )
    )  # fmt: skip
    np.testing.assert_allclose(decayed[0], plain[0] - RATE * DECAY * W, 1e-5, 1e-6)
    for found in (decayed, spared):
        np.testing.assert_array_equal(found[1], plain[1])
    np.testing.assert_array_equal(spared[0], plain[0])


@pytest.mark.parametrize("pattern", ["y_w", "y_*", "*"])
def test_patterns_of_what_does_not_decay(pattern):
    plain, spared = (
        ours(lambda model, more=more: build_optimizer(model, optimizer_by_name("adamw", RATE), **more), steps=1)
        for more in ({"decoupled_decay": 0.0}, {"decoupled_decay": DECAY, "no_decay": [pattern]})
    )
    np.testing.assert_array_equal(spared[0], plain[0])


def test_builders_pass_on_what_does_not_decay():
    of_builder, of_both = (
        ours(build, steps=1) for build in (
            lambda model: build_adamw(model, RATE, weight_decay=DECAY, no_decay=["y_w"], rates={"*": 0.5}),
            lambda model: build_optimizer(model, optimizer_by_name("adamw", RATE / 2), decoupled_decay=0.0),
        )
    )  # fmt: skip
    np.testing.assert_allclose(of_builder[0], of_both[0], rtol=1e-6)


def test_a_pattern_that_fits_nothing_is_refused():
    with pytest.raises(NetError, match="no_decay: 'y_ww' fits no parameter of .*y_w"):
        ours(lambda model: build_optimizer(model, optimizer_by_name("adamw", RATE), no_decay=["y_ww"]))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - DECOUPLED))
def test_the_others_refuse(name):
    with pytest.raises(ArgumentError, match="supports no decoupled weight decay; use add_weight_decay"):
        ours(lambda model: build_optimizer(model, optimizer_by_name(name), decoupled_decay=0.1))


@pytest.mark.parametrize("name", ["adamw", "lamb", "lion"])
def test_sparse_gradients_that_decay_are_refused(name):
    model = ModelHelper("table")
    table = model.param_init_net.UniformFill([], "table", shape=[4, 2])
    model.AddParameter(table, "WEIGHT")
    model.AddGradientOperators([model.net.AveragedLoss(model.net.Gather([table, "i"], "rows"), "loss")])
    with pytest.raises(GradientError, match="supports only dense gradients, but the gradient of table is sparse"):
        build_optimizer(model, optimizer_by_name(name), decoupled_decay=0.1)


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb", "lion"])
def test_devices_agree(name):
    found = []
    for devices in (1, 2):
        model, workspace = ModelHelper("agree"), Workspace(seed=1)

        def update(model):
            build_optimizer(model, optimizer_by_name(name, 0.01), decoupled_decay=DECAY, max_gradient_norm=1.0)

        Parallelize_CPU(
            model, lambda model: None, layers(5, 8, 3), optimizer_builder_fun=update, devices=range(devices),
            weighted_shares=True,
        )  # fmt: skip
        rng = np.random.default_rng(0)
        data, label = rng.standard_normal((12, 5)).astype(np.float32), rng.integers(0, 3, 12).astype(np.int32)
        for number in range(4):
            next(feed_shares(model, {"data": data, "label": label}, workspace=workspace))
            if not number:
                RunInitNet(model, workspace=workspace)
            RunNet(model, workspace=workspace)
        found.append({str(p): workspace.fetch(str(p)) for p in model.params if str(p).startswith("cpu_0/")})
    assert found[0] and found[0].keys() == found[1].keys()
    for blob, value in found[0].items():
        np.testing.assert_allclose(found[1][blob], value, 1e-4, 1e-5)
