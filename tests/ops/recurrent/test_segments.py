"""Recurrent nets under memory budgets: in segments of steps, and their tables' lookups again; equal to the bit."""

import functools
import re

import numpy as np
import pytest

from netbuilder import DeviceScope
from netbuilder.graph.net_names import reset_names
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.model.rnn import (
    GRU,
    LSTM,
    AttentionType,
    BasicRNN,
    DropoutCell,
    LayerNormMILSTM,
    LSTMCell,
    LSTMWithAttentionCell,
    MultiRNNCell,
)
from netbuilder.model.rnn.recurrent import recurrent_net
from netbuilder.ops.control.timers import statistics_of_process
from netbuilder.ops.core.extensions import RunsAgain
from netbuilder.optimizers import build_sgd
from netbuilder.proto import PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.values import StepKind
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.runtime.profile.table import profile_table
from toy_models import softmax_loss
from zoo.test_observable_nets import with_dead_memory_filled

STEPS, SAMPLES, WIDTH, WORDS = 23, 4, 16, 11
LENGTHS = np.array([23, 1, 7, 0], np.int32)


def words(model):
    return model.net.Gather(["table", "data"], "words", dense_gradient=1)


def states(model, count):
    return [model.param_init_net.ConstantFill([], f"s{i}", shape=[1, SAMPLES, WIDTH], value=0.1) for i in range(count)]


def layer(function, count, **options):
    def build(model):
        found = function(model, words(model), "lengths", states(model, count), WIDTH, WIDTH, "net", **options)
        return found[0]

    return build


def dropped_out(model):
    cells = [DropoutCell(LSTMCell(WIDTH, WIDTH, 0.0, False, name=f"cell{i}"), 0.4, is_test=False) for i in range(2)]
    cell = MultiRNNCell(cells, name="both")
    initial = [state for _ in range(2) for state in states(model, 2)]
    results, _ = cell.apply_over_sequence(model, words(model), "lengths", initial)
    return results


def attention(model):
    given = words(model)
    cell = LSTMWithAttentionCell(
        WIDTH, given, None, WIDTH, WIDTH, "decoder", AttentionType.Recurrent, None, 0.0, False, False
    )
    results, _ = cell.apply_over_sequence(model, given, None, states(model, 3))
    return brew.fc(model, results, "narrow", cell.get_output_dim(), WIDTH, axis=2)


def two_directions(model):
    given = words(model)
    there, *_ = LSTM(model, given, None, states(model, 2), WIDTH, WIDTH, "there")
    turned = model.net.ReversePackedSegs([there, "lengths"], "turned")
    back, *_ = GRU(model, turned, "lengths", states(model, 1), WIDTH, WIDTH, "back")
    return model.net.Add([there, back], "sum")


def products_of_the_input(model):
    """One product of rows of the input for all steps, of which the backward pass reads each step's."""
    given = words(model)
    for name in "wv":
        model.create_param(name, [WIDTH, WIDTH], Initializer("UniformFill", min=-0.3, max=0.3))
        model.create_param(name + "b", [WIDTH], Initializer("ConstantFill", value=0.1))
    step = ModelHelper("step", param_model=model)
    x, before, *_ = step.net.AddExternalInputs("x", "before", "w", "wb", "v", "vb")
    scale = step.net.Sigmoid(step.net.FC([x, "w", "wb"], "of_x", axis=2), "scale")
    for number in range(4):
        scale = step.net.Sigmoid(step.net.Mul([scale, before], f"scaled{number}"), f"scale{number}")
    sides = [step.net.Mul([scale, before], "scaled"), step.net.FC([before, "v", "vb"], "product", axis=2)]
    after = step.net.Tanh(step.net.Sum([*sides, "of_x"], "total"), "after")
    step.net.AddExternalOutput(after)
    (initial,) = states(model, 1)
    found, _ = recurrent_net(model.net, step.net, [(x, given)], [(before, initial)], {before: after}, scope="net")
    return found


