"""Recurrent cells compared with NumPy: values, gradients, lengths, first states; written out and as one operator."""

import numpy as np
import pytest

from netbuilder.graph import BlobReference, NameScope, reset_names
from netbuilder.model import Initializer, ModelHelper
from netbuilder.model.rnn import (
    GRU,
    LSTM,
    MILSTM,
    BasicRNN,
    BasicRNNCell,
    DropoutCell,
    LayerNormLSTM,
    LayerNormMILSTM,
    LSTMCell,
    MultiRNNCell,
    RNNCell,
    UnrolledCell,
    layered_LSTM,
    recurrent_net,
)
from netbuilder.model.rnn.layers import cudnn_LSTM
from netbuilder.proto import ArgumentError, GradientError, NetError
from netbuilder.runtime import Workspace
from rnn_nets import check_gradients, close, memory_between_steps, trained, weighted_sum
from rnn_reference import CELLS, run

STEPS, SAMPLES, WIDTH, HIDDEN = 3, 2, 2, 3
LENGTHS = np.array([3, 1], np.int32)
FORMS = pytest.mark.parametrize("unrolled", [None, STEPS], ids=["operator", "unrolled"])
LAYERS = {
    "lstm": (LSTM, {}),
    "layer_norm_lstm": (LayerNormLSTM, {}),
    "milstm": (MILSTM, {}),
    "layer_norm_milstm": (LayerNormMILSTM, {}),
    "relu": (BasicRNN, {"activation": "relu"}),
    "tanh": (BasicRNN, {"activation": "tanh"}),
    "gru": (GRU, {}),
    "gru_linear": (GRU, {"linear_before_reset": True}),
}


@pytest.fixture(autouse=True)
def _fresh_names():
    reset_names()


def slopes(value, seed=5):
    return np.random.default_rng(seed).normal(size=value.shape)


def inputs_for(count, lengths=LENGTHS, seed=1):
    rng = np.random.default_rng(seed)
    given = {"x": rng.normal(size=(STEPS, SAMPLES, WIDTH)), "slope": rng.normal(size=(STEPS, SAMPLES, HIDDEN))}
    given.update({f"s{i}": rng.normal(size=(1, SAMPLES, HIDDEN)) for i in range(count)})
    return given if lengths is None else {**given, "lengths": lengths}


def reference(name, given, drop=False):
    step, count = CELLS[name]
    own = {key.removeprefix("l/"): value for key, value in given.items() if key.startswith("l/")}
    states = [np.broadcast_to(given[f"s{i}"], (1, SAMPLES, HIDDEN))[0] for i in range(count)]
    return run(lambda x, before: step(own, x, before), given["x"], states, given.get("lengths"), drop)


KEPT = [(name, False, form) for name in LAYERS for form in (None, STEPS)]
AGAIN = [(name, True, None) for name in ("lstm", "layer_norm_lstm", "milstm", "layer_norm_milstm")]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name, memory, unrolled", KEPT + AGAIN)
def test_values_and_gradients(name, memory, unrolled):
    layer, more = LAYERS[name]
    count = CELLS[name][1]
    model = ModelHelper("m")
    states = [f"s{i}" for i in range(count)]
    results = layer(
        model,
        "x",
        "lengths",
        states,
        WIDTH,
        HIDDEN,
        "l",
        memory_optimization=memory,
        static_rnn_unroll_size=unrolled,
        **more,
    )
    workspace, given = trained(model, weighted_sum(model, results[0]), inputs_for(count))
    want = reference(name, given)
    for i, value in enumerate(want):
        close(workspace.fetch(str(results[2 * i])), value)
        close(workspace.fetch(str(results[2 * i + 1])), value[-1:])

    def loss(values):
        return float((reference(name, values)[0] * values["slope"]).sum())

    check_gradients(model, workspace, given, loss, [*map(str, model.GetParams("")), "x", *states])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name, gates", [("lstm", 1), ("layer_norm_lstm", 2), ("milstm", 2), ("layer_norm_milstm", 3)])
