"""ArgMax and ArgMin as machine code against NumPy's: all axes, types, ties, NaN, infinities, threads."""

import itertools

import numpy as np
import pytest

from netbuilder.engines.llvm import extrema, machine
from netbuilder.ops.math.minmax import ArgMax, ArgMin
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
TYPES = [np.float16, np.float32, np.float64, *(np.dtype(code) for code in "bBhHiIqQ")]


def check(x, threads=1):
    for operator, function in ((ArgMax, np.argmax), (ArgMin, np.argmin)):
        axes = [axis for axis in range(-x.ndim, x.ndim) if x.shape[axis]]
        for axis, keepdims in itertools.product(axes, (False, True)):
            op = operator(axis=axis, keepdims=keepdims).with_arity(1, 1)
            found = bind(extrema.EXTREMA[op.type], op, [Value.of(x)], threads=threads)
            found.call()
            got = found.outputs[0].plain()
            assert got.dtype == np.int64
            np.testing.assert_array_equal(got, function(x, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_each_axis(dtype, threads, monkeypatch):
    monkeypatch.setattr(extrema, "OF_A_THREAD", 0)
    rng = np.random.default_rng(0)
    for shape in [(1,), (5,), (16,), (47,), (3, 4, 17), (2, 40), (0, 3), (33, 1), (2, 3, 16)]:
        check((10 * rng.standard_normal(shape)).astype(dtype), threads)
        check(rng.integers(0, 3, shape).astype(dtype), threads)  # of equal elements the first


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_the_ends_of_a_range(dtype):
    limits = np.iinfo(dtype)
    check(np.random.default_rng(0).choice(np.array([limits.min, limits.max, 0, 1], dtype), (5, 33)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_is_not_finite(dtype):
    rng = np.random.default_rng(0)
    check(rng.choice(np.array([-np.inf, np.inf, 0, -0.0, 2, -2], dtype), (40, 33)))
    x = rng.standard_normal((40, 50)).astype(dtype)
    x[rng.random(x.shape) < 0.05] = np.nan  # the first one is both the largest and the smallest
    x[:3], x[:, 0] = np.nan, -np.inf
    check(x)
    check(np.full((3, 20), -np.inf, dtype))
