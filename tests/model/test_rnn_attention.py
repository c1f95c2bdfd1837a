"""Attention cells compared with NumPy: values, weights and gradients of all four kinds."""

import numpy as np
import pytest

from netbuilder.graph import BlobReference, reset_names
from netbuilder.model import ModelHelper
from netbuilder.model.rnn import (
    AttentionCell,
    AttentionType,
    GRUCell,
    LSTMCell,
    LSTMWithAttention,
    MILSTMWithAttentionCell,
    MultiRNNCell,
    UnrolledCell,
)
from netbuilder.proto import ArgumentError, NetError
from rnn_nets import check_gradients, close, memory_between_steps, trained, weighted_sum
from rnn_reference import attention_step, lstm

STEPS, SOURCE, SAMPLES, WIDTH, HIDDEN, READ = 3, 4, 2, 2, 3, 5
KINDS = {"regular": AttentionType.Regular, "recurrent": AttentionType.Recurrent, "dot": AttentionType.Dot,
         "soft_coverage": AttentionType.SoftCoverage}  # fmt: skip
SOURCE_LENGTHS = np.array([4, 2], np.int32)
LENGTHS = np.array([3, 2], np.int32)


@pytest.fixture(autouse=True)
def _fresh_names():
    reset_names()


def given(read=READ):
    rng = np.random.default_rng(3)
    values = {
        "x": rng.normal(size=(STEPS, SAMPLES, WIDTH)),
        "read": rng.normal(size=(SOURCE, SAMPLES, read)),
        "hidden": rng.normal(size=(1, SAMPLES, HIDDEN)),
        "cell": rng.normal(size=(1, SAMPLES, HIDDEN)),
        "context": rng.normal(size=(1, SAMPLES, read)),
        "slope": rng.normal(size=(STEPS, SAMPLES, HIDDEN)),
        "slope2": rng.normal(size=(STEPS, SAMPLES, read)),
    }
    return {**values, "lengths": LENGTHS, "source_lengths": SOURCE_LENGTHS}


def reference(kind, values, masked, biases=True):
    """Hidden states and contexts of all steps."""
    own = {key.removeprefix("a/"): v for key, v in values.items() if key.startswith("a/")}
    own.update({key.removeprefix("decoder/"): v for key, v in own.items() if key.startswith("decoder/")})
    hidden, cell, context = (values[name][0] for name in ("hidden", "cell", "context"))
    coverage = np.zeros((SAMPLES, SOURCE))
    seen = [[], []]
    for t, x in enumerate(values["x"]):
        after = lstm(own, x, [hidden, cell], extra=[context])
        going = (values["lengths"] > t)[:, None]
        hidden, cell = (np.where(going, new, old) for new, old in zip(after, (hidden, cell)))
        lengths = values["source_lengths"] if masked else None
        context, weights = attention_step(own, kind, values["read"], lengths, hidden, context, coverage)
        coverage = coverage + weights
        seen[0].append(hidden)
        seen[1].append(context)
    return np.stack(seen[0]), np.stack(seen[1])


def build(kind, masked, memory=False, read=READ):
    model = ModelHelper("m")
    results = LSTMWithAttention(
        model,
        "x",
        "lengths",
        "hidden",
        "cell",
        "context",
        read,
        "read",
        "source_lengths" if masked else None,
        WIDTH,
        HIDDEN,
        "a",
        attention_type=KINDS[kind],
        lstm_memory_optimization=memory,
        attention_memory_optimization=memory,
    )
    total = model.net.SumElements(model.net.Mul([results[4], "slope2"]))
    loss = model.net.Add([total, model.net.SumElements(model.net.Mul([results[0], "slope"]))], "loss")
    return model, results, loss


@pytest.mark.one_in(6)
@pytest.mark.parametrize("masked, memory", [(False, False), (True, True)], ids=["all", "masked, again"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind, masked, memory):
    model, results, loss = build(kind, masked, memory)
    workspace, values = trained(model, loss, given())
    if kind != "dot":
        values["a/attention_logits_b"] = np.zeros(1)
    hidden, context = reference(kind, values, masked)
    close(workspace.fetch(str(results[0])), hidden)
    close(workspace.fetch(str(results[4])), context)

    def value(moved):
        found = reference(kind, moved, masked)
        return float((found[0] * moved["slope"]).sum() + (found[1] * moved["slope2"]).sum())

    check_gradients(model, workspace, values, value, [*map(str, model.GetParams("")), "read", "x", "context"])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["regular", "recurrent", "soft_coverage"])
