"""Sequence-to-sequence helpers: layers and searches compared with NumPy, first states, words."""

import itertools

import numpy as np
import pytest

from netbuilder.graph import BlobReference, DeviceScope, NameScope, reset_names
from netbuilder.model import ModelHelper
from netbuilder.model.seq2seq import (
    Seq2SeqModelHelper,
    beam_search,
    build_embedding_decoder,
    build_embedding_encoder,
    build_embeddings,
    build_initial_rnn_decoder_states,
    gen_vocab,
    get_numberized_sentence,
    output_projection,
    rnn_bidirectional_layer,
    rnn_unidirectional_layer,
)
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, ArgumentError, ShapeError
from netbuilder.proto.arguments import arguments, make_device_option
from netbuilder.runtime import Workspace
from rnn_nets import check_gradients, close, trained, weighted_sum
from rnn_reference import lstm, run

STEPS, SAMPLES, WIDTH, UNITS = 3, 2, 2, 3
LENGTHS = np.array([3, 2], np.int32)


@pytest.fixture(autouse=True)
def _fresh_names():
    reset_names()


def states_of(values, scope, x):
    """Hidden states of one LSTM over x from states of 0."""
    own = {key.removeprefix(scope): v for key, v in values.items() if key.startswith(scope)}
    zeros = [np.zeros((SAMPLES, UNITS))] * 2
    return run(lambda now, before: lstm(own, now, before), x, zeros, values["lengths"])[0]


def turned(x):
    made = x.copy()
    for n, length in enumerate(LENGTHS):
        made[:length, n] = x[:length, n][::-1]
    return made


def both_ways(values):
    forth = states_of(values, "b/fw/lstm/", values["x"])
    back = states_of(values, "b/bw/lstm/", turned(values["x"]))
    return np.concatenate([forth, turned(back)], -1), np.concatenate([forth[-1:], back[-1:]], -1)


def test_a_layer_both_ways():
    model = ModelHelper("m")
    outputs, hidden, cell = rnn_bidirectional_layer(model, "x", "lengths", WIDTH, UNITS, None, False, True, True, "b")
    assert str(cell) == "b/final_cell_state"
    rng = np.random.default_rng(1)
    values = {"x": rng.normal(size=(STEPS, SAMPLES, WIDTH)), "lengths": LENGTHS}
    values["slope"] = rng.normal(size=(STEPS, SAMPLES, 2 * UNITS))
    workspace, values = trained(model, weighted_sum(model, outputs), values)
    want, last = both_ways(values)
    close(workspace.fetch(str(outputs)), want)
    close(workspace.fetch(str(hidden)), last)
    names = ["x", "b/fw/lstm/i2h_w", "b/bw/lstm/gates_t_w"]
    check_gradients(model, workspace, values, lambda v: float((both_ways(v)[0] * v["slope"]).sum()), names)


def test_dropout_of_a_layer_is_for_training():
    for forward_only, count in ((False, 1), (True, 0)):
        model = ModelHelper("m")
        rnn_unidirectional_layer(model, "x", "lengths", WIDTH, UNITS, 0.7, forward_only, True, True, "u")
        assert [op.type for op in model.net.Proto().op].count("Dropout") == count


def test_encoders_of_several_layers():
    model = Seq2SeqModelHelper()
    table = build_embeddings(model, 10, 4, "table", True)
    params = {"encoder_layer_configs": [{"num_units": 3}, {"num_units": 5}], "use_bidirectional_encoder": True}
    encoded = build_embedding_encoder(model, params, 1, "words", "lengths", 10, table, 4, True, scope="e")
    fill = model.param_init_net.Proto().op[0]
    assert fill.output[:] == ["table"] and arguments(fill)["std"] == pytest.approx(0.1)
    assert encoded.units_per_layer == [6, 5] and encoded.final_hidden_states[0] is None
    workspace = Workspace(threads=1)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("words", np.ones((STEPS, SAMPLES), np.int32))
    workspace.feed("lengths", LENGTHS)
    workspace.run_net_once(model.net)
    assert workspace.fetch(str(encoded.outputs)).shape == (STEPS, SAMPLES, 5)
    assert workspace.fetch(str(encoded.final_cell_states[1])).shape == (1, SAMPLES, 5)
    assert "table" in map(str, model.GetNonTrainableParams()) and "table" not in map(str, model.GetParams())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("attention", ["none", "regular", "recurrent", "dot", "soft_coverage"])