def test_gates_that_are_computed_again_are_not_kept(name, gates):
    """Without ``memory_optimization``, this number of blobs of the gates' size is stored for each step."""
    found = []
    for memory in (False, True):
        reset_names()
        model = ModelHelper("m")
        layer, _ = LAYERS[name]
        results = layer(model, "x", "lengths", ["s0", "s1"], WIDTH, HIDDEN, "l", memory_optimization=memory)
        workspace, _ = trained(model, weighted_sum(model, results[0]), inputs_for(2))
        found.append(memory_between_steps(model, workspace))
    (kept, used), (less, again) = found
    assert kept - less >= gates * 4 * STEPS * SAMPLES * 4 * HIDDEN
    assert again - used < 4 * 4 * STEPS * SAMPLES * 4 * HIDDEN


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name, unrolled", [("lstm", None), ("gru", None), ("tanh", None), ("tanh", STEPS)])
@pytest.mark.parametrize("lengths, drop", [(None, False), (LENGTHS, True)], ids=["all steps", "dropped"])
def test_lengths(name, lengths, drop, unrolled):
    layer, more = LAYERS[name]
    count = CELLS[name][1]
    model = ModelHelper("m")
    given = "lengths" if lengths is not None else None
    states = [f"s{i}" for i in range(count)]
    results = layer(
        model, "x", given, states, WIDTH, HIDDEN, "l", drop_states=drop, static_rnn_unroll_size=unrolled, **more
    )
    workspace, values = trained(model, weighted_sum(model, results[0]), inputs_for(count, lengths))
    close(workspace.fetch(str(results[0])), reference(name, values, drop)[0])

    def loss(moved):
        return float((reference(name, moved, drop)[0] * moved["slope"]).sum())

    check_gradients(model, workspace, values, loss, ["x", "s0", "l/i2h_w"])


@pytest.mark.one_in(2)
@FORMS
@pytest.mark.parametrize("name", ["lstm", "gru", "tanh"])
def test_first_states_that_are_parameters(name, unrolled):
    layer, more = LAYERS[name]
    model = ModelHelper("m")
    results = layer(model, "x", "lengths", None, WIDTH, HIDDEN, "l", static_rnn_unroll_size=unrolled, **more)
    first = [str(p) for p in model.GetParams("") if "initial" in str(p)]
    assert len(first) == CELLS[name][1]
    workspace, given = trained(model, weighted_sum(model, results[0]), inputs_for(0))
    named = {**given, **{f"s{i}": given[blob] for i, blob in enumerate(first)}}
    close(workspace.fetch(str(results[0])), reference(name, named)[0])

    def loss(moved):
        return float(
            (reference(name, {**moved, **{f"s{i}": moved[b] for i, b in enumerate(first)}})[0] * moved["slope"]).sum()
        )

    check_gradients(model, workspace, given, loss, first)


def test_gradients_through_last_states():
    model = ModelHelper("m")
    results = LSTM(model, "x", "lengths", ["s0", "s1"], WIDTH, HIDDEN, "l", outputs_with_grads=(0, 1, 3))
    total = model.net.Add([model.net.SumElements(results[0]), model.net.SumElements(results[1])])
    loss = model.net.Add([total, model.net.SumElements(model.net.Mul([results[3], results[3]]))], "loss")
    workspace, given = trained(model, loss, inputs_for(2))

    def value(values):
        hidden, cell = reference("lstm", values)
        return float(hidden.sum() + hidden[-1].sum() + (cell[-1] ** 2).sum())

    check_gradients(model, workspace, given, value, ["x", "s1", "l/gates_t_w"])


# Layers one above the other.


def stacked(given, residual=()):
    step = CELLS["lstm"][0]
    below = given["x"]
    for i in range(3):
        own = {key.removeprefix(f"m/layer_{i}/c/"): v for key, v in given.items() if key.startswith(f"m/layer_{i}/c/")}
        own.update({key.removeprefix("m/c/"): v for key, v in given.items() if i == 0 and key.startswith("m/c/")})
        states = [given[f"s{2 * i}"][0], given[f"s{2 * i + 1}"][0]]
        out = run(lambda x, before, own=own: step(own, x, before), below, states, given["lengths"])[0]
        below = out + below if i in residual else out
    return below


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "residual, unrolled, wrapped",
    [((), None, False), ((1, 2), None, False), ((2,), STEPS, False), ((1, 2), None, True)],
)
def test_layers(residual, unrolled, wrapped):
    """Wrapped: the layers are wrapped in dropout that drops nothing, and gradients from all of them add up."""
    cells = [
        LSTMCell(WIDTH if i == 0 else HIDDEN, HIDDEN, forget_bias=0.0, memory_optimization=i == 1, name="c")
        for i in range(3)
    ]
    cell = MultiRNNCell(cells, residual_output_layers=residual, name="m")
    assert cell.get_output_state_index() == 4 and cell.get_output_dim() == HIDDEN
    assert cell.get_state_names()[2] == "m/layer_1/c/hidden_t"
    model = ModelHelper("net")
    run_cell = cell if unrolled is None else UnrolledCell(cell, T=unrolled)
    run_cell = DropoutCell(run_cell, dropout_ratio=0.5, name="d", is_test=True) if wrapped else run_cell
    states = [f"s{i}" for i in range(6)]
    output, _ = run_cell.apply_over_sequence(model, "x", "lengths", states)
    workspace, given = trained(model, weighted_sum(model, output), inputs_for(6))
    close(workspace.fetch(str(output)), stacked(given, residual))

    def loss(values):
        return float((stacked(values, residual) * values["slope"]).sum())

    names = ["x", "s0", "s5", "m/c/i2h_w", "m/layer_1/c/gates_t_b", "m/layer_2/c/i2h_w"]
    check_gradients(model, workspace, given, loss, names)


