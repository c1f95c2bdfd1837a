"""Attention, against a loop over samples, heads and queries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import check_forward, run_plain
from netbuilder.ops.dense.attention import Attention, AttentionGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def _weights(op, q, k, mask):
    """Return softmax(scale * Q K^T + mask), one row at a time."""
    (n, h, t, d), (g, s) = q.shape, k.shape[1:3]
    scale = 1 / np.sqrt(d) if op.scale is None else op.scale
    mask = np.broadcast_to(np.zeros(()) if mask is None else mask, (n, h, t, s))
    p = np.zeros((n, h, t, s))
    for i, head, row in np.ndindex(n, h, t):
        seen = np.arange(s) <= row + s - t if op.causal else np.ones(s, bool)
        scores = k[i, head // (h // g)] @ q[i, head, row] * scale
        if mask.dtype == bool:
            seen = seen & mask[i, head, row]
        else:
            scores = scores + mask[i, head, row]
            seen = seen & (scores != -np.inf)
        if not seen.any() and op.zero_weights == "never":
            p[i, head, row] = np.nan
        if seen.any():
            e = np.exp(scores[seen] - scores[seen].max())
            p[i, head, row, seen] = e / e.sum()
    return p


def _attention(op, q, k, v, mask=None):
    return np.einsum("nhts,nhse->nhte", _weights(op, q, k, mask), np.repeat(v, q.shape[1] // v.shape[1], axis=1))


def _draw(data, kind=None, features=(1, 4)):
    draw, extent = data.draw, st.integers(1, 4)
    n, groups, per_group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    t, s, d, e = draw(extent), draw(extent), draw(st.integers(*features)), draw(extent)
    zero = draw(st.sampled_from(["unseen", "nan"]))
    op = Attention(scale=draw(st.sampled_from([None, 0.3])), causal=draw(st.booleans()), zero_weights=zero)
    heads = groups * per_group
    inputs = [draw(floats(*shape)) for shape in ((n, heads, t, d), (n, groups, s, d), (n, groups, s, e))]
    kind = draw(st.sampled_from(["none", "bool", "float"])) if kind is None else kind
    if kind != "none":
        shape = [size if draw(st.booleans()) else 1 for size in (n, heads, t, s)]
        mask = draw(floats(*shape[draw(st.integers(0, 4)) :]))
        inputs.append(mask > -0.5 if kind == "bool" else mask)
    return op, inputs


class TestAttention(OperatorSuite):
    operator = Attention
    wrt = (0, 1, 2, 3)
    refusals = (
        refusal(Attention(zero_weights="all"), [f32(1, 2, 4, 2)] * 3, "'never' or 'nan', got 'all'", ArgumentError),
        refusal(Attention(), [f32(1, 3, 4, 2), f32(1, 2, 4, 2), f32(1, 2, 4, 2)], "multiple of those of K .* 3 and 2"),
        refusal(Attention(), [f32(1, 2, 4, 2), f32(1, 2, 5, 3), f32(1, 2, 5, 2)], r"K .* shape \(1, G, S, 2\)"),
        refusal(Attention(), [f32(1, 2, 4, 2), f32(1, 2, 5, 2), f32(1, 2, 4, 2)], r"V must have shape \(1, 2, 5, E\)"),
        refusal(Attention(), [f32(1, 2, 4, 0), f32(1, 2, 4, 0), f32(1, 2, 4, 2)], "has no features; give scale"),
        refusal(Attention(), [*[f32(1, 2, 4, 2)] * 3, f32(4, 3)], r"broadcastable to \(N, H, T, S\) = \(1, 2, 4, 4\)"),
        refusal(Attention(), [*[f32(1, 2, 4, 2)] * 3, f32(1, 1, 1, 4, 4)], "broadcastable"),
    )

    def draw(self, data):
        return _draw(data)

    def draw_gradient(self, data):
        return _draw(data, data.draw(st.sampled_from(["none", "float"])))

    def reference(self, op, *inputs):
        return [_attention(op, *inputs)]


class TestAttentionGradient(OperatorSuite):
    operator = AttentionGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(AttentionGradient(), [f32(1, 2, 4, 3), *[f32(1, 2, 4, 2)] * 3], r"V must have shape \(1, 2, 4, 3\)"),
    )

    def draw(self, data):
        op, inputs = _draw(data)
        n_out = len(inputs) if data.draw(st.booleans()) else 3
        dy = data.draw(floats(*inputs[0].shape[:3], inputs[2].shape[3]))
        return AttentionGradient(scale=op.scale, causal=op.causal).with_arity(len(inputs) + 1, n_out), [dy, *inputs]

    def reference(self, op, dy, q, k, v, mask=None):
        repeats = q.shape[1] // k.shape[1]
        p, per_group = _weights(op, q, k, mask), (q.shape[0], k.shape[1], repeats)
        keys, values = (np.repeat(x, repeats, axis=1) for x in (k, v))
        dp = np.einsum("nhte,nhse->nhts", dy, values)
        ds = np.einsum("nhts,nhtsu->nhtu", dp, np.einsum("nhts,su->nhtsu", p, np.eye(p.shape[3])))
        ds = ds - p * np.einsum("nhts,nhts->nht", dp, p)[..., None]
        scale = 1 / np.sqrt(q.shape[3]) if op.scale is None else op.scale
        dk, dv = np.einsum("nhts,nhtd->nhsd", ds, q) * scale, np.einsum("nhts,nhte->nhse", p, dy)
        found = [np.einsum("nhts,nhsd->nhtd", ds, keys) * scale]
        found += [x.reshape(*per_group, *x.shape[2:]).sum(axis=2) for x in (dk, dv)]
        if op.n_out > 3:
            if mask.dtype == bool:
                ds = np.zeros_like(ds)
            wide = (1,) * (4 - mask.ndim) + mask.shape
            axes = tuple(i for i in range(4) if wide[i] == 1)
            found.append(ds.sum(axis=axes, keepdims=True).reshape(mask.shape))
        return found


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_query_that_sees_no_key_gets_zeros(kind):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3))
    mask = np.array([[True, False, True], [False, False, False], [True, True, True]])
    if kind == "float":
        mask = np.where(mask, 0, -np.inf).astype(np.float32)
    y = _attention(Attention(), *(x.astype(np.float64) for x in (q, k, v)), mask)
    assert not y[:, :, 1].any()
    check_forward(Attention(), [q, k, v, mask], [y])
    dy = rng.standard_normal(q.shape).astype(np.float32)
    gradients = run_plain(AttentionGradient().with_arity(5, 4), [dy, q, k, v, mask])
    assert all(np.isfinite(x).all() for x in gradients)
    assert not gradients[0][:, :, 1].any()


@pytest.mark.parametrize("zero", ["unseen", "never", "nan"])
def test_what_becomes_of_undefined_weights(zero):
    """Of the queries, 1 sees no key, and the scores of 0 are NaN."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3))
    q[:, :, 0, 0] = np.nan
    mask = np.array([[True, False, True], [False, False, False], [True, True, True]])
    y = _attention(Attention(zero_weights=zero), *(x.astype(np.float64) for x in (q, k, v)), mask)
    y[:, :, 0] = 0 if zero == "nan" else np.nan
    assert np.isnan(y[:, :, 1]).all() if zero == "never" else not y[:, :, 1].any()
    check_forward(Attention(zero_weights=zero), [q, k, v, mask], [y])


