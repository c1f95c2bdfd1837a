"""Gradients of large matrices in parts, each followed by its update: the same to the bit, in less memory."""

from __future__ import annotations

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.ops.core import extensions
from netbuilder.optimizers import add_weight_decay, build_adagrad, build_adam, build_rms_prop, build_sgd
from netbuilder.runtime import Workspace
from switches import single

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")

WITHOUT = single("updates_in_parts")
LR = {"policy": "inv", "gamma": 0.5, "power": 1.0}
BUILDERS = {
    "momentum": (build_sgd, {"base_learning_rate": 0.1, "momentum": 0.9, "nesterov": False, **LR}),
    "Nesterov": (build_sgd, {"base_learning_rate": 0.1, "momentum": 0.9, "nesterov": True, **LR}),
    "SGD": (build_sgd, {"base_learning_rate": 0.1, **LR}),
    "Adam": (build_adam, {"base_learning_rate": 1e-3, **LR}),
    "Adagrad": (build_adagrad, {"base_learning_rate": 1e-3, **LR}),
    "RMSProp": (build_rms_prop, {"base_learning_rate": 0.01, "momentum": 0.5, **LR}),
}
ROWS = 24
EXTENTS = (320, 608, 500, 64)  # in 16 parts of 38 rows, in 4 of 125, and in 16 of 4


@pytest.fixture(autouse=True)
def every_matrix(monkeypatch):
    """Compute the gradients of all matrices in parts, small as they are."""
    monkeypatch.setattr(extensions, "LARGE_GRADIENT", 4 * EXTENTS[-1] * EXTENTS[-2])


def model_of(optimizer="momentum", *, decay=True, transposed=False, twice=False, clipped=False):
    """Three layers; with ``twice`` the weights of the last one are used again."""
    build, options = BUILDERS[optimizer]
    model = ModelHelper("net")
    blob = "x"
    for i, (inner, columns) in enumerate(zip(EXTENTS, EXTENTS[1:])):
        if transposed:
            w = model.create_param(f"fc{i}_w", [inner, columns], Initializer("XavierFill"))
            b = model.create_param(f"fc{i}_b", [columns], Initializer("ConstantFill"))
            made = model.net.FCTransposed([blob, w, b], f"fc{i}")
        else:
            made = brew.fc(model, blob, f"fc{i}", inner, columns)
        blob = brew.relu(model, made, f"relu{i}")
    if twice:
        blob = model.net.Sum([blob, model.net.FC(["relu1", "fc2_w", "fc2_b"], "again")], "sum")
    loss = model.net.AveragedLoss(model.net.Mul([blob, blob], "square"), "loss")
    model.AddGradientOperators([loss])
    if decay:
        add_weight_decay(model, 1e-2)
    build(model, max_gradient_norm=0.1 if clipped else None, **options)
    return model


def train(model, *, threads=2, fill=False, **options):
    """Return the blobs after each of some steps, and the plan; with ``fill`` the arena is NaN before each step."""
    workspace = Workspace(threads=threads, seed=3)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("x", np.random.default_rng(0).standard_normal((ROWS, EXTENTS[0]), dtype=np.float32))
    options.setdefault("observable", "outputs")
    workspace.create_net(model.net, **options)
    found = []
    for _ in range(3):
        for made in workspace.net(model.net).plan_ahead() if fill else ():
            for location, nbytes in made.memory.arenas.items():
                made.arena.memory(nbytes, location).fill(255)
        workspace.run_net(model.net)
        values = {name: workspace.fetch(name) for name in workspace.blobs() if not workspace.find(name).is_empty}
        found.append(
            {
                name: value
                for name, value in values.items()
                if isinstance(value, np.ndarray) and not name.endswith("_grad")
            }
        )
    (plan,) = workspace.net(model.net).plans
    return found, plan


def in_parts(plan):
    """Return the weights whose gradient and update is one step in parts."""
    steps = [step for step in plan.steps if step.prepared.name.endswith(" parts")]
    return {value.name for step in steps for value in step.outputs if value is not None and value.name.endswith("_w")}


def same(got, want):
    for mine, others in zip(got, want):
        assert mine.keys() == others.keys()
        for name, value in others.items():
            np.testing.assert_array_equal(mine[name], value, err_msg=name)


ALL = {"fc0_w", "fc1_w", "fc2_w"}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "optimizer, decay, threads",
    [  # each two of them; other triples are slow
        pytest.param(optimizer, decay, threads, marks=[pytest.mark.slow] * ((i + decay + threads) % 2))
        for i, optimizer in enumerate(BUILDERS)
        for decay in (False, True)
        for threads in (1, 2)
    ],
)
def test_same_to_the_bit(optimizer, decay, threads):
    model = model_of(optimizer, decay=decay)
    (got, plan), (want, whole) = train(model, threads=threads), train(model, threads=threads, without=WITHOUT)
    assert in_parts(plan) == ALL and not in_parts(whole)
    same(got, want)
    apart, _ = train(model, threads=threads, without=single("joined_updates"))
    same(got, apart)
    assert not np.array_equal(got[0]["fc0_w"], got[1]["fc0_w"])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("options", [{"transposed": True}, {}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_layers_and_types(options, dtype):
    model = model_of(**options)
    (got, plan), (want, _) = train(model, dtype=dtype), train(model, dtype=dtype, without=WITHOUT)
    assert dtype == "bfloat16" or in_parts(plan) == ALL
    same(got, want)


def test_against_float64():
    model = model_of("SGD", decay=False)
    workspace = Workspace(threads=1, seed=3)
    workspace.run_net_once(model.param_init_net)
    w = [workspace.fetch(f"fc{i}_w").astype(np.float64) for i in range(3)]
    b = [workspace.fetch(f"fc{i}_b").astype(np.float64) for i in range(3)]
    x = np.random.default_rng(0).standard_normal((ROWS, EXTENTS[0]), dtype=np.float32).astype(np.float64)
    values = [x]
    for i in range(3):
        values.append(np.maximum(values[-1] @ w[i].T + b[i], 0))
    d = 2 * values[-1] / values[-1].size
    rate = 0.1  # of iteration 0
    for i in reversed(range(3)):
        d = d * (values[i + 1] > 0)
        w[i], d = w[i] - rate * (d.T @ values[i]), d @ w[i]
    (got, *_), plan = train(model)
    assert in_parts(plan) == ALL
    for i in range(3):
        np.testing.assert_allclose(got[f"fc{i}_w"], w[i], rtol=0, atol=1e-6)


def test_nothing_is_read_before_it_is_written():
    model = model_of()
    (got, plan), (want, _) = train(model, fill=True), train(model)
    assert in_parts(plan) == ALL
    same(got, want)


def test_less_memory():
    model = model_of()
    plan, whole = train(model)[1], train(model, without=WITHOUT)[1]
    assert plan.memory.live < 0.6 * whole.memory.live


def test_what_others_need_is_computed_as_a_whole():
    assert in_parts(train(model_of(twice=True))[1]) == ALL - {"fc2_w"}
    assert not in_parts(train(model_of(clipped=True))[1])
    assert not in_parts(train(model_of(), observable="activations")[1])
    assert not in_parts(train(model_of(), without=single("early_updates"))[1])
    assert in_parts(train(model_of(), observable=["fc0_w_grad"])[1]) == ALL - {"fc0_w"}


def test_small_gradients_are_computed_as_a_whole(monkeypatch):
    monkeypatch.setattr(extensions, "LARGE_GRADIENT", 4 << 20)
    assert not in_parts(train(model_of())[1])
