"""Searches as parts of nets: compared with all sequences in NumPy, optional inputs, backtracing, and refusals."""

import numpy as np
import pytest

from netbuilder.graph import BlobReference, NameScope, reset_names
from netbuilder.model.seq2seq import (
    BeamSearchForwardOnly,
    Ensemble,
    Member,
    Seq2SeqModelHelper,
    best_sequence,
    gen_batches,
    gen_vocab,
    prepare_batch,
)
from netbuilder.model.seq2seq.beam_net import LinkConfig, StateConfig
from netbuilder.proto import ArgumentError, NetError
from netbuilder.runtime import Workspace

WORDS, STEPS, END = 6, 4, 2


@pytest.fixture(autouse=True)
def _fresh_names():
    reset_names()


def build(beam_size, rewarded=False, **options):
    """A search whose step knows the word before, and, by its state, the one before that."""
    model = Seq2SeqModelHelper()
    search = BeamSearchForwardOnly(beam_size, model, END, **options)
    net = search.get_step_model().net
    word, _ = net.Reshape(search.get_previous_tokens(), ["word", "word_shape"], shape=[-1])
    before = net.AddExternalInput("before")
    earlier, _ = net.Reshape(net.Cast(before, "before_number", to=2), ["earlier", "earlier_shape"], shape=[-1])
    chances = net.Add([net.Gather(["by_word", word], "one"), net.Gather(["by_earlier", earlier], "other")], "sum")
    log_probs = net.Log(net.Softmax(chances, "probs"), "log_probs")
    after = net.Cast(word, "after", to=1)
    state = StateConfig("start", LinkConfig(before, 0, 1), LinkConfig(after, 1, 1))
    rewards = "rewards" if rewarded else None
    return model, search.apply("sentence", "length", log_probs, None, [state], [], rewards)


def tables(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(WORDS, WORDS)).astype(np.float32) * 2 for _ in range(2)]


def run(model, outputs, seed, rewards=None):
    workspace = Workspace(threads=1)
    by_word, by_earlier = tables(seed)
    given = {"by_word": by_word, "by_earlier": by_earlier, "sentence": np.zeros((2, 1), np.int32),
             "length": np.array([STEPS], np.int64), "start": np.zeros(1, np.float32)}  # fmt: skip
    if rewards is not None:
        given["rewards"] = rewards
    for name, value in given.items():
        workspace.feed(name, value)
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    return [workspace.fetch(str(blob))[..., 0] for blob in outputs[:3]]


def going_on(kept, seed, rewards=None, penalty=0.0):
    """All continuations of the given sequences by one word: (score, words)."""
    by_word, by_earlier = (table.astype(np.float64) for table in tables(seed))
    found = []
    for score, words in kept:
        earlier, word = [0, 1, *words][-2:]  # the state starts with 0, the search with the word 1
        logits = by_word[word] + by_earlier[earlier]
        scores = score + logits - np.log(np.exp(logits).sum()) + (penalty if words and word == END else 0)
        found += [(s, [*words, i]) for i, s in enumerate(scores if rewards is None else scores + rewards)]
    return sorted(found, reverse=True)


def kept_sequences(seed, beam_size, **more):
    """The sequences of each length that a search keeps."""
    kept = [[(0.0, [])]]
    for _ in range(STEPS):
        kept.append(going_on(kept[-1], seed, **more)[:beam_size])
    return kept


def traced(words, before, length, place):
    path = []
    for step in range(length, 0, -1):
        path.append(int(words[step, place]))
        place = before[step, place]
    return path[::-1]


def check(found, kept):
    words, before, scores = found
    for length in range(1, STEPS + 1):
        np.testing.assert_allclose(scores[length], [score for score, _ in kept[length]], rtol=1e-4)
        paths = [traced(words, before, length, place) for place in range(len(kept[length]))]
        assert paths == [path for _, path in kept[length]]


@pytest.mark.parametrize("seed", range(3))
def test_a_search_keeps_the_best(seed):
    words, before, scores = run(*build(WORDS), seed)
    assert words.dtype == before.dtype == np.int32
    kept = kept_sequences(seed, WORDS)
    check((words, before, scores), kept)
    every = going_on(going_on([(0.0, [])], seed), seed)  # of two words the best of all
    assert kept[2] == every[:WORDS]
    ended = [s for length in kept[1:] for s in length if s[1][-1] == END or len(s[1]) == STEPS]
    best = best_sequence(words, before, scores)
    assert (best.tokens, best.score) == (max(ended)[1], pytest.approx(max(ended)[0], rel=1e-4))


def test_rewards_and_penalties_count():
    rewards = np.array([0.3, -0.2, 0.0, 1.0, 0.1, 0.2], np.float32)
    check(run(*build(4, rewarded=True), 5, rewards), kept_sequences(5, 4, rewards=rewards))
    kept = kept_sequences(5, 4, penalty=-2.0)
    assert kept[STEPS] != kept_sequences(5, 4)[STEPS]
    check(run(*build(4, post_eos_penalty=-2.0), 5), kept)


def test_a_narrow_beam_is_the_greedy_choice():
    words, before, scores = run(*build(1), 2)
    by_word, by_earlier = tables(2)
    path = [0, 1]
    for _ in range(STEPS):
        path.append(int(np.argmax(by_word[path[-1]] + by_earlier[path[-2]])))
    assert words[:, 0].tolist() == path[1:] and not before.any()


def test_all_that_steps_read_are_inputs():
    model, outputs = build(2)
    assert outputs[3] is None
    (search,) = [op for op in model.net.Proto().op if op.type == "RecurrentNetwork"]
    assert {"by_word", "by_earlier", "ZERO", "beam_size", "start"} <= set(search.input)
    assert len(set(search.input)) == len(search.input)


