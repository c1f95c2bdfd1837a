"""TTSparseLengthsSum and its gradient, compared with the table that the cores represent."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.dense.tensor_train_lookup import TTSparseLengthsSum, TTSparseLengthsSumGradient
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal

SIZES = {"factor_i": (2, 3, 2), "factor_j": (2, 1, 2), "ranks": (1, 2, 3, 1), "emb_size": 4}
SHAPES = [(2, 1, 2, 2), (3, 2, 1, 3), (2, 3, 2, 1)]
CORES = [f32(*shape) for shape in SHAPES]


def table_of(cores):
    """Return the table, (12, 4), from the definition."""
    rows = []
    for i in range(12):
        a, b, c = cores[0][i % 2], cores[1][i // 2 % 3], cores[2][i // 6]
        rows.append(np.einsum("aib,bjc,ckd->ijk", a, b, c).ravel())
    return np.array(rows)


def draw_inputs(data):
    lengths = np.array(data.draw(st.lists(st.integers(0, 3), max_size=3)), np.int32)
    count = int(lengths.sum())
    index = np.array(data.draw(st.lists(st.integers(0, 11), min_size=count, max_size=count)), np.int64)
    return [data.draw(floats(*shape)) for shape in SHAPES], index, lengths


class TestTTSparseLengthsSum(OperatorSuite):
    operator = TTSparseLengthsSum
    wrt = (0, 1, 2)
    rtol, atol = 1e-4, 1e-4
    refusals = (
        refusal(TTSparseLengthsSum(), [*CORES, i64(2), i32(1)], "three numbers factor_i, three", ArgumentError),
        refusal(
            TTSparseLengthsSum(**{**SIZES, "emb_size": 5}),
            [*CORES, i64(2), i32(1)],
            "emb_size must be the product of factor_j, 4, got 5",
            ArgumentError,
        ),
        refusal(
            TTSparseLengthsSum(**SIZES), [CORES[1], *CORES[1:], i64(2), i32(1)], r"core0 must have shape \(2, 1, 2"
        ),
        refusal(
            TTSparseLengthsSum(**SIZES), [*CORES, i32(2), i32(1)], "index must have elements of type int64, got int32"
        ),
        refusal(
            TTSparseLengthsSum(**SIZES), [*CORES, i64(2), i64(1)], "lengths must have elements of type int32, got int64"
        ),
    )

    def draw(self, data):
        cores, index, lengths = draw_inputs(data)
        return TTSparseLengthsSum(**SIZES).with_arity(5, 4), [*cores, index, lengths]

    def reference(self, op, *inputs):
        *cores, index, lengths = inputs
        picked = np.split(table_of(cores)[index], np.cumsum(lengths))[: len(lengths)]
        sums = np.array([rows.sum(axis=0) for rows in picked]).reshape(-1, 4)
        digits = np.array([[i % 2, i // 2 % 3, i // 6] for i in index], int).reshape(-1, 3)
        one = cores[0][digits[:, 0]].reshape(-1, 2, 2)
        return [sums, one, None, digits]


class TestTTSparseLengthsSumGradient(OperatorSuite):
    operator = TTSparseLengthsSumGradient
    no_gradient = "it is one"
    rtol, atol = 1e-4, 1e-4
    refusals = (
        refusal(
            TTSparseLengthsSumGradient(**SIZES),
            [*CORES, i32(1), f32(2, 2, 2), f32(2, 2, 3), i64(2, 3), f32(1, 3)],
            r"dOUTPUT must have shape \(1, 4\)",
        ),
    )

    def draw(self, data):
        cores, index, lengths = draw_inputs(data)
        _, *kept = run_plain(TTSparseLengthsSum(**SIZES).with_arity(5, 4), [*cores, index, lengths])
        dy = data.draw(floats(len(lengths), 4))
        return TTSparseLengthsSumGradient(**SIZES).with_arity(8, 3), [*cores, lengths, *kept, dy]

    def reference(self, op, *inputs):
        """The table is linear in every element of a core."""
        *cores, lengths, _, _, digits, dy = inputs
        index = digits @ [1, 2, 6]
        d_table = np.zeros((12, 4))
        np.add.at(d_table, index, np.repeat(dy, lengths, axis=0))
        made = []
        for k, core in enumerate(cores):
            d_core = np.zeros(core.shape)
            for place in np.ndindex(*core.shape):
                unit = np.zeros(core.shape)
                unit[place] = 1
                d_core[place] = (table_of([*cores[:k], unit, *cores[k + 1 :]]) * d_table).sum()
            made.append(d_core)
        return made


def test_cores_as_matrices_and_what_does_not_fit():
    """Caffe2 takes cores of two axes too."""
    rng = np.random.default_rng(0)
    cores = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    op = TTSparseLengthsSum(**SIZES).with_arity(5, 4)
    index, lengths = np.int64([11, 0]), np.int32([2])
    flat = [core.reshape(core.shape[0], -1) for core in cores]
    np.testing.assert_array_equal(run_plain(op, [*flat, index, lengths])[0], run_plain(op, [*cores, index, lengths])[0])
    assert math.prod(op.infer(*CORES, i64(2), i32(1))[2].shape) == 2 * 2 * 3
    with pytest.raises(IndexError, match=r"indices must lie in \[0, 12\), got 12"):
        run_plain(op, [*cores, np.int64([12, 0]), lengths])
    with pytest.raises(ShapeError, match="the number of rows, 2, got 3"):
        run_plain(op, [*cores, index, np.int32([3])])


def test_the_gradient_takes_the_sizes_from_cores_of_four_axes():
    rng = np.random.RandomState(0)
    sizes = {"factor_i": (2, 3, 2), "factor_j": (2, 2, 2), "ranks": (1, 3, 2, 1), "emb_size": 8}
    cores = [rng.randn(2, 1, 2, 3), rng.randn(3, 3, 2, 2), rng.randn(2, 2, 2, 1)]
    index, lengths, dy = np.int64([0, 11, 4]), np.int32([2, 1]), rng.randn(2, 8)
    forward = TTSparseLengthsSum(**sizes).with_arity(5, 4)
    _, one, two, digits = run_plain(forward, [*cores, index, lengths])
    inputs = [*cores, lengths, one, two, digits, dy]
    given, derived = (
        run_plain(op.with_arity(8, 3), inputs)
        for op in (TTSparseLengthsSumGradient(**sizes), TTSparseLengthsSumGradient())
    )
    for a, b in zip(given, derived):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ShapeError, match="core0 must have 4 axes"):
        run_plain(TTSparseLengthsSumGradient().with_arity(8, 3), [cores[0].reshape(2, 6), *inputs[1:]])
