"""CumSum as machine code against NumPy's in float64: all axes, types, directions, empty arrays, threads."""

import numpy as np
import pytest

from netbuilder.engines.llvm import machine, running_sums
from netbuilder.ops.reductions.cumsum import CumSum
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")


def expected(x, axis, exclusive, reverse):
    wide = x.astype(np.float64 if x.dtype.kind == "f" else x.dtype)
    wide = np.flip(wide, axis) if reverse else wide
    y = np.cumsum(wide, axis, wide.dtype)
    y = y - wide if exclusive else y
    return np.flip(y, axis) if reverse else y


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int32, np.int64])
def test_sums_along_each_axis(dtype, exclusive, reverse, threads, monkeypatch):
    monkeypatch.setattr(running_sums, "OF_A_THREAD", 0)
    rng = np.random.default_rng(0)
    for shape in [(5,), (3, 4, 17), (2, 40), (0, 3), (3, 0), (33, 1)]:
        x = (10 * rng.standard_normal(shape)).astype(dtype)
        for axis in range(-len(shape), len(shape)):
            op = CumSum(axis=axis, exclusive=exclusive, reverse=reverse).with_arity(1, 1)
            found = bind(running_sums.running_sums, op, [Value.of(x)], threads=threads)
            found.call()
            limit = {np.float16: 3e-2, np.float32: 1e-4}.get(dtype, 1e-10)
            np.testing.assert_allclose(
                found.outputs[0].plain(), expected(x, axis, exclusive, reverse), rtol=limit, atol=limit
            )


def test_what_is_not_finite():
    x = np.float32([[1, np.inf, 2, -np.inf, 3], [np.nan, 1, 2, 3, 4]])
    found = bind(running_sums.running_sums, CumSum(axis=1).with_arity(1, 1), [Value.of(x)])
    found.call()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found.outputs[0].plain(), np.cumsum(x, 1))
