"""Normalization and attention in parts: each way of writing them becomes one operator; what must stay as it is."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.passes import join_parts
from netbuilder.runtime import Workspace

N, T, D = 2, 5, 8
CONSTANTS = {
    "eps": np.float32(1e-3),
    "one": np.float32(1),
    "two": np.float32(2),
    "half": np.float32(0.5),
    "less": np.float32(-0.5),
    "zero": np.float32(0),
    "inf": np.float32(-np.inf),
    "low": np.finfo(np.float32).min,
    "root": np.float32(np.sqrt(8)),
    "causal": np.tri(T, dtype=bool),
    "later": ~np.tri(T, dtype=bool),
    "bias": np.where(np.tri(T, dtype=bool), 0, -np.inf).astype(np.float32),
    "g": np.linspace(0.5, 2, D, dtype=np.float32),
    "b": np.linspace(-1, 1, D, dtype=np.float32),
}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def run(net, values, name="y"):
    workspace = Workspace(threads=1)
    for blob, value in values.items():
        workspace.feed(blob, value)
    workspace.run_net_once(net)
    return workspace.fetch(name)


class Parts:
    """Builds a net by calls whose results are further blobs."""

    def __init__(self):
        self.net, self.count = Net("parts"), 0

    def __getattr__(self, op_type):
        def call(*inputs, to=None, **args):
            self.count += 1
            getattr(self.net, op_type)(list(inputs), to or f"t{self.count}", **args)
            return to or f"t{self.count}"

        return call

    def mean(self, x):
        return self.ReduceMean(x, axes=[-1], keepdims=1)


def joined(parts, inputs, **more):
    """Return the joined net, its types, and the values that it needs."""
    specs = {name: TensorSpec(value.shape, value.dtype) for name, value in inputs.items()}
    parts.net.Proto().external_output.append("y")
    net, parameters = join_parts(parts.net, CONSTANTS, specs, **more)
    return net, [op.type for op in net.op], {**parameters, **inputs}


def spread(p, x):
    return p.Add(p.mean(p.Mul(x, x)), "eps")


SQUARES = {
    "product": lambda p, x: p.Mul(x, x),
    "power": lambda p, x: p.Pow(x, exponent=2.0),
    "power by a blob": lambda p, x: p.Pow(x, "two"),
    "square": lambda p, x: p.Sqr(x),
}
DIVISIONS = {
    "by the root": lambda p, x, v: p.Div(x, p.Sqrt(v)),
    "reciprocal": lambda p, x, v: p.Mul(x, p.Reciprocal(p.Sqrt(v))),
    "reciprocal first": lambda p, x, v: p.Mul(p.Reciprocal(p.Sqrt(v)), x),
    "one over": lambda p, x, v: p.Mul(x, p.Div("one", p.Sqrt(v))),
    "root of the inverse": lambda p, x, v: p.Mul(x, p.Sqrt(p.Reciprocal(v))),
    "rsqrt": lambda p, x, v: p.Mul(x, p.Rsqrt(v)),
    "power": lambda p, x, v: p.Mul(x, p.Pow(v, "less")),
    "by a power": lambda p, x, v: p.Div(x, p.Pow(v, exponent=0.5)),
}


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("divide", DIVISIONS)
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_normalization(kind, divide, square):
    p, x = Parts(), normal(N, T, D)
    d = p.Sub("x", p.mean("x")) if kind == "LayerNorm" else "x"
    variance = p.Add("eps", p.mean(SQUARES[square](p, d)))
    p.Add(p.Mul("g", DIVISIONS[divide](p, d, variance)), "b", to="y")
    net, types, values = joined(p, {"x": x})
    assert types == [kind]
    wide = x.astype(np.float64)
    wide -= wide.mean(-1, keepdims=True) if kind == "LayerNorm" else 0
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + CONSTANTS["eps"]) * CONSTANTS["g"] + CONSTANTS["b"]
    np.testing.assert_allclose(run(net, values), want, 1e-5, 1e-5)


@pytest.mark.parametrize("affine", ["none", "scale", "scale before the division", "a second centering"])
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_scale_and_bias(kind, affine):
    p, x = Parts(), normal(N, T, D)
    x[0, 0], x[1, 1, 1], x[1, 2, 2] = 3, np.nan, np.inf
    d = p.Sub("x", p.mean("x")) if kind == "LayerNorm" else "x"
    v = spread(p, p.Sub("x", p.mean("x")) if affine == "a second centering" and kind == "LayerNorm" else d)
    if affine == "scale before the division":
        p.Div(p.Mul("g", d), p.Sqrt(v), to="y")
    elif affine == "scale":
        p.Mul(p.Div(d, p.Sqrt(v)), "g", to="y")
    else:
        p.Div(d, p.Sqrt(v), to="y")
    net, types, values = joined(p, {"x": x})
    kept = kind == "RMSNorm" and not affine.startswith("scale")
    assert (kind in types) != kept and ("ReduceMean" in types) == kept
    np.testing.assert_allclose(run(net, values), run(p.net, values), 1e-5, 1e-5)


def test_normalization_that_stays():
    """A part that is read or stored, another axis, a scale of other shape, an x that is gone by then."""

    def net(change):
        p = Parts()
        d = p.Sub("x", p.ReduceMean("x", axes=[1], keepdims=1) if change == "axis" else p.mean("x"))
        root = p.Sqrt(spread(p, d))
        if change == "overwritten":
            p.net.Relu("x", "x")
        p.Div(d, root, to="y")
        if change == "read":
            p.Relu(root, to="z")
        return p, {"keep": [root]} if change == "stored" else {}

    for change in ("read", "stored", "axis", "overwritten", ""):
        p, more = net(change)
        found, types, values = joined(p, {"x": normal(N, T, D)}, **more)
        assert ("LayerNorm" in types) == (change == ""), change
        np.testing.assert_allclose(run(found, values), run(p.net, values), 1e-5, 1e-5, err_msg=change)


KEYS = {
    "transposed": lambda p: p.Transpose("k", axes=[0, 1, 3, 2]),
    "between reshapes": lambda p: reshaped(p, p.Transpose(reshaped(p, "k", [-1, T, D]), axes=[0, 2, 1]), [-1, 4, D, T]),
    "with a scale": lambda p: p.Mul(p.Transpose("k", axes=[0, 1, 3, 2]), "half"),
    "scaled before": lambda p: p.Transpose(p.Mul("half", "k"), axes=[0, 1, 3, 2]),
    "of other axes": lambda p: p.Transpose(p.Transpose("k", axes=[0, 2, 1, 3]), axes=[0, 2, 3, 1]),
}


def reshaped(p, x, shape):
    p.count += 1
    p.net.Reshape([x], [f"t{p.count}", f"old{p.count}"], shape=shape)
    return f"t{p.count}"


MASKS = {
    "none": lambda p, s: s,
    "added": lambda p, s: p.Add(s, "bias"),
    "added first": lambda p, s: p.Add("bias", s),
    "hidden": lambda p, s: p.Where("causal", s, "inf"),
    "hidden, low": lambda p, s: p.Where("causal", s, "low"),
    "filled": lambda p, s: p.Where("later", "inf", s),
    "filled, low": lambda p, s: p.Where("later", "low", s),
}


def softmax(p, s, x):
    return p.Softmax(s, axis=len(x.shape) - 1)


def exact(q, k, v, scale, seen):
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * scale
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)


def three(*shape):
    return {name: normal(*shape, seed=i) for i, name in enumerate("qkv")}


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", KEYS)
def test_attention(keys, mask, nan):
    p, given = Parts(), three(N, 4, T, D)
    scores = p.Div(p.BatchMatMul(p.Mul("q", "half"), KEYS[keys](p), broadcast=1), "root")
    weights = softmax(p, MASKS[mask](p, scores), given["q"])
    if nan:
        weights = p.Where(p.NE(weights, weights), "zero", weights)
    p.BatchMatMul(weights, "v", broadcast=1, to="y")
    net, types, values = joined(p, given)
    assert "Attention" in types and {"Softmax", "BatchMatMul", "Mul", "NE"}.isdisjoint(types)
    scale = (0.25 if "scale" in keys else 0.5) / np.sqrt(8)
    want = exact(*given.values(), scale, np.tri(T, dtype=bool) if mask != "none" else True)
    np.testing.assert_allclose(run(net, values), want, 1e-5, 1e-5)


@pytest.mark.parametrize("trans_b", [False, True])
def test_attention_of_three_axes(trans_b):
    p, given = Parts(), three(6, T, D)
    keys = "k" if trans_b else p.Transpose("k", axes=[0, 2, 1])
    p.BatchMatMul(softmax(p, p.BatchMatMul("q", keys, trans_b=int(trans_b)), given["q"]), "v", to="y")
    net, types, values = joined(p, given)
    assert types == [*["ExpandDims"] * 3, "Attention", "Squeeze"]
    np.testing.assert_allclose(run(net, values), exact(*given.values(), 1, True), 1e-5, 1e-5)


@pytest.mark.parametrize("reshapes", [False, True])
def test_groups(reshapes):
    p, given = Parts(), three(N, 4, T, D)
    given |= {name: given[name][:, :2].copy() for name in "kv"}

    def repeated(x):
        return p.Expand(p.ExpandDims(x, dims=[2]), shape=[N, 2, 2, T, D])

    keys = repeated("k")
    if reshapes:
        keys = p.Transpose(reshaped(p, keys, [N * 4, T, D]), axes=[0, 2, 1])
        keys = reshaped(p, keys, [N, 4, D, T])
    else:
        keys = p.Transpose(reshaped(p, keys, [N, 4, T, D]), axes=[0, 1, 3, 2])
    weights = softmax(p, p.BatchMatMul("q", keys), given["q"])
    p.BatchMatMul(weights, reshaped(p, repeated("v"), [N, 4, T, D]), to="y")
    specs = {name: TensorSpec(value.shape, value.dtype) for name, value in given.items()}
    p.net.Proto().external_output.append("y")
    net, _ = join_parts(p.net, CONSTANTS, specs)
    assert [op.type for op in net.op] == ["Attention"] and list(net.op[0].input) == ["q", "k", "v"]
    want = exact(given["q"], *(np.repeat(given[name], 2, axis=1) for name in "kv"), 1, True)
    np.testing.assert_allclose(run(net, given), want, 1e-5, 1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("engines", ["all", "none"])
@pytest.mark.parametrize("form", ["never", "nan", "unseen", "nan with bias"])
def test_what_is_not_finite(form, engines):
    """A row without keys, and NaN and infinity in queries, keys, values and the mask, are as they were in parts."""
    p, given = Parts(), three(N, 4, T, D)
    seen = np.tri(T, dtype=bool)
    seen[2] = False
    given |= {"seen": seen, "added": np.where(seen, 0, -np.inf).astype(np.float32)}
    given["q"][0, 0, 1, 0], given["k"][0, 1, 3, 2], given["v"][1, 2, 4, 1] = np.nan, np.inf, np.nan
    scores = p.BatchMatMul("q", p.Transpose("k", axes=[0, 1, 3, 2]))
    scores = p.Add(scores, "added") if "bias" in form or form == "never" else p.Where("seen", scores, "inf")
    weights = softmax(p, scores, given["q"])
    if form.startswith("nan"):
        weights = p.Where(p.NE(weights, weights), "zero", weights)
    if form == "unseen":
        weights = p.Where("seen", weights, "zero")
    p.BatchMatMul(weights, "v", to="y")
    net, types, values = joined(p, given)
    assert "Attention" in types and "Softmax" not in types
    options = {} if engines == "all" else {"engines": ()}
    workspace = Workspace(threads=1, **options)
    for blob, value in values.items():
        workspace.feed(blob, value)
    workspace.run_net_once(net)
    want = run(p.net, values)
    assert np.isnan(want).any() and np.isfinite(want).any()
    np.testing.assert_allclose(workspace.fetch("y"), want, 1e-5, 1e-5)


def test_attention_that_stays():
    """Weights that are read or stored, a mask that may be low but not infinite, or that makes the scores larger."""

    def net(change):
        p = Parts()
        scores = p.BatchMatMul("q", p.Transpose("k", axes=[0, 1, 3, 2]))
        if change == "low":
            scores = p.Where("seen", scores, "low")
        if change == "larger":
            scores = p.Add("all", scores)
        weights = softmax(p, scores, np.zeros((1, 1, 1, 1)))
        p.BatchMatMul(weights, "v", broadcast=1, to="y")
        if change == "read":
            p.Relu(weights, to="z")
        return p, {"keep": [weights]} if change == "stored" else {}

    for change in ("read", "stored", "low", "larger", ""):
        p, more = net(change)
        given = {**three(1, 4, T, D), "seen": np.ones((T, T), bool), "all": normal(3, 4, T, T)}
        if change != "larger":
            del given["all"]
        if change != "low":
            del given["seen"]
        found, types, values = joined(p, given, **more)
        assert ("Attention" in types) == (change == ""), change
        np.testing.assert_allclose(run(found, values), run(p.net, values), 1e-5, 1e-5, err_msg=change)


def test_training_is_by_the_gradients_of_the_operators():
    p = Parts()
    p.Div("x", p.Sqrt(spread(p, "x")), to="n")
    p.Mul("n", "g", to="y")
    net, types, values = joined(p, {"x": normal(N, T, D)})
    assert types == ["RMSNorm"]
    found = []
    for each in (p.net, Net(net)):
        each.AddGradientOperators(["y"])
        found.append([run(each, values, name) for name in ("x_grad", "g_grad")])
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)


PLANES = {"images": (2, 4, 5, 3), "volumes": (2, 4, 2, 5, 3), "rows": (2, 4, 7)}


def channel_product(x, bias, trans_b=0, gap=False):
    """Return a product of the channels of x between transpositions, written in parts."""
    p, rank = Parts(), x.ndim
    rows = p.Transpose("x", axes=[0, *range(2, rank), 1])
    made = p.BatchMatMul(rows, "w", broadcast=1, trans_b=trans_b)
    made = p.Add(*bias(made)) if bias else made
    made = p.Tanh(made) if gap else made
    p.Transpose(made, axes=[0, rank - 1, *range(1, rank - 1)], to="y")
    return p


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, lambda x: (x, "v"), lambda x: ("v", x)], ids=["none", "after", "before"])
@pytest.mark.parametrize("shape", PLANES.values(), ids=PLANES)
def test_a_product_of_channels_between_transpositions(shape, bias, trans_b):
    x, w, v = normal(*shape), normal(4, 6, seed=1), normal(6, seed=2)
    parts = channel_product(x, bias, trans_b)
    values = {"w": w.T.copy() if trans_b else w, "v": v}
    net, types, given = joined(parts, {"x": x, **values}, open_batch=False)
    assert "Transpose" not in types and types.count("Reshape") == (2 if len(shape) > 3 else 0)
    want = np.moveaxis(np.moveaxis(x.astype(np.float64), 1, -1) @ w + (v if bias else 0), -1, 1)
    np.testing.assert_allclose(run(net, given), want, rtol=1e-5, atol=1e-5)


def test_products_of_channels_that_stay():
    x, values = normal(2, 4, 5, 3), {"w": normal(4, 6), "v": normal(6)}
    for parts, inputs in (
        (channel_product(x, None, gap=True), {"x": x, **values}),  # the transpositions do not follow the product alone
        (channel_product(x, None), {"x": x, **values, "w": normal(2, 4, 6)[:1].repeat(5, 0)}),  # a matrix for each row
        (channel_product(normal(1, 80, 5), None), {"x": normal(1, 80, 5), "w": normal(80, 80)}),  # many channels
    ):
        assert joined(parts, inputs)[1].count("Transpose") == 2
    parts = channel_product(x, None)
    parts.Relu("t1", to="read")
    assert joined(parts, {"x": x, **values})[1].count("Transpose") == 2