def derived(model):
    """A step net whose backward step net is derived: it keeps only the states."""
    given, (initial,) = words(model), states(model, 1)
    model.create_param("w", [WIDTH], Initializer("UniformFill", min=-0.9, max=0.9))
    step = NetDef(name="step", type="simple")
    step.op.add().CopyFrom(make_op("Mul", ["h_prev", "w"], ["s"], broadcast=1))
    step.op.add().CopyFrom(make_op("Sum", ["s", "x"], ["s"]))
    step.op.add().CopyFrom(make_op("Tanh", ["s"], ["h"]))
    found = model.net.RecurrentNetwork(
        [given, initial, "w"], ["all", "last", "work"], step_net=step, recurrent_states=["states"],
        initial_recurrent_state_ids=[1], link_internal=["h_prev", "h", "x"],
        link_external=["states", "states", str(given)], link_offset=[0, 1, 0], alias_src=["states", "states"],
        alias_dst=["all", "last"], alias_offset=[1, -1], outputs_with_grads=[0],
    )  # fmt: skip
    return found[0]


NETS = {
    "lstm": layer(LSTM, 2),
    "lstm that recomputes gates": layer(LSTM, 2, memory_optimization=True),
    "two layers": lambda model: LSTM(
        model, words(model), "lengths", states(model, 4), WIDTH, [WIDTH, WIDTH], "net", return_last_layer_only=True
    )[0],
    "gru": layer(GRU, 1),
    "rnn": layer(BasicRNN, 1, activation="tanh"),
    "multiplicative": layer(LayerNormMILSTM, 2),
    "attention": attention,
    "dropout": dropped_out,
    "two directions": two_directions,
    "products of the input": products_of_the_input,
    "derived": derived,
}


def built(build, *, engines=None, kind="simple", **options):
    reset_names()
    model = ModelHelper("trained")
    model.create_param("table", [WORDS, WIDTH], Initializer("UniformFill", min=-0.5, max=0.5))
    result = build(model)
    rows, _ = model.net.Reshape(result, ["rows", "rows_shape"], shape=[-1, WIDTH])
    model.AddGradientOperators([softmax_loss(model, brew.fc(model, rows, "scores", WIDTH, 5))])
    build_sgd(model, 0.1)
    model.net.Proto().type = kind
    workspace, rng = Workspace(threads=2, seed=3, engines=engines), np.random.default_rng(1)
    workspace.feed("data", rng.integers(0, WORDS, (STEPS, SAMPLES)).astype(np.int32))
    workspace.feed("label", rng.integers(0, 5, STEPS * SAMPLES).astype(np.int32))
    workspace.feed("lengths", LENGTHS)
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net, **{"observable": "outputs", **options})
    return model, workspace


def train(build, *, fill=False, runs=2, **options):
    model, workspace = built(build, **options)
    net = workspace.net(model.net.Name())
    for _ in range(runs):
        net.run_by(lambda plan: (with_dead_memory_filled(plan) if fill else plan).run(), net.run_alone)
    plans = net.plans
    return {name: workspace.fetch(name) for name in (*map(str, model.GetParams("")), "loss")}, plans[-1]


def possible(build, **options):
    """Return the smallest budget of a net, and what it takes without one."""
    with pytest.raises(NetError, match="is too small") as raised:
        train(build, memory_budget=1000, **options)
    numbers = re.findall(r"(?:at least |fetched \()([\d,]+)", str(raised.value))
    return [int(number.replace(",", "")) for number in numbers]


@pytest.mark.gpu
def test_a_budget_on_a_gpu():
    """The arena is that of the GPU; the passes there take no memory of their own."""
    found = {}
    with DeviceScope(make_device_option(PROTO_CUDA, 0)):
        for budget in (None, 0.75):
            found[budget] = train(NETS["lstm"], memory_budget=budget)
    for name, value in found[None][0].items():
        np.testing.assert_array_equal(found[0.75][0][name], value, err_msg=name)
    whole, segments = (found[budget][1].memory.arenas[PROTO_CUDA, 0] for budget in (None, 0.75))
    assert segments < 0.75 * whole


def test_random_budgets():
    want, _ = train(NETS["lstm"])
    least, most = possible(NETS["lstm"])
    for budget in np.random.default_rng(7).integers(least, most, 10):
        got, plan = train(NETS["lstm"], fill=True, memory_budget=int(budget), kind=("simple", "dag")[budget % 2])
        for p, value in want.items():
            np.testing.assert_array_equal(got[p], value, err_msg=f"{p} at {budget}")


