"""RowWiseSparseAdagrad, SparseAdam, RowWiseSparseAdam, SmartDecaySparseAdam, SparseAdadelta and SparseFtrl."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import DEVICES, run_plain
from netbuilder.ops.updates import row_updates
from netbuilder.ops.updates.adagrad import SparseAdagrad
from netbuilder.ops.updates.sparse_updates import (
    RowWiseSparseAdagrad,
    RowWiseSparseAdam,
    SmartDecaySparseAdam,
    SparseAdadelta,
    SparseAdam,
    SparseFtrl,
)
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal

RATE = np.float32([-0.1])


def draw_rows(data, rows=4):
    """A table, indices (some of them repeated) and their gradients."""
    row = data.draw(st.sampled_from([(), (3,), (2, 2)]))
    kind = data.draw(st.sampled_from([np.int32, np.int64]))
    indices = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=6)), kind)
    return data.draw(floats(rows, *row)), indices, data.draw(floats(len(indices), *row))


def positive(data, *shape):
    return data.draw(floats(*shape, low=0.01, high=2.0))


class _Update(OperatorSuite):
    no_gradient = "an update"
    rtol, atol = 1e-4, 1e-5


class TestRowWiseSparseAdagrad(_Update):
    operator = RowWiseSparseAdagrad
    refusals = (
        refusal(
            RowWiseSparseAdagrad(), [f32(4, 2), f32(4, 2), i32(1), f32(1, 2), f32(1)], r"one number per row.*\(4,\)"
        ),
        refusal(
            RowWiseSparseAdagrad(), [f32(4, 2), f32(4), i32(2), f32(1, 2), f32(1)], r"grad must have shape \(2, 2\)"
        ),
        refusal(
            RowWiseSparseAdagrad(),
            [f32(4, 2), f32(4), i32(1), f32(1, 2), f32(2)],
            r"lr must have one element, got shape \(2,\)",
        ),
        refusal(
            RowWiseSparseAdagrad(epsilon=-1.0),
            [f32(4, 2), f32(4), i32(1), f32(1, 2), f32(1)],
            "epsilon must lie in",
            ArgumentError,
        ),
        refusal(
            RowWiseSparseAdagrad(),
            [f32(4, 2), f32(4), i32(1), f32(1, 2), f32(1), f32(4)],
            "counter must have elements of type float64, got float32",
        ),
    )

    def draw(self, data):
        p, indices, g = draw_rows(data)
        op = RowWiseSparseAdagrad(
            epsilon=1e-3,
            weight_decay=data.draw(st.sampled_from([0.0, 0.5])),
            counter_halflife=data.draw(st.sampled_from([-1, 2])),
        )
        counter = [np.float64([0, 1.5, 2, 3])] if data.draw(st.booleans()) else []
        return op.with_arity(5 + len(counter), 2), [p, positive(data, len(p)), indices, g, RATE, *counter]

    def reference(self, op, p, h, indices, g, lr, counter=None):
        p, h = p.copy(), h.copy()
        for i, d in zip(indices, g):
            seldom = counter is not None and op.counter_halflife > 0 and counter[i] > 0
            d = d + op.weight_decay * (op.counter_halflife / counter[i] if seldom else 1) * p[i]
            h[i] += np.mean(d**2)
            p[i] += lr.item() * d / (np.sqrt(h[i]) + op.epsilon)
        return [p, h]


class TestSparseAdam(_Update):
    operator = SparseAdam
    row_wise = False
    refusals = (
        refusal(
            SparseAdam(),
            [f32(4, 2), f32(4), f32(4, 2), i32(1), f32(1, 2), f32(1), f32(1)],
            r"moment_1 must have the shape of param, \(4, 2\)",
        ),
        refusal(
            SparseAdam(beta1=1.0),
            [f32(4, 2)] * 3 + [i32(1), f32(1, 2), f32(1), f32(1)],
            r"beta1 must lie in \[0, 1\)",
            ArgumentError,
        ),
    )

    def make(self, data):
        return SparseAdam(enableRAdam=data.draw(st.booleans()))

    def draw(self, data):
        p, indices, g = draw_rows(data)
        second = positive(data, *(p.shape[:1] if self.row_wise else p.shape))
        iteration = np.array([data.draw(st.sampled_from([0, 3, 4, 20, 1000]))], np.int64)
        op = self.make(data).with_arity(7, data.draw(st.sampled_from([3, 4])))
        return op, [p, data.draw(floats(*p.shape)), second, indices, g, RATE, iteration]

    def reference(self, op, p, m1, m2, indices, g, lr, iteration):
        p, m1, m2, effective = p.copy(), m1.copy(), m2.copy(), g.copy()
        t = iteration.item() + 1
        for k, (i, d) in enumerate(zip(indices, g)):
            m1[i] = op.beta1 * m1[i] + (1 - op.beta1) * d
            m2[i] = op.beta2 * m2[i] + (1 - op.beta2) * (np.mean(d**2) if self.row_wise else d**2)
            first = m1[i] / (1 - op.beta1**t)
            effective[k] = first * np.sqrt(1 - op.beta2**t) / (np.sqrt(m2[i]) + op.epsilon)
            if getattr(op, "enableRAdam", False):
                most = 2 / (1 - op.beta2) - 1
                now = most - 2 * t * op.beta2**t / (1 - op.beta2**t)
                known = now >= 5
                factor = ((now - 4) * (now - 2) * most / ((most - 4) * (most - 2) * now)) ** 0.5 if known else 0.0
                effective[k] = effective[k] * factor if known else first
            p[i] += lr.item() * effective[k]
        return [p, m1, m2, effective][: op.n_out]


class TestRowWiseSparseAdam(TestSparseAdam):
    operator = RowWiseSparseAdam
    row_wise = True
    refusals = (
        refusal(
            RowWiseSparseAdam(),
            [f32(4, 2)] * 3 + [i32(1), f32(1, 2), f32(1), f32(1)],
            r"moment_2 \(one number per row\) must have shape \(4,\) = \(R,\)",
        ),
    )

    def make(self, data):
        return RowWiseSparseAdam(beta1=0.8, beta2=0.99)


class TestSmartDecaySparseAdam(_Update):
    operator = SmartDecaySparseAdam
    refusals = (
        refusal(
            SmartDecaySparseAdam(),
            [f32(4, 2)] * 3 + [i32(4), i32(1), f32(1, 2), f32(1), f32(1)],
            "last_seen must have elements of type int64, got int32",
        ),
        refusal(
            SmartDecaySparseAdam(beta2=1.0),
            [f32(4, 2)] * 3 + [i64(4), i32(1), f32(1, 2), f32(1), f32(1)],
            r"beta2 must lie in \[0, 1\)",
            ArgumentError,
        ),
    )

    def draw(self, data):
        p, indices, g = draw_rows(data)
        first, second = data.draw(floats(*p.shape)), positive(data, *p.shape)
        op = SmartDecaySparseAdam(beta1=0.75, beta2=0.9, epsilon=1e-2)
        return op, [p, first, second, np.int64([0, 1, 4, 5]), indices, g, RATE, np.int64([4])]

    def reference(self, op, p, m1, m2, seen, indices, g, lr, iteration):
        p, m1, m2, seen = p.copy(), m1.copy(), m2.copy(), seen.copy()
        t = iteration.item() + 1
        for i, d in zip(indices, g):
            passed = int(t - seen[i])
            behind = sum(op.beta1**k for k in range(1, passed)) * m1[i]
            m1[i] = op.beta1**passed * m1[i] + (1 - op.beta1) * d
            m2[i] = op.beta2**passed * m2[i] + (1 - op.beta2) * d**2
            p[i] += lr.item() * (m1[i] + behind) / (np.sqrt(m2[i]) + op.epsilon)
            seen[i] = t
        return [p, m1, m2, seen]


class TestSparseAdadelta(_Update):
    operator = SparseAdadelta
    refusals = (
        refusal(
            SparseAdadelta(decay=2.0),
            [f32(4, 2)] * 3 + [i32(1), f32(1, 2), f32(1)],
            r"decay must lie in \[0, 1\], got 2.0",
            ArgumentError,
        ),
        refusal(
            SparseAdadelta(),
            [f32(4, 2), f32(4, 2), f32(3, 2), i32(1), f32(1, 2), f32(1)],
            r"moment_delta must have the shape of param, \(4, 2\)",
        ),
    )

    def draw(self, data):
        p, indices, g = draw_rows(data)
        return SparseAdadelta(epsilon=1e-2), [p, positive(data, *p.shape), positive(data, *p.shape), indices, g, RATE]

    def reference(self, op, p, m, d, indices, g, lr):
        p, m, d = p.copy(), m.copy(), d.copy()
        for i, grad in zip(indices, g):
            m[i] = op.decay * m[i] + (1 - op.decay) * grad**2
            step = grad * np.sqrt(d[i] + op.epsilon) / np.sqrt(m[i] + op.epsilon)
            d[i] = op.decay * d[i] + (1 - op.decay) * step**2
            p[i] += lr.item() * step
        return [p, m, d]


class TestSparseFtrl(_Update):
    operator = SparseFtrl
    refusals = (
        refusal(
            SparseFtrl(),
            [f32(4, 2), f32(4, 2), i32(1), f32(1, 2)],
            r"n_z \(a pair for each weight\) must have shape \(4, 2, 2\) = \(R, \*S, 2\)",
        ),
        refusal(
            SparseFtrl(alpha=0.0),
            [f32(4, 2), f32(4, 2, 2), i32(1), f32(1, 2)],
            "alpha must be positive",
            ArgumentError,
        ),
    )

    def draw(self, data):
        p, indices, g = draw_rows(data)
        op = SparseFtrl(alpha=0.1, beta=0.5, lambda1=0.2, lambda2=0.05)
        rate = [np.float32([0.3])] if data.draw(st.booleans()) else []
        return op, [p, positive(data, *p.shape, 2), indices, g, *rate]

    def reference(self, op, p, n_z, indices, g, alpha=None):
        p, n_z = p.copy(), n_z.copy()
        rate = op.alpha if alpha is None else alpha.item()
        for i, d in zip(indices, g):
            n, z = n_z[i][..., 0].copy(), n_z[i][..., 1].copy()
            z += d - (np.sqrt(n + d**2) - np.sqrt(n)) / rate * p[i]
            n += d**2
            new = (np.sign(z) * op.lambda1 - z) / ((op.beta + np.sqrt(n)) / rate + op.lambda2)
            p[i] = np.where(np.abs(z) > op.lambda1, new, 0)
            n_z[i] = np.stack([n, z], axis=-1)
        return [p, n_z]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_the_table_is_refused(index, device):
    p = np.ones((3, 2), np.float32)
    with pytest.raises(ShapeError, match=rf"RowWiseSparseAdagrad: indices must lie in \[0, 3\), got {index}"):
        run_plain(RowWiseSparseAdagrad(), [p, p[:, 0], np.int32([0, index]), p[:2], RATE], device)


def test_the_last_iteration_that_int64_can_hold_has_no_successor():
    p, seen, last = np.ones((3, 2), np.float32), np.zeros(3, np.int64), np.int64([2**63 - 1])
    with pytest.raises(
        ShapeError, match="SmartDecaySparseAdam: iter must be less than 9223372036854775807, the largest"
    ):
        run_plain(SmartDecaySparseAdam(), [p, p, p, seen, np.int32([0]), p[:1], RATE, last])


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize(
    ("op", "state"), [(SparseAdagrad(), (9, 3)), (RowWiseSparseAdagrad(), (9,))], ids=["each", "row"]
)
def test_pieces_of_rows(op, state, repeated, monkeypatch):
    """Rows updated in pieces are equal to rows updated at once."""
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 9, 20) if repeated else rng.permutation(9)
    given = [
        rng.standard_normal((9, 3)).astype(np.float32),
        rng.uniform(1, 2, state).astype(np.float32),
        indices,
        rng.standard_normal((len(indices), 3)).astype(np.float32),
        np.float32([-0.1]),
    ]
    whole = run_plain(op.with_arity(5, 2), given)
    monkeypatch.setattr(row_updates, "PIECE", 6)
    for one, other in zip(whole, run_plain(op, given)):
        np.testing.assert_array_equal(one, other)
