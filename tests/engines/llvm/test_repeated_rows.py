"""SumRepeatedRows as machine code against the plain kernel in float64: types, sizes of tables, wrong indices."""

import numpy as np
import pytest

from machine_code import alone
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.repeated_rows import sum_repeated_rows
from netbuilder.ops.core.registry import CPU, plain_kernel
from netbuilder.ops.updates.sum_repeated_rows import SumRepeatedRows
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
rng = np.random.default_rng(0)


def bound(op, indices, values):
    return bind(sum_repeated_rows, op, [Value.of(indices), Value.of(values)], context=alone().run)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("height", [1, 7, 257, 1 << 30])
@pytest.mark.parametrize("inner", [(), (2, 20), (0,)])
def test_as_the_plain_kernel(kind, dtype, height, inner):
    op = SumRepeatedRows(num_rows=height).with_arity(2, 2)
    for shape in ((), (1,), (0,), (40,), (5, 9)):
        indices = rng.integers(0, min(height, 30), shape).astype(kind)
        indices[indices == 29] = height - 1
        values = rng.standard_normal((*shape, *inner)).astype(dtype)
        found = bound(op, indices, values)
        found.call()
        rows, sums = (value.plain() for value in found.outputs)
        expected_rows, expected_sums = plain_kernel(op.type, CPU)(op, alone().run, indices, values.astype(np.float64))
        np.testing.assert_array_equal(rows, expected_rows)
        np.testing.assert_allclose(sums, expected_sums, rtol=1e-5, atol=1e-5)


def test_rows_are_added_in_order():
    indices, values = rng.integers(0, 4, 500), rng.standard_normal((500, 5)).astype(np.float32)
    found = bound(SumRepeatedRows(num_rows=4).with_arity(2, 2), indices, values)
    found.call()
    rows, sums = (value.plain() for value in found.outputs)
    for row in range(4):
        expected = np.zeros(5, np.float32)
        for value in values[indices == row]:
            expected += value
        np.testing.assert_array_equal(sums[rows == row][0], expected)


@pytest.mark.parametrize("index", [-1, 7, 2**31 - 1])
def test_indices_out_of_range_are_refused_and_nothing_is_written(index):
    op = SumRepeatedRows(num_rows=7).with_arity(2, 2)
    indices, values = np.array([3, index, 0], np.int32), np.ones((3, 2), np.float32)
    found = bound(op, indices, values)
    before = [value.plain() for value in found.outputs]
    with pytest.raises(IndexError, match=rf"SumRepeatedRows: indices must lie in \[0, 7\), got {index}"):
        found.call()
    for value, old in zip(found.outputs, before):
        np.testing.assert_array_equal(value.plain(), old)