def test_a_whole_model_runs_and_has_gradients(attention):
    model = Seq2SeqModelHelper()
    tables = [build_embeddings(model, 7, 4, name, False) for name in ("source_table", "target_table")]
    params = {"encoder_layer_configs": [{"num_units": 3, "dropout_keep_prob": 0.9}]}
    encoded = build_embedding_encoder(
        model, params, 2, "source", "source_lengths", 7, tables[0], 4, attention != "none", scope="e"
    )
    layers = [{"num_units": 4}, {"num_units": 4, "residual": True, "dropout_keep_prob": 0.9}]
    outputs, width = build_embedding_decoder(
        model, layers, "target", "lengths", "source_lengths", encoded.outputs, None, encoded.final_hidden_states,
        encoded.final_cell_states, encoded.units_per_layer, 7, tables[1], 4, attention, False, scope="d",
    )  # fmt: skip
    assert width == (4 if attention == "none" else 7)
    scores = output_projection(model, outputs, width, 7, 5)
    model.AddGradientOperators([model.net.AveragedLoss(scores, "loss")])
    assert set(map(str, model.GetParams())) == set(map(str, model.param_to_grad))
    workspace = Workspace(threads=1)
    workspace.run_net_once(model.param_init_net)
    rng = np.random.default_rng(0)
    for name in ("source", "target"):
        workspace.feed(name, rng.integers(0, 7, (STEPS, SAMPLES)).astype(np.int32))
    for name in ("source_lengths", "lengths"):
        workspace.feed(name, LENGTHS)
    workspace.run_net_once(model.net)
    assert workspace.fetch(str(scores)).shape == (STEPS * SAMPLES, 7)
    assert np.isfinite(workspace.fetch(str(model.param_to_grad[BlobReference("decoder_outputs_scaled_w")]))).all()


def test_tables_are_on_the_cpu_when_replicas_are_on_gpus():
    model = Seq2SeqModelHelper()
    with NameScope("gpu_1"), DeviceScope(make_device_option(PROTO_CUDA, 1)):
        params = {"encoder_layer_configs": [{"num_units": 3}]}
        encoded = build_embedding_encoder(
            model, params, 1, "words", "lengths", 7, BlobReference("table"), 4, True, num_gpus=2
        )
        build_embedding_decoder(
            model, [{"num_units": 3}], "target", "target_lengths", "lengths", encoded.outputs, None,
            encoded.final_hidden_states, encoded.final_cell_states, [3], 7, BlobReference("table"), 4, "none", False, 2,
        )  # fmt: skip
    ops = model.net.Proto().op
    for name in ("gpu_1/embedded_encoder_inputs", "gpu_1/embedded_decoder_inputs"):
        (look_up,) = [op for op in ops if f"{name}_cpu" in op.output]
        (copy,) = [op for op in ops if name in op.output]
        assert look_up.type == "Gather" and look_up.device_option.device_type == PROTO_CPU
        assert copy.type == "CopyCPUToGPU" and list(copy.input) == [f"{name}_cpu"]
    rest = [op for op in ops if op.type != "Gather"]
    assert all((op.device_option.device_type, op.device_option.device_id) == (PROTO_CUDA, 1) for op in rest)


def test_first_states_of_a_decoder():
    model = ModelHelper("m")
    hidden = [BlobReference(f"h{i}") for i in range(2)]
    cells = [BlobReference(f"c{i}") for i in range(2)]
    states = build_initial_rnn_decoder_states(model, [3, 5], [5], hidden, cells, False)
    assert [str(s) for s in states] == ["h1", "c1"]
    states = build_initial_rnn_decoder_states(model, [3, 5], [3, 4, 6], hidden, cells, True)
    assert [str(s) for s in states][:2] == ["h0", "c0"] and len(states) == 7
    assert [op.type for op in model.net.Proto().op] == ["FC", "FC"]
    assert "decoder_initial_hidden_state_2" in map(str, model.GetParams())


