"""TT and its gradient, compared with the matrix that the cores represent."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.dense.tensor_train import TT, TTLinearGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal

SIZES = [
    ((4,), (3,), (1, 1)),
    ((2, 3), (2, 1), (1, 2, 1)),
    ((2, 1, 3), (1, 2, 2), (1, 2, 3, 1)),
]


def dense(op, cores):
    """Return W, (K, N), element by element from the definition."""
    matrices, end = [], cores.size
    for k, (i, o) in enumerate(zip(op.inp_sizes, op.out_sizes)):
        shape = (i, op.tt_ranks[k + 1], op.tt_ranks[k], o)
        matrices.append(cores[end - math.prod(shape) : end].reshape(shape))
        end -= math.prod(shape)
    w = np.zeros((math.prod(op.inp_sizes), math.prod(op.out_sizes)))
    for row, inner in enumerate(np.ndindex(*op.inp_sizes)):
        for column, outer in enumerate(np.ndindex(*op.out_sizes)):
            product = np.ones((1, 1))
            for core, i, o in zip(matrices, inner, outer):
                product = product @ core[i, :, :, o].T
            w[row, column] = product[0, 0]
    return w


def draw_train(data, cls):
    op = cls(*data.draw(st.sampled_from(SIZES)))
    x = data.draw(floats((0, 4), math.prod(op.inp_sizes)))
    return op, x, data.draw(floats(sum(rows * columns for rows, columns in op.core_shapes)))


class TestTT(OperatorSuite):
    operator = TT
    wrt = (0, 1, 2)
    rtol, atol = 1e-4, 1e-4
    refusals = (
        refusal(
            TT((2,), (3, 1), (1, 1)),
            [f32(1, 2), f32(3), f32(6)],
            "inp_sizes and out_sizes must have the same length",
            ArgumentError,
        ),
        refusal(TT(), [f32(1, 2), f32(3), f32(6)], r"got \[\], \[\] and \[\]", ArgumentError),
        refusal(TT((2,), (3,), (1, 2)), [f32(1, 2), f32(3), f32(12)], "the first and the last", ArgumentError),
        refusal(TT((2,), (3,), (1, 1)), [f32(1, 5), f32(3), f32(6)], "X must have samples of 2 elements"),
        refusal(TT((2,), (3,), (1, 1)), [f32(1, 2), f32(3), f32(7)], r"cores must have shape \(6,\) = \(weights,\)"),
        refusal(TT((2,), (3,), (1, 1)), [f32(1, 2), f32(2), f32(6)], r"b must have shape \(3,\)"),
    )

    def draw(self, data):
        op, x, cores = draw_train(data, TT)
        return op, [x, data.draw(floats(math.prod(op.out_sizes))), cores]

    def reference(self, op, x, b, cores):
        return [x @ dense(op, cores) + b]


class TestTTLinearGradient(OperatorSuite):
    operator = TTLinearGradient
    no_gradient = "it is one"
    rtol, atol = 1e-4, 1e-4
    refusals = (
        refusal(TTLinearGradient((2,), (3,), (1, 1)), [f32(1, 2), f32(6), f32(1, 2)], r"dY must have shape \(1, 3\)"),
    )

    def draw(self, data):
        op, x, cores = draw_train(data, TTLinearGradient)
        return op, [x, cores, data.draw(floats(x.shape[0], math.prod(op.out_sizes)))]

    def reference(self, op, x, cores, dy):
        """The gradient of the cores by the matrix that one unit in each makes: W is linear in every core."""
        d_cores = np.zeros(cores.size)
        ends = np.cumsum([0, *(rows * columns for rows, columns in op.core_shapes)])
        for k in range(len(ends) - 1):
            for place in range(cores.size - ends[k + 1], cores.size - ends[k]):
                changed = cores.copy()
                changed[cores.size - ends[k + 1] : cores.size - ends[k]] = 0
                changed[place] = 1
                d_cores[place] = ((x @ dense(op, changed)) * dy).sum()
        return [dy @ dense(op, cores).T, dy.sum(axis=0), d_cores]


# One sample, sizes and numbers as run in Caffe2's release, which orders the results of several samples differently.
def test_the_numbers_of_caffe2():
    op = TT((2, 3), (2, 2), (1, 2, 1))
    cores = (np.arange(20, dtype=np.float32) % 7 - 3) / 4
    (y,) = run_plain(op, [np.arange(6, dtype=np.float32)[None] / 3, np.float32([0, 1, 2, 3]), cores])
    np.testing.assert_allclose(y, [[0.1875, 0.9791666, 2.0625, 2.75]], rtol=1e-6)


@pytest.mark.parametrize("samples", [1, 5])
def test_cost_counts_the_products(samples):
    op = TT((2, 3), (2, 1), (1, 2, 1)).with_arity(3, 1)
    x, b, cores = f32(samples, 6), f32(2), f32(14)
    assert op.flops(x, b, cores) == 2 * samples * (2 * 3 * 2 + 4 * 2)