def test_what_is_as_large_as_the_encoders_outputs_is_not_kept(kind):
    """If stored for each step, the sum has this size; if recomputed, it exists for one step at a time."""
    kept, used = zip(*(memory_between_steps(*_trained(kind, memory)) for memory in (False, True)))
    size = 4 * SOURCE * SAMPLES * READ
    assert kept[0] - kept[1] >= STEPS * size
    assert used[1] - used[0] < STEPS * size


def _trained(kind, memory):
    reset_names()
    model, _, loss = build(kind, True, memory)
    return model, trained(model, loss, given())[0]


def test_dot_attention_of_one_width_has_no_matrix():
    model, results, loss = build("dot", True, read=HIDDEN)
    assert not [p for p in map(str, model.GetParams("")) if "weighted" in p]
    workspace, values = trained(model, loss, given(HIDDEN))
    close(workspace.fetch(str(results[4])), reference("dot", values, True)[1])


@pytest.mark.parametrize("make", [
    lambda: GRUCell(WIDTH, HIDDEN, 0.0, False, name="g"),
    lambda: MultiRNNCell(
        [LSTMCell(WIDTH if i == 0 else HIDDEN, HIDDEN, 0.0, False, name="c") for i in range(2)], [1], name="n"
    ),
], ids=["gru", "layers"])  # fmt: skip
@pytest.mark.one_in(2)
def test_decoders_in_both_forms(make):
    found = []
    for form in (None, STEPS):
        reset_names()
        decoder = make()
        cell = AttentionCell(
            READ, "read", BlobReference("source_lengths"), decoder, HIDDEN, AttentionType.Regular, None, True, name="a"
        )
        assert cell.get_output_dim() == HIDDEN + READ
        model = ModelHelper("m")
        names = [f"s{i}" for i in range(len(decoder.get_state_names()))]
        runs = cell if form is None else UnrolledCell(cell, T=form)
        output, _ = runs.apply_over_sequence(model, "x", "lengths", [*names, "context"])
        rng = np.random.default_rng(4)
        values = {**given(), **{name: rng.normal(size=(1, SAMPLES, HIDDEN)) for name in names}}
        values["slope"] = rng.normal(size=(STEPS, SAMPLES, HIDDEN + READ))
        workspace, _ = trained(model, weighted_sum(model, output), values)
        grads = {str(p): workspace.fetch(str(model.grad_map[p])) for p in model.GetParams("")}
        found.append((workspace.fetch(str(output)), workspace.fetch(str(model.grad_map["read"])), grads))
    close(found[0][0], found[1][0])
    close(found[0][1], found[1][1])
    assert found[0][2].keys() == found[1][2].keys()
    for name, gradient in found[0][2].items():
        close(gradient, found[1][2][name])


def test_multiplicative_cell_by_its_name():
    cell = MILSTMWithAttentionCell(READ, "read", WIDTH, HIDDEN, "a", AttentionType.Dot, None, 0.0, False, False)
    model = ModelHelper("m")
    output, _ = cell.apply_over_sequence(model, "x", None, ["hidden", "cell", "context"])
    workspace, _ = trained(model, model.net.SumElements(output), given())
    assert workspace.fetch(str(output)).shape == (STEPS, SAMPLES, HIDDEN + READ)
    assert str(cell.get_attention_weights()) == "a/attention_weights_3d"


def test_refusals():
    decoder = LSTMCell(2, 3, 0.0, False)
    with pytest.raises(ArgumentError, match="must be one of AttentionType, got 7"):
        AttentionCell(READ, "read", None, decoder, 3, 7, None, False)
    cell = AttentionCell(READ, "read", None, decoder, 3, AttentionType.Dot, None, False, name="a")
    with pytest.raises(NetError, match="only attention of type SoftCoverage"):
        cell.build_initial_coverage(ModelHelper("m"))
    with pytest.raises(NetError, match="prepare_input must be called before"):
        cell._apply(ModelHelper("m"), "x", None, ["h", "c", "context"], "t")
