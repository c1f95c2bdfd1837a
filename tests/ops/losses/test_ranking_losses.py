"""PairWiseLoss and LambdaRankNdcg, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.losses.ranking_losses import (
    LambdaRankNdcg,
    LambdaRankNdcgGradient,
    PairWiseLoss,
    PairWiseLossGradient,
)
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_sessions(data):
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    x = data.draw(floats(sum(lengths), apart=0.1))
    labels = data.draw(st.lists(st.integers(0, 3), min_size=len(x), max_size=len(x)))
    return x, np.float32(labels), np.int32(lengths)


def sessions(lengths):
    start = 0
    for n in lengths:
        yield slice(start, start + n)
        start += n


def pairs(x, label):
    """Yield the items of all pairs in which the first has the greater label."""
    for i in range(len(x)):
        for j in range(len(x)):
            if label[i] > label[j]:
                yield i, j


class TestPairWiseLoss(OperatorSuite):
    operator = PairWiseLoss
    refusals = (
        refusal(PairWiseLoss(), [f32(3, 2), f32(3)], r"X must have shape \(N,\) or \(N, 1\)"),
        refusal(PairWiseLoss(), [f32(3), f32(2)], r"label must have 3 elements, got shape \(2,\)"),
        refusal(PairWiseLoss(), [f32(3), f32(3), f32(1)], "lengths must have elements of type int, got float32"),
    )

    def draw(self, data):
        x, label, lengths = draw_sessions(data)
        x = x.reshape(data.draw(st.sampled_from([(-1,), (len(x), 1)])))
        return PairWiseLoss(), [x, label, lengths] if data.draw(st.booleans()) else [x, label]

    def reference(self, op, x, label, lengths=None):
        found = []
        for part in sessions([len(x)] if lengths is None else lengths):
            losses = [np.log1p(np.exp(x.ravel()[part][j] - x.ravel()[part][i])) for i, j in pairs(x[part], label[part])]
            found.append(np.mean(losses) if losses else 0.0)
        return [np.array(found)]


class TestPairWiseLossGradient(OperatorSuite):
    operator = PairWiseLossGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(PairWiseLossGradient(), [f32(3), f32(3), f32(2)], r"dY must have shape \(1,\)"),)

    def draw(self, data):
        x, label, lengths = draw_sessions(data)
        return PairWiseLossGradient(), [x, label, data.draw(floats(len(lengths))), lengths]

    def reference(self, op, x, label, dy, lengths):
        dx = np.zeros(x.shape)
        for part, slope in zip(sessions(lengths), dy):
            found = list(pairs(x[part], label[part]))
            for i, j in found:
                chance = 1 / (1 + np.exp(x[part][i] - x[part][j]))
                dx[part][i] -= slope * chance / len(found)
                dx[part][j] += slope * chance / len(found)
        return [dx]


class TestLambdaRankNdcg(OperatorSuite):
    operator = LambdaRankNdcg
    wrt = ()
    no_gradient = "dy is no derivative of the loss: ranks have none; golden cases have it"
    refusals = (
        refusal(LambdaRankNdcg(), [f32(3, 1), f32(3, 1), i32(1)], r"y must have shape \(N,\)", n_out=2),
        refusal(LambdaRankNdcg(), [f32(3), f32(3), f32(1)], "session_lengths must have elements of type int", n_out=2),
    )

    def draw(self, data):
        op = LambdaRankNdcg(*(data.draw(st.booleans()) for _ in range(3)))
        return op, [*draw_sessions(data)]

    def reference(self, op, y, r, lengths):
        losses, slopes = [], np.zeros(y.shape)
        for part in sessions(lengths):
            losses.append(0.0)
            if r[part].sum() > 0:
                losses[-1], slopes[part] = self.session(op, y[part], r[part])
        return [np.array(losses), slopes]

    def session(self, op, y, r):
        gain = r if op.use_ndcg_as_loss and not op.use_exp_gain else 2**r
        discount = np.array([1 / np.log2(2 + sum(other > own for other in y)) for own in y])
        ideal = sum(np.sort(gain)[::-1] / np.log2(2 + np.arange(len(r))))
        loss, slopes = 0.0, np.zeros(len(y))
        for i, j in pairs(y, r):
            weight = abs((gain[i] - gain[j]) * (discount[i] - discount[j]))
            loss += 2 * weight * np.log1p(np.exp(y[j] - y[i]))
            chance = 1 / (1 + np.exp(y[i] - y[j]))
            slopes[i] -= weight * chance
            slopes[j] += weight * chance
        if op.use_ndcg_as_loss:
            loss = ideal - gain @ discount
        norm = ideal if op.use_idcg_normalization else 1.0
        return loss / norm, slopes / norm


class TestLambdaRankNdcgGradient(OperatorSuite):
    operator = LambdaRankNdcgGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(LambdaRankNdcgGradient(), [f32(3), i32(1), f32(2), f32(1)], "dy must have the shape of y"),
        refusal(
            LambdaRankNdcgGradient(), [f32(3), i32(1), f32(3), f32(2)], "dloss must have the shape of session_lengths"
        ),
    )

    def draw(self, data):
        y, _, lengths = draw_sessions(data)
        return LambdaRankNdcgGradient(), [y, lengths, data.draw(floats(len(y))), data.draw(floats(len(lengths)))]

    def reference(self, op, y, lengths, dy, dloss):
        return [dy * np.repeat(dloss, lengths)]


@pytest.mark.parametrize("lengths", [[2, 2], [4, -1]])
def test_lengths_must_sum_up_to_the_items(lengths):
    x = np.zeros(3, np.float32)
    for op, inputs in ((PairWiseLoss(), [x, x]), (LambdaRankNdcg(), [x, x])):
        with pytest.raises(ShapeError, match="must sum to the number of items, 3"):
            run_plain(op.with_arity(3, op.n_out), [*inputs, np.int32(lengths)])