def test_names_have_their_scope_once():
    with NameScope("ns"):
        model, outputs = build(2)
    assert str(outputs[0]) == "ns/output_token_beam_list"
    assert not any("ns/ns/" in blob for op in model.net.Proto().op for blob in (*op.input, *op.output))


def test_the_best_sequence():
    tokens = np.array([[1, 1, 1], [4, 5, 2], [6, 2, 7], [2, 8, 9]])
    before = np.array([[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 2, 0]])
    scores = np.array([[0, 0, 0], [-1, -2, -3], [-2, -2.5, -3], [-4, -2.2, -2.3]])
    assert best_sequence(tokens, before, scores) == ([4, 7, 8], [0, 2, 1], -2.2)
    scores[3] = -5
    assert best_sequence(tokens, before, scores) == ([5, 2], [1, 1], -2.5)
    scores[1, 2] = scores[3, 0] = -1  # of equals the best of the last row
    assert best_sequence(tokens, before, scores) == ([4, 6, 2], [0, 0, 0], -1)
    with pytest.raises(ArgumentError, match="must have the same shape"):
        best_sequence(tokens, before[:2], scores)
    with pytest.raises(ArgumentError, match="with at least one step"):
        best_sequence(tokens[:1], before[:1], scores[:1])


def test_batches(tmp_path):
    for name, lines in (("source", ["a b", "", "b", "a b a", "b b b b"]), ("target", ["x", "y", "x y", "y x", "x"])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    files = (tmp_path / "source", tmp_path / "target")
    vocabs = [gen_vocab(file, 0) for file in files]
    made = gen_batches(*files, *vocabs, 2, 3)
    assert sorted(made) == [[([4, 5, 4], [5, 4])] * 2, [([5], [4, 5]), ([4, 5], [4])]]
    assert gen_batches(*files, *vocabs, 2, 0) == []
    (batch,) = [batch for batch in made if len(batch[0][0]) == 1]
    arrays = prepare_batch(batch)
    assert arrays.encoder_inputs.tolist() == [[5, 5], [0, 4]] and arrays.encoder_lengths.tolist() == [1, 2]
    assert arrays.decoder_inputs.tolist() == [[1, 1], [4, 4], [5, 0]] and arrays.decoder_lengths.tolist() == [3, 2]
    assert arrays.targets.tolist() == [[4, 4], [5, 2], [2, 0]]
    assert arrays.target_weights.tolist() == [[1, 1], [1, 1], [1, 0]]
    with pytest.raises(ArgumentError, match="batch_size must be positive"):
        gen_batches(*files, *vocabs, 0, None)
    with pytest.raises(ArgumentError, match="at least one pair"):
        prepare_batch([])
    with open(files[1], "a", encoding="utf-8") as target:
        target.write("b\n")
    with pytest.raises(ArgumentError, match="source and .*target must have the same number of lines"):
        gen_batches(*files, *vocabs, 2, None)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("attention", ["none", "regular", "recurrent", "dot"])
def test_ensembles_of_all_attentions(attention):
    params = {"encoder_type": {"encoder_layer_configs": [{"num_units": 3}]}, "encoder_embedding_size": 2,
              "decoder_layer_configs": [{"num_units": 4}, {"num_units": 4, "residual": True, "dropout_keep_prob": 0.5}],
              "decoder_embedding_size": 2, "decoder_softmax_size": None}  # fmt: skip
    model = Seq2SeqModelHelper()
    members = [Member("one", {**params, "attention": attention}), Member("two", {**params, "attention": "none"})]
    blobs = Ensemble(model, members, 2, 5, 5).build()
    workspace = Workspace(threads=1)
    values = (np.array([[4], [3]], np.int32), np.array([2], np.int32), np.array([6], np.int64))
    for blob, value in zip(blobs, values):
        workspace.feed(str(blob), value)
    for net in (model.param_init_net, model.net):
        workspace.run_net_once(net)
    looked = workspace.fetch(str(blobs.output_attention_weights_beam_list))
    assert looked.shape == (7, 2, 2)
    np.testing.assert_allclose(looked[1:].sum(-1), 0.5 if attention != "none" else 0, rtol=1e-5)
    assert np.isfinite(workspace.fetch(str(blobs.output_score_beam_list))).all()


def test_refusals():
    model = Seq2SeqModelHelper()
    with pytest.raises(ArgumentError, match="beam_size must be positive, got 0"):
        BeamSearchForwardOnly(0, model, 2)
    search = BeamSearchForwardOnly(2, model, 2)
    link = LinkConfig(BlobReference("nowhere"), 0, 1)
    with pytest.raises(NetError, match="does not define state 'nowhere'"):
        search.apply("x", "n", BlobReference("log_probs"), None, [StateConfig("s", link, link)], [])
    with pytest.raises(ArgumentError, match="must have at least one translator"):
        Ensemble(model, [], 2, 5, 5)
    with pytest.raises(ArgumentError, match="model_params must have attention; it has"):
        names = ("encoder_type", "encoder_embedding_size", "decoder_layer_configs", "decoder_embedding_size",
                 "decoder_softmax_size")  # fmt: skip
        Ensemble(model, [Member("m", dict.fromkeys(names))], 2, 5, 5)
    with pytest.raises(ArgumentError, match="m: attention 'soft_coverage' is not supported"):
        Ensemble(model, [Member("m", {**dict.fromkeys(names), "attention": "soft_coverage"})], 2, 5, 5)
    with pytest.raises(ArgumentError, match="beam_size must be at most the number of words, 5, got 6"):
        Ensemble(model, [Member("m", dict.fromkeys([*names, "attention"]))], 6, 5, 5)