def test_words(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("a b a\nc a b b\n\nd <UNK>\n")
    assert list(gen_vocab(str(file), 0)) == ["<PAD>", "<GO>", "<EOS>", "<UNK>", "a", "b", "c", "d"]
    assert gen_vocab(file, 1) == gen_vocab(file.read_text().splitlines(), 1)
    assert get_numberized_sentence(" a  zz\n", gen_vocab(file, 1)) == [4, 3]
    with pytest.raises(ArgumentError, match="unk_threshold must not be negative"):
        gen_vocab(file, -1)


def test_parameters_that_are_not_trained():
    model = Seq2SeqModelHelper(name="s")
    fixed = model.AddParam("fixed", init_value=2.0, trainable=False)
    made = model.AddParam("made", init=model.param_init_net.ConstantFill([], "seed", shape=[2], value=1.0))
    assert model.GetParams() == [made] and model.GetNonTrainableParams() == [fixed]
    assert set(model.GetAllParams()) == {made, fixed}
    with NameScope("inner"):
        own = model.AddParam("own", init=("ConstantFill", {"shape": [3], "value": 1}), trainable=False)
        assert model.GetNonTrainableParams() == [own] and str(own) == "inner/own"
    with pytest.raises(ArgumentError, match="give init, a blob"):
        model.AddParam("nothing")


# The search.


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_the_best_of_all(seed, penalty):
    words, longest, end = 4, 3, 2
    table = np.random.default_rng(seed).normal(size=(longest, words, words))
    table -= np.log(np.exp(table).sum(-1, keepdims=True))

    def step(tokens, states, number):
        assert (states["last"][:, 0] == tokens).all() or number == 0
        return table[number, tokens], {"last": states["last"] * 0 + tokens[:, None]}

    def wrapped(tokens, states, number):
        scores, _ = step(tokens, {"last": tokens[:, None]}, number)
        return scores, {"last": tokens[:, None]}

    found = beam_search(
        wrapped, {"last": np.zeros(1)}, beam_size=64, max_length=longest, end_token=end, length_penalty=penalty
    )
    every = []
    for length in range(longest + 1):
        for tokens in itertools.product([w for w in range(words) if w != end], repeat=length):
            ends = [end] if length < longest else []
            path = [1, *tokens, *ends]
            score = sum(table[t, a, b] for t, (a, b) in enumerate(itertools.pairwise(path)))
            every.append((score / max(1, len(path) - 1) ** penalty, tokens))
    best = max(every)
    assert found[0].tokens == best[1]
    assert found[0].normalized(penalty) == pytest.approx(best[0])
    ranks = [h.normalized(penalty) for h in found]
    assert ranks == sorted(ranks, reverse=True)


def test_states_follow_their_sequences():
    """Each state counts the words of its sequence."""

    def step(tokens, states, number):
        assert (states["count"] == number).all()
        return np.log(np.full((len(tokens), 5), 0.2)), {"count": states["count"] + 1}

    assert len(beam_search(step, {"count": np.zeros(())}, beam_size=3, max_length=4)) == 3


def test_wrong_searches():
    def step(tokens, states, number):
        return np.zeros((len(tokens) + 1, 3)), states

    with pytest.raises(ShapeError, match="one row for each of 1 tokens, got 2 rows"):
        beam_search(step, {}, beam_size=1, max_length=1)
    with pytest.raises(ArgumentError, match="beam_size must be positive, got 0"):
        beam_search(step, {}, beam_size=0, max_length=1)


def test_refusals():
    model = ModelHelper("m")
    with pytest.raises(ArgumentError, match="must have encoder_layer_configs"):
        build_embedding_encoder(model, {}, 1, "x", "l", 5, "t", 4, False)
    with pytest.raises(ArgumentError, match="num_gpus must not be negative, got -1"):
        build_embedding_encoder(model, {"encoder_layer_configs": [{}]}, 1, "x", "l", 5, "t", 4, False, num_gpus=-1)
    with pytest.raises(ArgumentError, match="attention_type must be 'none' or one of"):
        build_embedding_decoder(
            model, [{"num_units": 3}], "x", "l", "sl", "o", None, ["h"], ["c"], [3], 5, "t", 4, "hard", False
        )
