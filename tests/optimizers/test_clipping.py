"""Clipping of gradients by their global norm, and the number of the first iteration: against NumPy in float64."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.caffe2.python.model_helper import ModelHelper as CompatibleModelHelper
from netbuilder.graph import BlobReference, GradientSlice
from netbuilder.model import ModelHelper, ParameterTags, brew
from netbuilder.model.initializers import PseudoFP16Initializer
from netbuilder.optimizers import (
    OPTIMIZERS,
    SgdOptimizer,
    build_adam,
    build_optimizer,
    build_sgd,
    optimizer_by_name,
    reset_optimizer_instance_count,
)
from netbuilder.proto import ArgumentError
from netbuilder.runtime import Workspace

ROWS = np.int32([1, 3, 1, 0])
X = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
BOUND = 0.25


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process():
    reset_optimizer_instance_count()


def linear(model_class=ModelHelper, *, seed=1.0, scale=4.0, dense_only=False):
    """A model whose gradients are the same in each step, and proportional to ``scale * seed``.

    Its parameters are the weights of a layer and a table, of which a row is looked up twice.
    """
    model = model_class("linear")
    scores = brew.fc(model, "x", "fc", 5, 3)
    losses = [model.net.Scale(model.net.AveragedLoss(scores, "mean"), "loss", scale=scale)]
    if not dense_only:
        table = model.param_init_net.UniformFill([], "table", shape=[6, 2])
        model.AddParameter(table, ParameterTags.WEIGHT)
        found = model.net.AveragedLoss(model.net.Gather([table, "rows"], "found"), "found_mean")
        losses.append(model.net.Scale(found, "table_loss", scale=scale))
    seeds = [model.param_init_net.ConstantFill([], f"seed_{i}", shape=[], value=seed) for i in range(len(losses))]
    model.AddGradientOperators(dict(zip(losses, seeds)))
    return model


def train(model, steps=3):
    workspace = Workspace(threads=1, seed=3)
    workspace.feed("x", X)
    workspace.feed("rows", ROWS)
    workspace.run_net_once(model.param_init_net)
    start = {str(name): workspace.fetch(str(name)) for name in model.params}
    workspace.create_net(model.net)
    workspace.run_net(model.net.Name(), steps)
    return workspace, start, {name: workspace.fetch(name) for name in start}


def gradients_of(model):
    """The gradients of the first step, the rows of the table added up, in float64."""
    found = {}
    workspace = train(model, 1)[0]
    for param, grad in model.param_to_grad.items():
        if isinstance(grad, GradientSlice):
            whole = np.zeros((6, 2))
            np.add.at(whole, workspace.fetch(str(grad.indices)), workspace.fetch(str(grad.values)).astype(np.float64))
            found[str(param)] = whole
        else:
            found[str(param)] = workspace.fetch(str(grad)).astype(np.float64)
    return found


def norm_of(gradients):
    return np.sqrt(sum((g**2).sum() for g in gradients.values()))


DENSE_ONLY = {"adamw", "lamb", "lion", "gftrl", "rms-prop", "yellowfin", "fp16-sgd"}  # refuse sparse gradients


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_the_step_of_the_clipped_gradients(name):
    options = {"dense_only": name in DENSE_ONLY}
    norm = norm_of(gradients_of(linear(**options)))
    assert norm > 4 * BOUND
    clipped, wanted = linear(**options), linear(seed=BOUND / norm, **options)
    build_optimizer(clipped, optimizer_by_name(name), max_gradient_norm=BOUND)
    build_optimizer(wanted, optimizer_by_name(name))
    _, start, got = train(clipped)
    for param, want in train(wanted)[2].items():
        assert np.abs(want - start[param]).max() > 1e-5
        np.testing.assert_allclose(got[param], want, rtol=1e-4, atol=1e-6, err_msg=param)


def test_adam_with_clipping_in_numpy():
    model = linear()
    gradients = gradients_of(linear())
    build_adam(model, 0.1, max_gradient_norm=BOUND)
    _, start, got = train(model, 3)
    scale = BOUND / norm_of(gradients)
    for name, value in start.items():
        g, m, v, w = gradients[name] * scale, 0.0, 0.0, value.astype(np.float64)
        for t in (1, 2, 3):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            w = w - 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
        np.testing.assert_allclose(got[name], w, rtol=1e-5, atol=1e-6)


def test_gradients_below_the_bound_are_not_changed():
    _, _, got = train(clip(linear(), 1e6))
    _, _, want = train(clip(linear(), None))
    assert all(np.array_equal(got[name], want[name]) for name in want)


def clip(model, bound):
    build_sgd(model, 0.1, momentum=0.9, max_gradient_norm=bound)
    return model


def test_a_parameter_with_its_own_optimizer_is_clipped_too():
    model = linear()
    model.get_param_info(BlobReference("table")).optimizer = SgdOptimizer(0.5)
    gradients = gradients_of(linear())
    build_adam(model, 0.1, max_gradient_norm=BOUND)
    _, start, got = train(model, 1)
    want = start["table"] - 0.5 * BOUND / norm_of(gradients) * gradients["table"]
    np.testing.assert_allclose(got["table"], want, rtol=1e-5)


def test_a_gradient_of_two_parameters_is_divided_once():
    model = ModelHelper("sum")
    names = ["a", "b"]
    for name in names:
        model.AddParameter(model.param_init_net.ConstantFill([], name, shape=[4], value=1.0), ParameterTags.WEIGHT)
    loss = model.net.AveragedLoss(model.net.Mul([model.net.Sum(names, "sum"), "sum"], "square"), "loss")
    model.AddGradientOperators([loss])
    build_sgd(model, 1.0, max_gradient_norm=0.5)
    _, _, got = train(model, 1)
    step = 0.5 / np.sqrt(8)  # of 8 equal gradients of norm 0.5
    np.testing.assert_allclose([got["a"], got["b"]], np.full((2, 4), 1 - step), rtol=1e-6)


def test_master_copies_are_clipped_by_a_norm_in_float32():
    def make(**options):
        model = ModelHelper("half")
        x = model.net.FloatToHalf("x", "x_half")
        scores = brew.fc(model, x, "fc", 5, 3, WeightInitializer=PseudoFP16Initializer,
                         BiasInitializer=PseudoFP16Initializer)  # fmt: skip
        model.AddGradientOperators([model.net.Scale(model.net.AveragedLoss(model.net.HalfToFloat(scores, "s"), "mean"),
                                                    "loss", scale=3000.0)])  # fmt: skip
        build_optimizer(model, optimizer_by_name("multi-precision-sgd", 1.0), **options)
        return train(model, 1)

    workspace, start, _ = make(max_gradient_norm=1.0)
    step = [workspace.fetch(name + "_fp32") - start[name].astype(np.float32) for name in start]
    np.testing.assert_allclose(np.sqrt(sum((x**2).sum() for x in step)), 1.0, rtol=2e-3)


@pytest.mark.parametrize("bound", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_bounds_are_checked(bound):
    with pytest.raises(ArgumentError, match="max_gradient_norm must be a positive number"):
        build_sgd(linear(), 0.1, max_gradient_norm=bound)


def test_in_the_compatibility_layer_the_rate_is_scaled():
    model = linear(CompatibleModelHelper)
    build_adam(model, 0.1, max_gradient_norm=BOUND, sparse_dedup_aggregator="none")
    types = [op.type for op in model.net.Proto().op]
    assert "DivideBlobs" not in types and "Copy" not in types and types.count("AtomicIter") == 1
    workspace, _, _ = train(model, 1)
    table = str(model.param_to_grad[BlobReference("table")].values)  # repeated rows are separate terms
    norm = np.sqrt(sum((workspace.fetch(g) ** 2).sum() for g in ("fc_w_grad", "fc_b_grad", table)))
    np.testing.assert_allclose(workspace.fetch("AdamOptimizer_0_scaled_lr_cpu"), -0.1 * BOUND / norm, rtol=1e-5)


@pytest.mark.parametrize("helper, step", [(ModelHelper, 0.1), (CompatibleModelHelper, 0.07441)])
def test_the_first_step_of_adam(helper, step):
    """As long as the rate, whatever the gradient; Caffe2 begins with t = 2."""
    model = linear(helper, dense_only=True)
    build_adam(model, 0.1)
    _, start, got = train(model, 1)
    np.testing.assert_allclose(np.abs(got["fc_w"] - start["fc_w"]), step, rtol=1e-3)


POLICIES = {
    "step": ({"stepsize": 2, "gamma": 0.5}, [1, 1, 0.5, 0.5, 0.25, 0.25]),
    "poly": ({"max_iter": 6, "power": 1.0}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
    "linearWarmup": ({"start_multiplier": 0.5, "num_iter": 2}, [0.5, 0.75, 1, 1, 1, 1]),
    "cosine": (
        {"max_lr": 1.0, "min_lr": 0.0, "period": 6},
        [0.5 * (1 + np.cos(np.pi * t / 6)) for t in range(6)],
    ),
    "composite": (
        {"sub_policy_num_iters": [2, 4], "sub_policy_0_policy": "fixed", "sub_policy_0_lr_scale": 0.1,
         "sub_policy_1_policy": "fixed"},
        [0.1, 0.1, 1, 1, 1, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_count_iterations_from_0(policy):
    """As torch's schedulers do: a run of six steps ends with the sixth rate of a policy of six."""
    arguments, want = POLICIES[policy]
    model = linear(dense_only=True)
    build_sgd(model, 1.0, policy=policy, **arguments)
    workspace, _, _ = train(model, 0)
    rates = []
    for _ in want:
        workspace.run_net(model.net.Name())
        rates.append(-float(workspace.fetch("SgdOptimizer_0_lr_cpu")))
    np.testing.assert_allclose(rates, want, rtol=1e-6)
    assert workspace.fetch("optimizer_iteration").tolist() == [6]


def test_clipping_in_replicas_that_train_on_their_own():
    model = ModelHelper("blocks")

    def forward(model, loss_scale):
        loss = model.net.AveragedLoss(brew.fc(model, "x", "fc", 5, 3), "mean")
        return [model.net.Scale(loss, "loss", scale=10.0)]

    parallel.Parallelize_BMUF(
        model,
        lambda model: None,
        forward,
        lambda model: build_sgd(model, 1.0, max_gradient_norm=0.5),
        devices=[0, 1],
        cpu_device=True,
    )
    text = [op.type for op in model.net.Proto().op]
    assert text.count("SumSqrElements") == 4 and text.count("DivideBlobs") == 4
