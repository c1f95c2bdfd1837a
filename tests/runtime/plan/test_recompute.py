"""Recomputation: chains, operators in place, dropout, constants of the step; budgets that cannot be kept."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.extensions import MeasuredTime
from netbuilder.optimizers import build_adam, build_sgd
from netbuilder.proto import BlobError, NetDef, NetError, TensorProto
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan import recompute
from netbuilder.runtime.plan.values import StepKind
from netbuilder.runtime.profile.memory import planned_memory
from switches import single
from toy_models import softmax_loss

ROWS = 512


def dense(model):
    """Layers as wide as the batch is long: activations and weights take the same memory."""
    x = "data"
    for number in range(6):
        x = brew.relu(model, brew.fc(model, x, f"fc{number}", 32, 32), f"relu{number}")
    return x


def dense_in_place(model):
    x = "data"
    for number in range(6):
        x = brew.fc(model, x, f"fc{number}", 32, 32)
        x = brew.relu(model, x, x)
    return x


def dropped_out(model):
    x = "data"
    for number in range(4):
        x = brew.relu(model, brew.fc(model, x, f"fc{number}", 32, 32), f"relu{number}")
        x = brew.dropout(model, x, f"dropout{number}", ratio=0.3, is_test=0)
    return x


def elementwise(model):
    """Operators whose gradients read inputs, outputs, or neither; plain kernels among them."""
    x = "data"
    for number in range(3):
        x = model.net.Tanh(brew.fc(model, x, f"fc{number}", 32, 32), f"tanh{number}")
        x = model.net.Sigmoid(model.net.Exp(model.net.Negative(x, f"negative{number}"), f"exp{number}"), f"s{number}")
        left, right = model.net.Split(x, [f"left{number}", f"right{number}"], axis=1)
        x, _ = model.net.Concat([right, left], [f"joined{number}", f"extents{number}"], axis=1)
        x = model.net.Mul([x, "data"], f"mul{number}")
    return x


def transposed(model):
    x = "data"
    for number in range(3):
        x = brew.fc(model, x, f"fc{number}", 32, 32)
        x = model.net.Transpose(model.net.Softmax(x, f"soft{number}"), f"t{number}")
        x = model.net.Transpose(x, f"u{number}")
        x = model.net.LayerNorm(x, [f"norm{number}", f"mean{number}", f"std{number}"])[0]
    return x


def train(build, *, engines=None, optimizer=build_sgd, steps=3, threads=1, **options):
    model = ModelHelper("trained")
    scores = brew.fc(model, build(model), "scores", 32, 5)
    model.AddGradientOperators([softmax_loss(model, scores)])
    optimizer(model, 0.01)
    workspace, rng = Workspace(threads=threads, seed=3, engines=engines), np.random.default_rng(1)
    workspace.feed("data", rng.normal(size=(ROWS, 32)).astype(np.float32))
    workspace.feed("label", rng.integers(0, 5, ROWS).astype(np.int32))
    workspace.run_net_once(model.param_init_net)
    name = workspace.create_net(model.net, **{"observable": "outputs", **options})
    workspace.run_net(name, steps)
    return model, workspace, workspace.net(name)


def plan_of(net):
    plans = net.plans
    return plans[-1]


def again(net):
    return [step for step in plan_of(net).steps if step.kind is StepKind.RECOMPUTE]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("engines", [None, ()], ids=["default", "NumPy"])
@pytest.mark.parametrize("build", [dense, dense_in_place, dropped_out, elementwise, transposed])
def test_results_are_equal_to_the_bit(build, engines):
    model, want, net = train(build, engines=engines)
    whole, recomputed = plan_of(net).memory.nbytes, 0
    for fraction in (0.95, 0.9, 0.85, 0.8):
        try:
            _, got, other = train(build, engines=engines, memory_budget=fraction)
        except NetError as error:
            assert "is too small" in str(error)
            break
        for name in (*map(str, model.GetAllParams("")), "loss"):
            np.testing.assert_array_equal(got.fetch(name), want.fetch(name), err_msg=name)
        assert plan_of(other).memory.nbytes < whole
        recomputed += len(again(other))
    assert recomputed, "nothing was computed again"


LOOKUPS = ["Gather", "SparseLengthsSum", "SparseLengthsMean", "SparseLengthsWeightedSum"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("engines", [None, ("LLVM",)], ids=["default", "LLVM"])
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_lookups_of_tables_are_computed_again(lookup, engines):
    def build(model):
        fills = model.param_init_net
        fills.UniformFill([], "table", shape=[40, 32], min=-1.0, max=1.0)
        fills.UniformIntFill([], "indices", shape=[ROWS], min=0, max=39)
        fills.ConstantFill([], "lengths", shape=[ROWS], value=1, dtype=TensorProto.INT32)
        fills.UniformFill([], "weights", shape=[ROWS], min=0.5, max=1.5)
        middle = ["weights"] if "Weighted" in lookup else []
        inputs = ["table", *middle, "indices"] + ([] if lookup == "Gather" else ["lengths"])
        x = model.net.Sqr(getattr(model.net, lookup)(inputs, "looked_up"), "squares")
        x = model.net.Tanh(brew.fc(model, x, "up", 32, 128), "wide")
        return brew.fc(model, x, "down", 128, 32)

    model, want, _ = train(build, engines=engines)
    with pytest.raises(NetError, match="is too small") as raised:
        train(build, engines=engines, memory_budget=1000)
    least = int(str(raised.value).split("at least ")[1].split()[0].replace(",", ""))
    _, got, net = train(build, engines=engines, memory_budget=least)
    names = {step.outputs[0].name for step in again(net)}
    assert "looked_up" in names if engines is None else names & {"looked_up", "squares"}
    for name in (*map(str, model.GetAllParams("")), "loss"):
        np.testing.assert_array_equal(got.fetch(name), want.fetch(name), err_msg=name)


def test_moments_and_more_steps():
    model, want, _ = train(dense, optimizer=build_adam, steps=5)
    _, got, net = train(dense, optimizer=build_adam, steps=5, memory_budget="85%")
    assert again(net)
    for name in map(str, model.GetAllParams("")):
        np.testing.assert_array_equal(got.fetch(name), want.fetch(name))


def test_what_is_fetched_is_kept():
    _, workspace, net = train(dense, memory_budget=0.85)
    dropped = {step.outputs[0].name for step in again(net)}
    _, want, _ = train(dense, steps=4, observable="all")
    name = sorted(dropped)[0]
    with pytest.raises(BlobError, match=f"'{name}' is not observable"):
        workspace.fetch(name)
    workspace.run_net(net.name)
    np.testing.assert_array_equal(workspace.fetch(name), want.fetch(name))


def test_the_smallest_budget_is_named_and_can_be_kept():
    with pytest.raises(NetError, match=r"memory_budget=1,000 bytes is too small: a run needs at least") as raised:
        train(dense, memory_budget=1000)
    least = int(str(raised.value).split("at least ")[1].split()[0].replace(",", ""))
    _, got, net = train(dense, memory_budget=least)
    _, want, _ = train(dense)
    np.testing.assert_array_equal(got.fetch("fc0_w"), want.fetch("fc0_w"))
    assert again(net)
    with pytest.raises(NetError, match="is too small"):
        train(dense, memory_budget=least - 64)


def test_a_budget_of_a_net_in_which_nothing_can_be_computed_again_says_so():
    workspace = Workspace(threads=1)
    workspace.feed("x", np.ones(3, np.float32))
    workspace.create_net(
        NetDef(name="forward", op=[make_op("Exp", ["x"], ["y"])], external_input=["x"]), memory_budget=1
    )
    with pytest.raises(NetError, match="nothing computed again; nothing in it can be computed again to need less"):
        workspace.run_net("forward")


def test_a_budget_that_is_large_enough_changes_nothing():
    for budget in ("1TiB", 1.0):
        _, _, net = train(dense, memory_budget=budget)
        assert not again(net)
    workspace = Workspace(threads=1)
    workspace.feed("x", np.ones(3, np.float32))
    workspace.create_net(NetDef(name="forward", op=[make_op("Exp", ["x"], ["y"])]), memory_budget=0.5)
    workspace.run_net("forward")
    assert np.allclose(workspace.fetch("x"), 1)


def test_a_fraction_is_of_the_largest_batch():
    """The last batch of an epoch is smaller: nothing need be computed again for it, and it cannot be refused."""
    _, workspace, net = train(dense, memory_budget=0.85)
    largest = plan_of(net)
    for rows in (ROWS // 2, 3, ROWS * 2):
        workspace.feed("data", np.ones((rows, 32), np.float32))
        workspace.feed("label", np.zeros(rows, np.int32))
        workspace.run_net(net.name)
        assert plan_of(net) is not largest
        assert bool(again(net)) == (rows == ROWS * 2)
    assert planned_memory(workspace, net.name).total <= 0.85 * plan_of(net).memory.whole


def test_a_fraction_that_is_too_small_is_answered_by_one():
    with pytest.raises(NetError, match=r"memory_budget=0\.1 \([\d,]+ bytes\) is too small") as raised:
        train(dense, memory_budget="10%")
    least = float(str(raised.value).split("(a fraction of ")[1].split(")")[0])
    _, _, net = train(dense, memory_budget=least)
    assert again(net)
    with pytest.raises(NetError, match=f"a fraction of {least:.4g}"):
        train(dense, memory_budget=least - 0.001)


def test_the_net_stores_its_budget():
    def build(model):
        model.net.set_memory_budget("85%")
        return dense(model)

    _, _, net = train(build)
    assert again(net)
    _, workspace, net = train(build, observable=None)
    with pytest.raises(BlobError, match="not observable"):
        workspace.fetch("relu1")
    _, _, net = train(build, memory_budget=1.0)
    assert not again(net)


def test_a_budget_needs_reuse():
    with pytest.raises(
        NetError, match="a memory_budget needs values that share memory, and .* are off; switch them on"
    ):
        train(dense, memory_budget=0.5, without=single("reuse"))
    with pytest.raises(NetError, match="net 'trained.*': memory_budget must be a number of bytes"):
        train(dense, memory_budget="half")


def test_what_was_chosen_is_logged(caplog):
    with caplog.at_level(logging.INFO, "netbuilder"):
        train(dense, memory_budget=0.85)
    assert any("values are computed again, some" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("slow", [0, 1])
def test_measured_times_decide_where_they_are_known(slow, monkeypatch):
    """Of two values of equal size and estimated work, the one whose kernel was measured to be quick is dropped."""

    def build(model):
        sides = [model.net.Sqr(brew.fc(model, "data", f"fc{i}", 32, 32), f"squares{i}") for i in range(2)]
        x = model.net.Tanh(brew.fc(model, model.net.Mul(sides, "product"), "up", 32, 64), "wide")
        return brew.fc(model, x, "down", 64, 32)

    plain = recompute.Search.__init__

    def with_times(self, steps, *rest):
        for step in steps:
            for number in range(2):
                if step.outputs[0].name == f"fc{number}" and step.kind is StepKind.COMPUTE:
                    step.prepared = replace(step.prepared).extend(MeasuredTime(1e-2 if number == slow else 1e-4))
        plain(self, steps, *rest)

    monkeypatch.setattr(recompute.Search, "__init__", with_times)
    _, workspace, net = train(build)
    whole = planned_memory(workspace, net.name).total
    _, _, net = train(build, memory_budget=whole - 4096)
    dropped = {step.outputs[0].name for step in again(net)}
    assert f"fc{1 - slow}" in dropped and f"fc{slow}" not in dropped


def test_a_fetch_does_not_break_the_budget(caplog):
    """What was fetched is kept where that fits; where it does not, training goes on, and the next fetch says why."""
    _, workspace, net = train(dense, memory_budget="90%")
    smallest = plan_of(net).memory.whole
    for name in [f"{kind}{number}" for kind in ("fc", "relu") for number in range(6)]:
        if not workspace.has(name) or workspace.get(name).is_empty:
            with pytest.raises(BlobError, match=f"'{name}' is not observable"):
                workspace.fetch(name)
        workspace.run_net(net.name)
        assert planned_memory(workspace, net.name).total <= 0.9 * smallest
    refused = sorted(net.not_kept)
    assert {"fc0", "fc1"} <= set(workspace.blobs()) and "fc0" not in refused and "relu5" in refused
    assert workspace.fetch("fc0").shape == (ROWS, 32)
    assert any("blob 'relu5' is not kept, although" in record.getMessage() for record in caplog.records)
    with pytest.raises(BlobError, match="a run that keeps it needs more than the memory budget: give a larger one"):
        workspace.fetch("relu5")