def test_what_is_kept_is_a_few_rows():
    """The decoder with attention keeps states at borders, and less than two thirds of the bytes at the peak."""
    _, whole = train(attention)
    _, plan = train(attention, memory_budget=possible(attention)[0])
    kept = [max(each.nbytes for each in p.memory.placed if "workspaces" in each.what) for p in (whole, plan)]
    assert kept[1] < kept[0] / 5
    assert plan.memory.nbytes < whole.memory.nbytes / 1.5


def test_the_time_is_predicted_and_measured():
    """The gradient of a net in segments takes the net's own time more."""
    model, workspace = built(attention, memory_budget=possible(attention)[0])
    found = profile(workspace, model.net.Name(), runs=2, warmup=1, limits={"CPU": Limits(1e9, "test", 1e9, 1)})
    (again,) = [call for call in found.calls if call.runs_again]
    assert again.kind == "RecurrentNetwork"
    total = sum(call.seconds for call in found.calls)
    assert found.measured_again >= again.seconds / (total - again.seconds)
    assert 0 < found.memory.predicted_again < 1
    assert re.search("computed again: .* more time predicted", profile_table(found))
    _, plan = train(attention)
    assert plan.memory.work_again == 0


def test_a_net_whose_steps_are_fetched_keeps_them():
    with pytest.raises(NetError, match="is too small") as raised:
        train(NETS["lstm"], memory_budget=1000, observable=["net/step_workspaces"])
    assert "is too small" in str(raised.value)
    least = possible(NETS["lstm"], observable=["net/step_workspaces"])[0]
    _, plan = train(NETS["lstm"], memory_budget=least, observable=["net/step_workspaces"])
    assert not in_segments(plan)


def short(model, count=False):
    """A net whose result is large and can be computed again; ``count``: it counts its steps in the statistics."""
    given, (initial,) = words(model), states(model, 1)
    step = ModelHelper("step", param_model=model)
    x, before = step.net.AddExternalInputs("x", "before")
    total = step.net.Sum([x, before], "total")
    if count:
        step.net.AveragePut([total], [], stat_name="steps")
    after = step.net.Tanh(total, "after")
    step.net.AddExternalOutput(after)
    found, _ = recurrent_net(model.net, step.net, [(x, given)], [(before, initial)], {before: after}, scope="net")
    wide = found
    for number in range(4):
        wide = brew.fc(model, wide, f"wide{number}", WIDTH, WIDTH, axis=2)
    return model.net.Mul([wide, found], "product")


def test_a_net_whose_steps_have_side_effects_runs_once():
    def again(plan):
        steps = [step for step in plan.steps if step.kind is StepKind.RECOMPUTE]
        return [step for step in steps if step.node.first.op.type == "RecurrentNetwork"]

    _, plan = train(short, memory_budget=possible(short)[0])
    assert again(plan) or in_segments(plan), "it could be computed again"
    statistics = statistics_of_process()
    statistics.read(reset=True)
    counting = functools.partial(short, count=True)
    want, _ = train(counting, runs=2)
    once = statistics.read(reset=True)
    got, plan = train(counting, runs=2, memory_budget=possible(counting)[0])
    statistics_again = statistics.read(reset=True)
    assert not again(plan) and not in_segments(plan)
    assert dict(statistics_again) == dict(once)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def in_segments(plan):
    return sum(step.prepared.get(RunsAgain) is not None for step in plan.steps)


WITHOUT_ENGINES = ("lstm", "attention", "derived")  # of the others, that is slow


@pytest.mark.parametrize(
    "name, engines",
    [
        pytest.param(
            name, engines, id=f"{name}-{kernels}",
            marks=[pytest.mark.slow] * (kernels == "NumPy" and name not in WITHOUT_ENGINES),
        )
        for name in NETS
        for kernels, engines in {"default": None, "NumPy": ()}.items()
    ],
)  # fmt: skip
@pytest.mark.one_in(12)
def test_results_are_equal_to_the_bit(name, engines):
    build = NETS[name]
    want, whole = train(build, engines=engines)
    least, most = possible(build, engines=engines)
    segments = 0
    for budget in (least, (least + most) // 2):
        got, plan = train(build, engines=engines, fill=True, memory_budget=budget)
        for p, value in want.items():
            np.testing.assert_array_equal(got[p], value, err_msg=f"{p} at {budget}")
        assert np.isfinite(got["loss"])
        assert plan.memory.nbytes < whole.memory.nbytes or least == most
        segments += in_segments(plan)
    assert segments or least == most, "no net ran in segments"