def test_layers_by_a_list_of_widths():
    model = ModelHelper("m")
    results = LSTM(model, "x", None, None, WIDTH, [4, HIDDEN], "l", return_last_layer_only=False)
    assert [str(blob) for blob in results[4:6]] == ["l/layer_1/hidden_state_all", "l/layer_1/hidden_state_last"]
    assert len(results) == 8
    model = ModelHelper("m")
    assert len(GRU(model, "x", None, None, WIDTH, [4, HIDDEN], "l")) == 2


def test_layers_that_run_one_after_the_other():
    model = ModelHelper("m")
    results = layered_LSTM(model, "x", "lengths", ["s0", "s1"], WIDTH, [HIDDEN, HIDDEN], "l")
    assert str(results[0]) == "l_layer_1/hidden_state_all"
    workspace, given = trained(model, weighted_sum(model, results[0]), inputs_for(2))

    def both(values):
        first = reference("lstm", values)
        step = CELLS["lstm"][0]
        own = {key.removeprefix("l_layer_1/"): v for key, v in values.items() if key.startswith("l_layer_1/")}
        last = [state[-1] for state in first]
        return run(lambda x, before: step(own, x, before), first[0], last, values["lengths"])[0]

    close(workspace.fetch(str(results[0])), both(given))
    check_gradients(model, workspace, given, lambda v: float((both(v) * v["slope"]).sum()), ["x", "s1", "l/gates_t_w"])


# Dropout, a cell of one's own, recurrent_net.


def test_dropout_of_the_output():
    model = ModelHelper("m")
    inner = LSTMCell(WIDTH, HIDDEN, forget_bias=0.0, memory_optimization=False, name="c")
    cell = DropoutCell(inner, dropout_ratio=0.5, name="d", is_test=False)
    output, states = cell.apply_over_sequence(model, "x", "lengths", ["s0", "s1"])
    workspace, _ = trained(model, weighted_sum(model, output), inputs_for(2))
    got, hidden = workspace.fetch(str(output)), workspace.fetch(str(states[0]))
    kept = got != 0
    assert 0 < kept.sum() < kept.size
    close(got[kept], 2 * hidden[kept])
    with pytest.raises(ArgumentError, match="is_test is required"):
        DropoutCell(inner, dropout_ratio=0.5)


class Leaky(RNNCell):
    """H' = H + tanh(x + A H), and their running sum as a second state."""

    fill = Initializer("XavierFill")

    def apply_override(self, model, input_t, seq_lengths, states, timestep, extra_inputs=None):
        hidden, total = states
        product = model.net.FC(
            [hidden, model.create_param(self.scope("a"), [WIDTH, WIDTH], self.fill), BlobReference("zeros")], axis=2
        )
        new = model.net.Add([hidden, model.net.Tanh(model.net.Add([input_t, product]))], self.scope("new"))
        return [new, model.net.Add([total, new], self.scope("sum"))]

    def get_state_names_override(self):
        return ["hidden", "total"]

    def get_output_state_index(self):
        return 1


@FORMS
def test_a_cell_of_ones_own(unrolled):
    cell = Leaky("own")
    runs = cell if unrolled is None else UnrolledCell(cell, T=unrolled)
    model = ModelHelper("m")
    output, _ = runs.apply_over_sequence(model, "x", None, ["s0", "s1"])
    rng = np.random.default_rng(2)
    given = {name: rng.normal(size=(1, SAMPLES, WIDTH)) for name in ("s0", "s1")}
    given.update({name: rng.normal(size=(STEPS, SAMPLES, WIDTH)) for name in ("x", "slope")}, zeros=np.zeros(WIDTH))
    workspace, given = trained(model, weighted_sum(model, output), given)

    def values(v):
        def step(x, states):
            new = states[0] + np.tanh(x + states[0] @ v["own/a"].T)
            return [new, states[1] + new]

        return run(step, v["x"], [v["s0"][0], v["s1"][0]])[1]

    close(workspace.fetch(str(output)), values(given))
    check_gradients(
        model, workspace, given, lambda v: float((values(v) * v["slope"]).sum()), ["x", "s0", "s1", "own/a"]
    )