def test_causal_queries_see_the_keys_up_to_the_last():
    """With fewer queries than keys these are the last; with more, the first of them see nothing."""
    rng = np.random.default_rng(0)
    for t, s in ((2, 5), (5, 2)):
        q, k, v = (rng.standard_normal((1, 1, extent, 4)).astype(np.float32) for extent in (t, s, s))
        y = _attention(Attention(causal=True), *(x.astype(np.float64) for x in (q, k, v)))
        check_forward(Attention(causal=True), [q, k, v], [y])


@pytest.mark.parametrize("shape", [(0, 1, 2, 2), (1, 1, 0, 2), (1, 1, 2, 0)])
def test_empty(shape):
    n, heads, t, s = shape
    q, k, v = (np.ones((n, heads, extent, 3), np.float32) for extent in (t, s, s))
    check_forward(Attention(), [q, k, v], [np.zeros((n, heads, t, 3))])


def test_half_precision_is_computed_in_float32():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 5, 8)).astype(np.float16) for _ in range(3))
    y = _attention(Attention(), *(x.astype(np.float64) for x in (q, k, v)))
    check_forward(Attention(), [q, k, v], [y], rtol=1e-3, atol=1e-3)


def test_cost():
    q, k, v = f32(2, 4, 3, 5), f32(2, 2, 7, 5), f32(2, 2, 7, 6)
    assert Attention().flops(q, k, v) == (2 * 5 + 2 * 6 + 4) * 2 * 4 * 3 * 7
