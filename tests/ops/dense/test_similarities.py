"""DotProduct, DotProductWithPadding and CosineSimilarity, and their gradients."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.dense.similarities import (
    CosineSimilarity,
    CosineSimilarityGradient,
    DotProduct,
    DotProductGradient,
    DotProductWithPadding,
    DotProductWithPaddingGradient,
)
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_pair(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return data.draw(floats(*shape, avoid=0.0)), data.draw(floats(*shape, avoid=0.0))


def samples(*arrays):
    return [[np.atleast_1d(row).ravel() for row in a] for a in arrays]


class _Pairs(OperatorSuite):
    wrt = (0, 1)

    def draw(self, data):
        return self.operator(), [*draw_pair(data)]


class _PairsGradient(OperatorSuite):
    no_gradient = "a gradient operator"

    def draw(self, data):
        x, y = draw_pair(data)
        return self.operator(), [x, y, data.draw(floats(len(x)))]


class TestDotProduct(_Pairs):
    operator = DotProduct
    refusals = (
        refusal(DotProduct(), [f32(3, 4), f32(3)], "Y must have the shape of X"),
        refusal(DotProduct(), [i32(3), i32(3)], "one floating type"),
    )

    def reference(self, op, x, y):
        return [np.array([a @ b for a, b in zip(*samples(x, y))])]


class TestDotProductGradient(_PairsGradient):
    operator = DotProductGradient
    refusals = (refusal(DotProductGradient(), [f32(3, 4), f32(3, 4), f32(4)], "dZ must have 3 elements"),)

    def reference(self, op, x, y, dz):
        return [np.array([b * d for b, d in zip(y, dz)]), np.array([a * d for a, d in zip(x, dz)])]


class TestCosineSimilarity(_Pairs):
    operator = CosineSimilarity
    refusals = (refusal(CosineSimilarity(), [f32(2), f32(3)], "Y must have the shape of X"),)

    def reference(self, op, x, y):
        norm = np.linalg.norm
        return [np.array([a @ b / norm(a) / norm(b) for a, b in zip(*samples(x, y))])]


class TestCosineSimilarityGradient(_PairsGradient):
    operator = CosineSimilarityGradient
    rtol, atol = 1e-4, 1e-4
    refusals = (refusal(CosineSimilarityGradient(), [f32(3, 4), f32(3, 4), f32(4)], "dZ must have 3 elements"),)

    def reference(self, op, x, y, dz):
        found = []
        for one, other in ((x, y), (y, x)):
            rows = []
            for a, b, d in zip(*samples(one, other), dz):
                n, m = np.linalg.norm(a), np.linalg.norm(b)
                rows.append(d * (np.eye(len(a)) / n - np.outer(a, a) / n**3) @ b / m)
            found.append(np.reshape(rows, x.shape))
        return found


def draw_padded(data, cls):
    n, short = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    op = cls(pad_value=data.draw(st.sampled_from([0.0, 0.5])), replicate=data.draw(st.booleans()))
    long = short * data.draw(st.integers(1, 3)) if op.replicate else short + data.draw(st.integers(0, 2))
    pair = [data.draw(floats(n, short)), data.draw(floats(n, long))]
    if short == long == 1 and data.draw(st.booleans()):
        pair[0] = pair[0].ravel()
    return op, pair[:: data.draw(st.sampled_from([1, -1]))]


def lengthening(op, own, length):
    """Return the affine map that lengthens a row: a matrix, and a vector that is added."""
    if own == length or op.replicate:
        return np.tile(np.eye(own), (length // own, 1)), np.zeros(length)
    return np.eye(length, own), np.where(np.arange(length) < own, 0, op.pad_value)


class TestDotProductWithPadding(OperatorSuite):
    operator = DotProductWithPadding
    wrt = (0, 1)
    refusals = (
        refusal(
            DotProductWithPadding(),
            [f32(3, 4), f32(2, 4)],
            r"Y must have shape \(3,\) or \(3, M\) = \(N,\) or \(N, M\)",
        ),
        refusal(DotProductWithPadding(), [f32(3, 4, 1), f32(3, 4)], r"X must have shape \(N,\) or \(N, D\)"),
        refusal(DotProductWithPadding(replicate=True), [f32(3, 5), f32(3, 2)], "must be a multiple of the shorter"),
    )

    def draw(self, data):
        return draw_padded(data, DotProductWithPadding)

    def reference(self, op, x, y):
        rows = [a.reshape(len(a), -1) for a in (x, y)]
        length = max(r.shape[1] for r in rows)
        full = [r @ m.T + c for r in rows for m, c in [lengthening(op, r.shape[1], length)]]
        return [np.einsum("ij,ij->i", *full)]


class TestDotProductWithPaddingGradient(OperatorSuite):
    operator = DotProductWithPaddingGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            DotProductWithPaddingGradient(),
            [f32(3, 4), f32(3, 4), f32(4)],
            r"dZ must have 3 elements, got shape \(4,\)",
        ),
    )

    def draw(self, data):
        op, pair = draw_padded(data, DotProductWithPaddingGradient)
        return op, [*pair, data.draw(floats(len(pair[0])))]

    def reference(self, op, x, y, dz):
        rows = [a.reshape(len(a), -1) for a in (x, y)]
        length = max(r.shape[1] for r in rows)
        maps = [lengthening(op, r.shape[1], length) for r in rows]
        full = [r @ m.T + c for r, (m, c) in zip(rows, maps)]
        slopes = [(other * dz[:, None]) @ m for other, (m, _) in zip(full[::-1], maps)]
        return [slopes[0].reshape(x.shape), slopes[1].reshape(y.shape)]