def test_states_that_share_a_gradient():
    """The sum hands one gradient to the state and to the input."""
    model, step = ModelHelper("m"), ModelHelper("step")
    x, before = step.net.AddExternalInputs("x_t", "before")
    after = step.net.Sum([x, before], "after")
    step.net.AddExternalOutput(after)
    results = recurrent_net(model.net, step.net, [(x, "x")], [(before, "s")], {before: after})
    given = {
        "x": np.ones((STEPS, SAMPLES, 2)),
        "s": np.zeros((1, SAMPLES, 2)),
        "slope": slopes(np.ones((STEPS, SAMPLES, 2))),
    }
    workspace, given = trained(model, weighted_sum(model, results[0]), given)
    close(workspace.fetch(str(results[0]))[:, 0, 0], [1, 2, 3])
    check_gradients(
        model, workspace, given, lambda v: float(((np.cumsum(v["x"], 0) + v["s"]) * v["slope"]).sum()), ["x", "s"]
    )


def test_names_have_the_scope_once():
    model = ModelHelper("m")
    with NameScope("cpu_1"):
        results = LSTM(model, "x", "lengths", ["s0", "s1"], WIDTH, HIDDEN, "l")
    op = next(op for op in model.net.Proto().op if op.type == "RecurrentNetwork")
    step = next(argument.n for argument in op.arg if argument.name == "step_net")
    names = {name for o in [op, *step.op] for name in (*o.input, *o.output)}
    assert all(name.startswith("cpu_1/") and not name.startswith("cpu_1/cpu_1") for name in names)
    assert str(results[0]) == "cpu_1/l/hidden_state_all"


def test_refusals():
    model = ModelHelper("m")
    with pytest.raises(NetError, match="has 2 states.*one value for each, got \\['a'\\]"):
        LSTM(model, "x", None, ["a"], 2, 3, "l")
    with pytest.raises(ArgumentError, match="activation must be 'relu' or 'tanh', got 'sine'"):
        BasicRNN(model, "x", None, None, 2, 3, "l", activation="sine")
    with pytest.raises(ArgumentError, match="hidden_size must be a positive integer, got 0"):
        LSTM(model, "x", None, None, 2, 0, "l")
    with pytest.raises(GradientError, match="outputs_with_grads must be in \\[0, 4\\), got \\[7\\]"):
        LSTM(model, "x", None, None, 2, 3, "l", outputs_with_grads=(7,))
    with pytest.raises(ArgumentError, match="residual_output_layers must be in \\[1, 1\\], got"):
        cell = BasicRNNCell(2, 2, 0.0, False, activation="tanh")
        MultiRNNCell([cell, cell], residual_output_layers=[0])
    with pytest.raises(ArgumentError, match="T, the number of steps"):
        UnrolledCell(cell, T=0)
    with pytest.raises(NotImplementedError, match="dim_out=\\[4, 4\\] has the same layers"):
        cudnn_LSTM(model, "x", ["h", "c"], 3, 4, "l", num_layers=2)
    with pytest.raises(NotImplementedError, match="get_state_names_override"):
        RNNCell("c").apply_over_sequence(model, "x", None, ["h"])
    step = ModelHelper("step")
    a, b = step.net.AddExternalInputs("a", "b")
    with pytest.raises(NetError, match="state 'b' has no link"):
        recurrent_net(model.net, step.net, [(a, "x")], [(b, "s")], {})
    with pytest.raises(NetError, match="does not define blob 'c'"):
        recurrent_net(model.net, step.net, [(a, "x")], [(b, "s")], {b: "c"})


@pytest.mark.parametrize(
    "wrap", [lambda cell: cell, lambda cell: MultiRNNCell([cell], name="multi")], ids=["alone", "multi"]
)
@pytest.mark.parametrize("unrolled", [False, True])
def test_a_cell_of_a_script_overrides_apply_as_in_caffe2(wrap, unrolled):
    class MulCell(RNNCell):
        def _apply(self, model, input_t, seq_lengths, states, timestep, extra_inputs):
            assert seq_lengths is None and not extra_inputs and str(timestep)
            product = model.net.Mul([input_t, states[0]])
            model.net.AddExternalOutput(product)
            return [product]

        def get_state_names(self):
            return [self.scope("state")]

    model = ModelHelper("script")
    cell = wrap(MulCell(name="mul"))
    cell = UnrolledCell(cell, T=3) if unrolled else cell
    start = model.param_init_net.ConstantFill([], "start", shape=[1, 2, 4], value=2.0)
    _, results = cell.apply_over_sequence(model, "data", initial_states=[start])
    workspace, x = Workspace(threads=1), np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
    workspace.feed("data", x)
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    np.testing.assert_allclose(workspace.fetch(str(results[0])), 2 * np.cumprod(x, axis=0), rtol=1e-6)
