"""Sums of rows by segment as products with a sparse matrix, compared with the plain kernels in float64."""

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines import onednn
from netbuilder.ops.core.indexing import check_indices
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.proto import ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.plan.run_context import KernelContext
from prepared import Value, bind

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn.registration import kernel_table

TABLE = kernel_table()
CASES = {
    "SparseLengthsSum": ["table", "indices", "lengths"],
    "SparseLengthsMean": ["table", "indices", "lengths"],
    "SparseLengthsWeightedSum": ["table", "weights", "indices", "lengths"],
    "SparseLengthsPositionalWeightedSum": ["table", "places", "indices", "lengths"],
    "LengthsSum": ["rows", "lengths"],
    "LengthsMean": ["rows", "lengths"],
    "LengthsWeightedSum": ["rows", "weights", "lengths"],
    "LengthsWeightedSumGradient": ["weights", "slope", "lengths"],
    "SparseLengthsIndicesInGradientWeightedSumGradient": ["weights", "slope", "lengths", "indices"],
}


def arrays(kind, row):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 6, 40).astype(np.int32)
    lengths[[3, 7]] = 0, 30
    count = int(lengths.sum())
    return {
        "table": rng.standard_normal((50, *row)).astype(np.float32),
        "rows": rng.standard_normal((count, *row)).astype(np.float32),
        "slope": rng.standard_normal((40, *row)).astype(np.float32),
        "weights": rng.standard_normal(count).astype(np.float32),
        "places": rng.standard_normal(50).astype(np.float32),
        "indices": rng.integers(0, 50, count).astype(kind),
        "lengths": lengths,
    }


def made(op_type, given, threads=1):
    op_def = make_op(op_type, CASES[op_type], ["y"])
    inputs = [given[name] for name in CASES[op_type]]
    op = decode(find(op_type), op_def)
    return bind(TABLE[op_type], op, [Value.of(x) for x in inputs], threads=threads, context=KernelContext(op_def, None))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("row", [(), (3,), (4, 8), (67,)], ids=str)
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("op_type", CASES)
def test_as_the_plain_kernel(op_type, kind, row, threads):
    given = arrays(kind, row)
    bound = made(op_type, given, threads)
    if bound is None:
        pytest.skip("the library has no quick product with a sparse matrix on this CPU")
    bound.call()
    exact = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in given.items()}
    want = interpret([make_op(op_type, CASES[op_type], ["y"])], exact)["y"]
    np.testing.assert_allclose(bound.outputs[0].plain(), want, 1e-5, 1e-5)


@pytest.mark.parametrize("op_type", CASES)
def test_what_is_left_to_numpy(op_type):
    given = arrays(np.int64, (2,))
    doubles = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in given.items()}
    assert made(op_type, doubles) is None
    nothing = {name: x[:0] for name, x in given.items()}
    assert made(op_type, nothing) is None


def test_bad_input_is_found_when_it_runs():
    given = arrays(np.int64, (3,))
    bound = made("SparseLengthsSum", {**given, "indices": given["indices"] + 20})
    if bound is None:
        pytest.skip("the library has no quick product with a sparse matrix on this CPU")
    with pytest.raises(IndexError, match=r"indices must lie in \[0, 50\)"):
        bound.call()


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_lengths_that_are_negative_or_too_many_are_found(kind):
    given = arrays(np.int64, (3,))
    right = given["lengths"].astype(kind)
    for position, value, message in (
        ([0, 1], (right[0] + right[1] + 5, -5), "must not be negative, got -5"),
        ([0], (right[0] + 1,), f"sum of the lengths must be the number of rows, {right.sum()}, got {right.sum() + 1}"),
        # Sums of int32 would be the right number, modulo 2^32.
        ([0, 1, 2], (2**31 - 1, 2**31 - 1, 2 + right[:3].sum()), "number of rows|more than|memory of this machine"),
    ):
        lengths = right.copy()
        lengths[position] = value
        bound = made("SparseLengthsSum", {**given, "lengths": lengths})
        if bound is None:
            pytest.skip("the library has no quick product with a sparse matrix on this CPU")
        with pytest.raises(ShapeError, match=message):
            bound.call()


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("steps", [1, 2])
def test_indices_are_checked(kind, steps):
    indices = np.zeros(12, kind)[::steps]
    assert check_indices("Op", indices, 7) is False
    for wrong in (7, 100, -1) if indices.dtype.kind == "i" else (7, 100):
        indices[2] = wrong
        with pytest.raises(IndexError, match=rf"Op: indices must lie in \[0, 7\), got {wrong}"):
            check_indices("Op", indices, 7)
        assert check_indices("Op", indices, 101, -2) is (wrong < 0)
