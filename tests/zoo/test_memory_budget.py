"""Nets of the zoo under memory budgets: equal to the bit, also where dead memory is filled with NaN."""

import re

import numpy as np
import pytest

from kernel_checks import has_instructions
from netbuilder.graph.net_names import reset_names
from netbuilder.optimizers import build_sgd
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan import update_fusion
from netbuilder.runtime.plan.values import StepKind
from netbuilder.runtime.profile.memory import planned_memory
from switches import single
from zoo.test_observable_nets import model_of, with_dead_memory_filled

BATCH = 12  # with fewer images, activations take less memory than the gradients of parameters


def trained(name, kind="simple", *, fill=False, dtype=None, **options):
    reset_names()
    model, (_, loss), x = model_of(name, label="label")
    model.AddGradientOperators([loss])
    build_sgd(model, 0.01, momentum=0.9)
    model.net.Proto().type = kind
    workspace = Workspace(threads=2, seed=1)
    workspace.feed("data", np.concatenate([x * (1 + i) / 4 for i in range(BATCH // 2)]))
    workspace.feed("label", np.arange(BATCH, dtype=np.int32) % 7)
    workspace.run_net_once(model.param_init_net)
    net = workspace.net(workspace.create_net(model.net, observable="outputs", dtype=dtype, **options))
    for _ in range(2):
        net.run_by(lambda plan: (with_dead_memory_filled(plan) if fill else plan).run(), net.run_alone)
    plans = net.plans
    return {str(p): workspace.fetch(str(p)) for p in model.GetAllParams("")}, plans[-1]


def possible(name, **options):
    """Return the smallest budget of a net, and what it takes without one."""
    with pytest.raises(NetError, match="is too small") as raised:
        trained(name, memory_budget=1000, **options)
    numbers = re.findall(r"(?:at least |fetched \()([\d,]+)", str(raised.value))
    return [int(number.replace(",", "")) for number in numbers]


def recomputed(plan):
    return sum(step.kind is StepKind.RECOMPUTE for step in plan.steps)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name, several",
    [
        ("resnet8", 2),
        ("alexnet_one_tower", 1),
        pytest.param("resnet8", 10, marks=pytest.mark.slow),
        pytest.param("resnet18", 1, marks=pytest.mark.slow),
    ],
)
def test_under_budgets(name, several):
    want, whole = trained(name, without=single("cheap_recomputation"))
    least, most = possible(name)
    rng = np.random.default_rng(sum(map(ord, name)))
    for budget in [least, *rng.integers(least, most, several)]:
        got, plan = trained(name, fill=True, memory_budget=int(budget))
        for p, value in want.items():
            np.testing.assert_array_equal(got[p], value, err_msg=f"{p} at {budget}")
        assert plan.memory.nbytes < whole.memory.nbytes
        assert recomputed(plan)


@pytest.mark.slow
def test_under_budgets_with_updates_during_the_backward_pass(monkeypatch):
    want, _ = trained("resnet8", without=single("early_updates"))
    monkeypatch.setattr(update_fusion, "EARLY_BYTES", 1)
    least, most = possible("resnet8")
    for budget in (least, (least + most) // 2, most):
        got, plan = trained("resnet8", fill=True, memory_budget=budget)
        for p, value in want.items():
            np.testing.assert_array_equal(got[p], value, err_msg=f"{p} at {budget}")
        assert recomputed(plan) or budget == most


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"engines": ()}], ids=str)
def test_in_bfloat16_and_without_onednn(options):
    want, _ = trained("resnet8", **options)
    got, plan = trained("resnet8", fill=True, memory_budget=possible("resnet8", **options)[0], **options)
    assert recomputed(plan)
    for p, value in want.items():
        np.testing.assert_array_equal(got[p], value, err_msg=p)


def plan_of_step(name, **options):
    """Return the plan of a training step, which is not run, and its memory."""
    reset_names()
    model, (_, loss), x = model_of(name, label="label")
    model.AddGradientOperators([loss])
    build_sgd(model, 0.01, momentum=0.9)
    workspace = Workspace(threads=1, seed=1)
    workspace.feed("data", np.concatenate([x] * 8))
    workspace.feed("label", np.zeros(16, np.int32))
    workspace.run_net_once(model.param_init_net)
    net = workspace.net(workspace.create_net(model.net, observable="outputs", **options))
    return net.plan_ahead()[-1], planned_memory(workspace, net.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, dtype, most",
    [
        ("small_resnext", "float32", 0.98),
        ("small_resnext", "bfloat16", 0.98),
        pytest.param("resnet50", "float32", 0.92, marks=pytest.mark.slow),
        pytest.param("resnet50", "bfloat16", 0.93, marks=pytest.mark.slow),
    ],
)
def test_normalizations_are_made_again_without_a_budget(name, dtype, most):
    plan, memory = plan_of_step(name, dtype=dtype)
    kept, whole = plan_of_step(name, dtype=dtype, without=single("cheap_recomputation"))
    assert recomputed(plan) and not recomputed(kept)
    if not has_instructions("avx512"):  # there the scratch memory of a convolution's gradient is half of the arena
        most = max(most, 0.97)
    assert memory.arena <= most * whole.arena and 0 < memory.predicted_again <= 0.0075
    under_budget, least = plan_of_step(name, dtype=dtype, memory_budget=0.99)
    assert least.total == memory.total and recomputed(under_budget) == recomputed(plan)


def test_a_nan_is_not_hidden():
    """The Relu fused with a normalization keeps NaN, also when it runs a second time."""
    found = []
    least, _ = possible("resnet8")
    for budget in (None, least):
        reset_names()
        model, (_, loss), x = model_of("resnet8", label="label")
        model.AddGradientOperators([loss])
        build_sgd(model, 0.01)
        workspace = Workspace(threads=1, seed=1)
        data = np.concatenate([x] * (BATCH // 2))
        data[3, 0, 2, 2] = np.nan
        workspace.feed("data", data)
        workspace.feed("label", np.arange(BATCH, dtype=np.int32) % 7)
        workspace.run_net_once(model.param_init_net)
        workspace.run_net(workspace.create_net(model.net, observable="outputs", memory_budget=budget))
        found.append({str(p): workspace.fetch(str(p)) for p in model.GetAllParams("")})
    assert any(np.isnan(value).any() for value in found[0].values())
    for p, value in found[0].items():
        np.testing.assert_array_equal(np.isnan(found[1][p]), np.isnan(value), err_msg=p)
