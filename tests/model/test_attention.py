"""Attention, positions, blocks of transformers and generation, against NumPy in float64 and each other."""

import math

import numpy as np
import pytest

from netbuilder.model import Generator, ModelHelper, brew
from netbuilder.model.helpers.attention import KeyValueCache
from netbuilder.proto import ArgumentError, GradientError, NetError, ShapeError
from netbuilder.runtime import Workspace

DIM, HEADS, STEPS, WIDTH = 12, 6, 5, 2


def run(model, seed=0, **inputs):
    workspace = Workspace(threads=1)
    workspace.seed = seed
    for name, value in inputs.items():
        workspace.feed(name, value)
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    return workspace


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def by_head(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def turned(x, cos, sin):
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def attention(fetch, x, memory, groups, causal, mask, rotary):
    """Attention in float64, from the parameters of ``brew.attention(..., "y")``."""

    def project(a, name):
        return a @ fetch(f"y{name}_w").T + fetch(f"y{name}_b")

    if memory is None:
        q, k, v = np.split(project(x, "_qkv"), [DIM, DIM + groups * WIDTH], axis=-1)
    else:
        q, (k, v) = project(x, "_q"), np.split(project(memory, "_kv"), 2, axis=-1)
    q, k, v = by_head(q, HEADS), by_head(k, groups), by_head(v, groups)
    if rotary:
        cos, sin = fetch("turns_cos")[:STEPS], fetch("turns_sin")[:STEPS]
        q, k = turned(q, cos, sin), turned(k, cos, sin)
    k, v = (np.repeat(a, HEADS // groups, axis=1) for a in (k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(STEPS, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = (weights / weights.sum(-1, keepdims=True)) @ v
    return project(y.swapaxes(1, 2).reshape(x.shape), "")


NEIGHBORS = abs(np.subtract.outer(np.arange(STEPS), np.arange(STEPS))) < 2
CASES = {
    "self": {},
    "causal": {"causal": True},
    "grouped": {"key_heads": 2},
    "one head of keys, without biases": {"key_heads": 1, "bias": False},
    "rotary": {"rotary": True, "causal": True, "key_heads": 3},
    "cross": {"memory": draw(2, 3, 7, seed=1), "memory_dim": 7},
    "mask of numbers": {"mask": draw(2, 1, STEPS, STEPS, seed=2)},
    "boolean mask": {"mask": NEIGHBORS},
}


def attended(case, **more):
    given, fed = {**CASES[case]}, {"x": draw(2, STEPS, DIM)}
    model = ModelHelper("attention")
    for name in ("memory", "mask"):
        if name in given:
            fed[name], given[name] = given[name], name
    if "rotary" in given:
        given["rotary"] = brew.rotary_tables(model, "turns", WIDTH, STEPS + 2)
    init = ("GaussianFill", {"std": 0.5})
    brew.attention(model, "x", "y", DIM, HEADS, weight_init=init, **given, **more)
    return model, fed


@pytest.mark.parametrize("case", CASES)
def test_attention(case):
    model, fed = attended(case)
    workspace = run(model, **fed)
    given = CASES[case]
    want = attention(
        lambda blob: workspace.fetch(blob).astype(np.float64), fed["x"].astype(np.float64), given.get("memory"),
        given.get("key_heads", HEADS), given.get("causal", False), given.get("mask"), "rotary" in given,
    )  # fmt: skip
    np.testing.assert_allclose(workspace.fetch("y"), want, rtol=2e-5, atol=2e-6)
    biases = {blob for blob in map(str, model.params) if blob.endswith("_b")}
    assert bool(biases) == given.get("bias", True)


@pytest.mark.parametrize("case", [case for case in CASES if case != "boolean mask"])
def test_dropping_nothing_in_parts_gives_what_the_operator_gives(case):
    """Results and gradients; a ratio so small that no weight is dropped."""
    found = []
    for ratio in (0.0, 1e-12):
        model, fed = attended(case, dropout=ratio, is_test=False)
        loss = model.net.AveragedLoss(model.net.Sqr("y", "squares"), "loss")
        gradients = model.AddGradientOperators([loss])
        workspace = run(model, **fed)
        found.append([workspace.fetch(str(blob)) for blob in ("y", *(gradients[p] for p in model.params))])
    for one, two in zip(*found):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


def test_is_test_may_be_left_open_where_nothing_is_dropped():
    model = ModelHelper("open")
    brew.transformer_block(model, "x", "y", DIM, HEADS, is_test=None)
    assert "Dropout" not in [op.type for op in model.net.Proto().op]


@pytest.mark.parametrize("learned", [False, True])
def test_a_mask_from_the_net_has_a_gradient_only_if_it_is_learned(learned):
    """The mask is computed from tokens, by operators that have no gradient."""
    model = ModelHelper("padded")
    mask = model.net.Scale(model.net.Cast(model.net.EQ(["tokens", "pad"], broadcast=1), to="float"), scale=-1e9)
    mask = model.net.ExpandDims(mask, "mask", dims=[1, 2])
    brew.transformer_block(
        model, "x", "y", DIM, HEADS, mask=mask, mask_gradient=learned, dropout=0.5, is_test=False
    )  # fmt: skip
    loss = model.net.AveragedLoss("y", "loss")
    if learned:
        with pytest.raises(GradientError, match="'EQ' has no gradient"):
            model.AddGradientOperators([loss])
        return
    model.AddGradientOperators([loss])
    tokens = np.arange(2 * STEPS).reshape(2, STEPS) % 4
    workspace = run(model, x=draw(2, STEPS, DIM), tokens=tokens, pad=np.array([3]))
    assert np.isfinite(workspace.fetch("y_attention_qkv_w_grad")).all()


def test_dropout_drops_weights():
    model, fed = attended("causal", dropout=0.5, is_test=False)
    workspace = run(model, **fed)
    weights, kept = workspace.fetch("y_weights"), workspace.fetch("y_kept")
    assert 0.2 < (kept[weights > 0] == 0).mean() < 0.8
    np.testing.assert_allclose(kept[kept > 0], 2 * weights[kept > 0], rtol=1e-6)
    assert "Dropout" not in [op.type for op in attended("self", dropout=0.5, is_test=True)[0].net.Proto().op]


def test_sines_and_cosines_of_positions():
    model = ModelHelper("positions")
    brew.positions(model, "x", "y", 6, 4, kind="sinusoidal")
    workspace = run(model, x=np.zeros((1, 4, 6), np.float32))
    angles = np.arange(4)[:, None] / 10000 ** (np.arange(0, 6, 2) / 6)
    want = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(4, 6)
    np.testing.assert_allclose(workspace.fetch("y")[0], want, rtol=1e-5, atol=1e-6)
    assert not model.params


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_block(norm, norm_first):
    model = ModelHelper("block")
    brew.transformer_block(
        model, "x", "b", DIM, HEADS, hidden=20, norm=norm, norm_first=norm_first, activation="relu", epsilon=0.1
    )
    workspace = run(model, x=draw(2, STEPS, DIM))

    def fetch(blob):
        return workspace.fetch(blob).astype(np.float64)

    def normalized(x, name):
        x = x - (x.mean(-1, keepdims=True) if norm == "layer" else 0)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.1) * fetch(f"b_{name}_scale") + fetch(f"b_{name}_bias")

    def attend(x):
        return attention(lambda blob: fetch("b_attention" + blob[1:]), x, None, HEADS, False, None, False)

    def connect(x):
        inner = np.maximum(x @ fetch("b_fc1_w").T + fetch("b_fc1_b"), 0)
        return inner @ fetch("b_fc2_w").T + fetch("b_fc2_b")

    x = fetch("x")
    for name, layer in (("norm1", attend), ("norm2", connect)):
        x = x + layer(normalized(x, name)) if norm_first else normalized(x + layer(x), name)
    np.testing.assert_allclose(workspace.fetch("b" if norm_first else "b_norm2"), x, rtol=2e-5, atol=2e-6)


TOKENS, LENGTH = 11, 9


def language_model(model, tokens, cache=None, kind="learned"):
    x = brew.embedding(model, tokens, "of_token", TOKENS, DIM, weight_init=("GaussianFill", {"std": 1.0}))
    x = brew.positions(model, x, "placed", DIM, LENGTH, kind=kind, cache=cache)
    turns = brew.rotary_tables(model, "turns", WIDTH, LENGTH)
    for i in range(2):
        x = brew.transformer_block(
            model, x, f"b{i}", DIM, HEADS, causal=True, key_heads=3, rotary=turns, norm="rms", cache=cache
        )
    return brew.fc(model, x, "scores", DIM, TOKENS, axis=2)


@pytest.fixture(scope="module", params=["learned", "sinusoidal"])
def trained(request):
    def build(model, tokens, cache=None):
        return language_model(model, tokens, cache, request.param)

    model = ModelHelper("whole")
    build(model, "sequences")
    workspace = run(model, sequences=np.zeros((2, LENGTH), np.int32))
    return workspace, model, Generator(workspace, build, length=LENGTH, batch=2)


def whole_scores(workspace, model, tokens):
    workspace.feed("sequences", tokens)
    workspace.run_net_once(model.net)
    return workspace.fetch("scores")


def test_a_sequence_longer_than_the_positions_is_told_their_number():
    model = ModelHelper("short")
    language_model(model, "tokens", None, "learned")
    with pytest.raises(ShapeError, match=rf"made at .*\(adds the vectors of {LENGTH} positions, so.*\): Add: A"):
        run(model, tokens=np.zeros((1, LENGTH + 3), np.int32)).run_net_once(model.net)


def test_a_generator_needs_tables_as_long_as_its_sequences_and_a_function_that_takes_the_cache():
    def build(model, tokens, cache=None):
        tables = brew.rotary_tables(model, "angles", 4, 6)
        x = brew.embedding(model, tokens, "vectors", 5, 8)
        return brew.attention(model, x, "y", 8, 2, causal=True, rotary=tables, cache=cache)

    model, workspace = ModelHelper("rotary"), Workspace()
    build(model, "tokens")
    workspace.run_net_once(model.param_init_net)
    Generator(workspace, build, length=6)
    with pytest.raises(ArgumentError, match="the rotary table 'angles_cos' has 6 positions, fewer than length=7"):
        Generator(workspace, build, length=7)
    with pytest.raises(ArgumentError, match="must take the model, the tokens and the cache, .*: too many positional"):
        Generator(workspace, lambda model, tokens: build(model, tokens), length=6)
    with pytest.raises(ArgumentError, match="build must be a function"):
        Generator(workspace, None, length=6)
    with pytest.raises(ArgumentError, match="makes 'y_heads' does not use the cache, .* pass cache=cache to brew.att"):
        Generator(workspace, lambda model, tokens, cache: build(model, tokens), length=6)
    with pytest.raises(ShapeError, match="sequences of prompt must have the same length"):
        Generator(workspace, build, length=6, batch=2)([[1], [2, 3]], 1)
    with pytest.raises(TypeError, match="Generator: missing .*'steps'"):
        Generator(workspace, build, length=6)([[1]])
    with pytest.raises(TypeError, match="instead of 'step', did you mean 'steps'"):
        Generator(workspace, build, length=6)([[1]], step=5)


def test_one_step_a_token_gives_what_the_whole_net_gives(trained):
    workspace, model, generate = trained
    prompt = np.array([[1, 2, 3], [4, 0, 10]])
    found = generate(prompt, LENGTH - 3)
    assert (found[:, :3] == prompt).all()
    scores = whole_scores(workspace, model, found)
    assert (found[:, 3:] == scores.argmax(axis=-1)[:, 2:-1]).all()
    assert (generate(prompt, LENGTH - 3) == found).all()  # nothing remains of the former sequence
    assert (generate(prompt, 2) == found[:, :5]).all()


def test_tokens_are_drawn_from_the_softmax_of_the_best(trained):
    workspace, model, generate = trained
    prompt = np.array([[1, 2, 3], [4, 0, 10]])
    drawn = np.stack([generate(prompt, 1, temperature=0.5, top_k=4, seed=seed)[:, 3] for seed in range(200)])
    scores = whole_scores(workspace, model, np.pad(prompt, ((0, 0), (0, LENGTH - 3))).astype(np.int32))[:, 2]
    for row, counts in zip(scores.astype(np.float64), drawn.T):
        best = np.argsort(row)[-4:]
        p = np.zeros(TOKENS)
        p[best] = np.exp(row[best] / 0.5 - row[best].max() / 0.5)
        found = np.bincount(counts, minlength=TOKENS) / 200
        np.testing.assert_allclose(found, p / p.sum(), atol=0.12)
        assert not found[p == 0].any()
    assert (generate(prompt, 4, temperature=1.0, seed=1) == generate(prompt, 4, temperature=1.0, seed=1)).all()


@pytest.mark.parametrize(
    "prompt, steps, options, match",
    [
        ([[1, 2]], 1, {}, r"in a shape \(2, T\), T at least 1, got int64 in the shape \(1, 2\)"),
        ([[], []], 1, {}, "T at least 1, got float64"),
        ([[1.0], [2.0]], 1, {}, "whole numbers .* got float64"),
        ([[1, 2], [3, 4]], 8, {}, "2 tokens of the prompt and 8 steps are more than length=9"),
        ([[1], [3]], 1, {"temperature": -1}, "temperature must be a number of at least 0, got -1"),
        ([[1], [3]], 1, {"top_k": 0}, "top_k must be a whole number of at least 1, got 0"),
        ([[1], [3]], 1, {"top_k": TOKENS + 1}, f"top_k must be at most the number of tokens, {TOKENS}, got"),
    ],
)
def test_prompts_that_are_refused(trained, prompt, steps, options, match):
    with pytest.raises(NetError, match=match):
        trained[2](prompt, steps, **options)


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda m: brew.attention(m, "x", "y", 10, 4), "heads must divide dim=10, .* got heads=4, key_heads=4"),
        (lambda m: brew.attention(m, "x", "y", 8, 4, key_heads=3), "key_heads the heads, got heads=4, key_heads=3"),
        (lambda m: brew.attention(m, "x", "y", 8, 0), "heads must be a positive integer, got 0"),
        (lambda m: brew.attention(m, "x", "y", 8, 4, dropout=1.0), r"dropout must lie in \[0, 1\), got 1.0"),
        (lambda m: brew.attention(m, "x", "y", 8, 4, dropout=0.1), "is_test is required with dropout"),
        (lambda m: brew.positions(m, "x", "y", 8, 4, kind="sine"), "must be 'learned' or 'sinusoidal', got 'sine'"),
        (lambda m: brew.positions(m, "x", "y", 7, 4, kind="sinusoidal"), "the width must be even, got 7"),
        (
            lambda m: brew.positions(m, "x", "y", 8, 4, cache=KeyValueCache(1, 5)),
            "has 4 positions, and the Generator asks for sequences of length=5; give it a length of at most 4",
        ),
        (lambda m: brew.positions(m, "x", "y", 8, 4, steps=5), "steps must be at most length=4, got 5"),
        (lambda m: brew.positions(m, "x", "y", 8, 4, steps=0), "steps must be a positive integer, got 0"),
        (lambda m: brew.rotary_tables(m, "y", 3, 4), "the width must be even, got 3"),
        (lambda m: brew.rotary_tables(m, "y", 4, 4, base=0.0), "base must be positive, got 0.0"),
        (lambda m: brew.transformer_block(m, "x", "y", 8, 4, activation="glu"), "one of gelu, .* did you mean 'gelu'"),
        (lambda m: brew.transformer_block(m, "x", "y", 8, 4, norm="batch"), "norm must be one of layer, rms, got 'b"),
    ],
)  # fmt: skip
def test_refusals(call, match):
    model = ModelHelper("refused")
    with pytest.raises(ArgumentError, match=match):
        call(model)
    assert not model.net.op_len and not model.params
