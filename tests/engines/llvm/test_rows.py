"""Rows that indices or lengths name, as machine code, against plain kernels in float64; wrong inputs, and threads."""

import numpy as np
import pytest

from machine_code import alone
from netbuilder.engines.llvm import indexed_rows, machine, row_updates, segments
from netbuilder.engines.llvm.indexed_rows import INDEXED_ROWS
from netbuilder.engines.llvm.row_updates import ROW_UPDATES
from netbuilder.engines.llvm.segments import SEGMENTS
from netbuilder.ops.arrange.gather import BatchGather, BatchGatherGradient, Gather
from netbuilder.ops.arrange.scatter import ScatterAssign, ScatterWeightedSum
from netbuilder.ops.core.indexing import no_row
from netbuilder.ops.core.registry import CPU, find, plain_kernel
from netbuilder.ops.images.resize import ResizeNearest, ResizeNearest3D
from netbuilder.ops.segments.reverse_packed import ReversePackedSegs
from netbuilder.ops.segments.sorted_segments import SortedSegmentSumGradient
from netbuilder.ops.segments.sparse import SparseToDense, UnsortedSegmentSum, UnsortedSegmentSumGradient
from netbuilder.ops.updates.adagrad import SparseAdagrad
from netbuilder.ops.updates.sparse_momentum import SparseMomentumSGDUpdate
from netbuilder.ops.updates.sparse_updates import (
    RowWiseSparseAdagrad,
    RowWiseSparseAdam,
    SparseAdadelta,
    SparseAdam,
)
from netbuilder.proto import ShapeError
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
KERNELS = {**INDEXED_ROWS, **SEGMENTS, **ROW_UPDATES}
rng = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def plain(op, arrays):
    """Return the results of the plain kernel in float64, or float64 and the integers that there are."""
    wide = [each.astype(np.float64) if each.dtype.kind == "f" else each for each in arrays]
    kernel = plain_kernel(op.type, CPU)
    return kernel(op, alone().run, *(each.copy() for each in wide))


def served(op, arrays, threads=1):
    """Return what machine code computes; tables are changed in place."""
    found = bind(KERNELS[op.type], op, [Value.of(each) for each in arrays], threads=threads, inplace=True,
                 context=alone().run)  # fmt: skip
    assert found is not None, f"{op} is not served"
    found.call()
    return [value.plain() for value in found.outputs]


def check(op, arrays, rtol=1e-5, atol=1e-5, threads=1):
    op = op.with_arity(len(arrays), op.n_out or len(type(op).outputs))
    for result, expected in zip(served(op, arrays, threads), plain(op, arrays), strict=True):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=atol)


@pytest.fixture(params=[(1, np.int32), (3, np.int64)], ids=str)
def threads_and_kind(request, monkeypatch):
    """How many threads share work of any size, and the type of indices and lengths."""
    for module in (indexed_rows, segments, row_updates):
        monkeypatch.setattr(module, "OF_A_THREAD", 0)
    return request.param


@pytest.fixture
def threads(threads_and_kind):
    return threads_and_kind[0]


@pytest.fixture
def kind(threads_and_kind):
    return threads_and_kind[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 1, 1), (0, 3, 2, 2), (2, 0, 2, 2)])
@pytest.mark.parametrize(("high", "wide"), [(2, 2), (1, 3), (0.4, 1.7), (1, 1)])
def test_resized_images(high, wide, shape, dtype, threads):
    x = normal(*shape, dtype=dtype)
    for order in ("NCHW", "NHWC"):
        images = x if order == "NCHW" else np.moveaxis(x, 1, -1).copy()
        if all(int(n * scale) for n, scale in zip(shape[2:], (high, wide))):
            op = ResizeNearest(height_scale=high, width_scale=wide, order=order)
            check(op, [images], rtol=0, atol=0, threads=threads)
            (y,) = served(op.with_arity(1, 1), [images], threads)
            assert y.dtype == dtype
    volumes = x[:, :, None].repeat(2, axis=2) * np.array([1, 2], dtype)[:, None, None]
    check(ResizeNearest3D(temporal_scale=1.5), [volumes], rtol=0, atol=0, threads=threads)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.int64, np.bool_])
@pytest.mark.parametrize("inner", [(), (3,), (33,), (0,)])
def test_rows_are_gathered_and_assigned(kind, dtype, inner, threads):
    table, where = normal(7, *inner).astype(dtype), np.array([[3, 0, 6], [6, 1, 3]], kind)
    check(Gather(), [table, where - 7], threads=threads)
    check(
        Gather(axis=1),
        [np.stack([table, -table.astype(dtype) if dtype != np.bool_ else table]), where],
        threads=threads,
    )
    check(BatchGather(match_outer=True), [np.stack([table, table[::-1]]), where], threads=threads)
    check(UnsortedSegmentSumGradient(), [table.astype(np.float32), where[0]], threads=threads)
    check(SortedSegmentSumGradient(), [table.astype(np.float32), np.sort(where[0])], threads=threads)
    check(ScatterAssign(), [table, where, table[where[::-1]]], threads=threads)
    check(ScatterAssign(axis=1), [np.stack([table, table]), where[0], np.stack([table, table])[:, :3]], threads=threads)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
@pytest.mark.parametrize("inner", [(), (3,), (2, 20), (0,)])
def test_rows_are_added(kind, dtype, inner, threads):
    where = np.array([[3, 0, 6], [6, 3, 3]], kind)
    rows, like = (10 * normal(2, 3, *inner)).astype(dtype), np.zeros((7, *inner), dtype)
    check(SparseToDense(), [where, rows, like], threads=threads)
    if like.dtype.kind == "f":
        check(UnsortedSegmentSum(num_segments=8), [rows[0], where[0]], threads=threads)
        outer = np.stack([like, like])
        check(BatchGatherGradient(), [outer, where[1], np.stack([rows[0]] * 2)], threads=threads)
        check(BatchGatherGradient(match_outer=True), [outer, where, rows], threads=threads)
        table = normal(7, *inner, dtype=dtype)
        for factor in (1.0, -0.5):
            numbers = [np.array([factor], dtype), where, rows, np.array([3], np.int32)]
            check(ScatterWeightedSum(), [table, *numbers], threads=threads)
            check(ScatterWeightedSum(), [table, *numbers, -rows, np.array(0.25, np.float64)], threads=threads)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64])
@pytest.mark.parametrize("inner", [(), (3,), (33,), (0,)])
def test_sequences_are_reversed(kind, dtype, inner, threads):
    x = (10 * normal(5, 7, *inner)).astype(dtype)
    check(ReversePackedSegs(), [x, np.array([0, 1, 2, 5, 3, 4, 9], kind)], threads=threads)


def test_many_rows_are_added_in_the_order_of_their_indices():
    where, rows = rng.integers(0, 5, 3000), normal(3000, 8)
    one, three = (served(SparseToDense().with_arity(3, 1), [where, rows, np.zeros(5)], n)[0] for n in (1, 3))
    expected = np.zeros((5, 8), np.float32)
    for index, row in zip(where, rows):
        expected[index] += row
    np.testing.assert_array_equal(one, expected)
    np.testing.assert_array_equal(three, expected)


def of_segments(how, kind, dtype, inner):
    """Return the inputs of an operator by their names."""
    lengths = np.array([2, 0, 5, 1, 0], kind)
    wide = np.float32 if dtype == np.float16 else dtype
    found = {
        "lengths": lengths,
        "indices": np.array([3, 0, 6, 6, 2, 1, 6, 5], kind),
        "weights": normal(8, dtype=dtype if how.startswith("Lengths") or "Gradient" in how else wide),
        "X": normal(8, *inner, dtype=dtype),
        "dY": normal(5, *inner, dtype=dtype),
    }
    found["Y"] = np.stack([part.max(axis=0) if len(part) else np.zeros(inner, dtype)
                           for part in np.split(found["X"], np.cumsum(lengths)[:-1])])  # fmt: skip
    return [found[name] for name in find(how).inputs]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("inner", [(), (5, 17), (0,)])
@pytest.mark.parametrize("how", sorted(SEGMENTS.keys() - {"ReversePackedSegs"}))
def test_segments(how, kind, dtype, inner, threads):
    arrays = of_segments(how, kind, dtype, inner)
    op = find(how)().with_arity(len(arrays), len(find(how).outputs))
    if dtype == np.float16 and (how.startswith("Lengths") or "Gradient" in how):
        assert bind(SEGMENTS[how], op, [Value.of(each) for each in arrays]) is None  # the plain kernel serves
        return
    check(op, arrays, rtol=1e-5, atol=1e-5, threads=threads)


def test_sums_of_segments_do_not_depend_on_threads(threads):
    lengths = rng.integers(0, 9, 400).astype(np.int32)
    arrays = [normal(50, 70), rng.integers(0, 50, lengths.sum()), lengths]
    op = find("SparseLengthsSum")().with_arity(3, 1)
    expected = np.stack([part.sum(axis=0) for part in np.split(arrays[0][arrays[1]], np.cumsum(lengths)[:-1])])
    np.testing.assert_array_equal(served(op, arrays, threads)[0], served(op, arrays, 2)[0])
    np.testing.assert_allclose(served(op, arrays, threads)[0], expected, rtol=1e-5, atol=1e-5)


def test_what_is_not_finite_stays_in_its_segment():
    x = np.float32([[np.nan, 1], [2, np.inf], [3, -np.inf], [-np.inf, 4]])
    lengths = np.int32([2, 1, 1])
    for how in ("LengthsSum", "LengthsMean", "LengthsMax"):
        check(find(how)().with_arity(2, 1), [x, lengths])


UPDATES = {
    SparseAdagrad(weight_decay=0.1): 1,
    RowWiseSparseAdagrad(): "row",
    RowWiseSparseAdagrad(weight_decay=0.1, counter_halflife=3): "row counted",
    SparseAdadelta(): 2,
    SparseAdam(): "adam",
    SparseAdam(enableRAdam=True): "adam",
    SparseMomentumSGDUpdate(momentum=0.9): "momentum",
    SparseMomentumSGDUpdate(momentum=0.9, nesterov=True): "momentum",
}


def of_update(form, kind, dtype, inner, where):
    p, g, rate = normal(7, *inner, dtype=dtype), normal(len(where), *inner, dtype=dtype), np.array([-0.1], dtype)
    indices, moments = np.array(where, kind), [abs(normal(7, *inner, dtype=dtype)) for _ in range(2)]
    if form == "momentum":
        return [g, moments[0], rate, p, indices]
    if form == "adam":
        return [p, *moments, indices, g, rate, np.array([3])]
    if str(form).startswith("row"):
        counts = [np.array([0, 1, 2, 3, 4, 5, 6], np.float64)] if "counted" in form else []
        return [p, abs(normal(7, dtype=dtype)), indices, g, rate, *counts]
    return [p, *moments[:form], indices, g, rate]


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-5), (np.float64, 1e-12), (np.float16, 5e-3)])
@pytest.mark.parametrize("inner", [(3,), (2, 17)])
@pytest.mark.parametrize("op", UPDATES, ids=str)
def test_updates_of_rows(op, kind, dtype, rtol, inner, threads):
    arrays = of_update(UPDATES[op], kind, dtype, inner, [3, 0, 6, 3, 3, no_row(kind), 1])
    outputs = 4 if isinstance(op, SparseAdam) else len(type(op).must_inplace) + isinstance(op, SparseMomentumSGDUpdate)
    check(op.with_arity(len(arrays), outputs), arrays, rtol=rtol, atol=rtol, threads=threads)


@pytest.mark.parametrize("op", [SparseAdagrad(), SparseAdam(), SparseMomentumSGDUpdate()], ids=str)
def test_updates_of_rows_of_one_element_and_of_none(op):
    form = UPDATES.get(op) or {SparseAdagrad: 1, SparseAdam: "adam", SparseMomentumSGDUpdate: "momentum"}[type(op)]
    for where in ([2, 5, 2], []):
        arrays = of_update(form, np.int64, np.float32, (), where)
        outputs = {SparseAdagrad: 2}.get(type(op), 3)
        check(op.with_arity(len(arrays), outputs), arrays, rtol=1e-5, atol=1e-5)


def test_the_formula_of_a_mean_over_the_row_with_a_number_of_the_step_has_the_plain_kernel():
    arrays = of_update("adam", np.int64, np.float32, (3,), [2])
    arrays[2] = arrays[2][:, 0]
    op = RowWiseSparseAdam().with_arity(7, 3)
    assert bind(ROW_UPDATES[op.type], op, [Value.of(each) for each in arrays], context=alone().run) is None


@pytest.mark.parametrize("index", [7, -1, "lowest", "highest"])
def test_indices_out_of_range_are_the_plain_kernels_errors_and_nothing_is_written(kind, index, threads):
    limits = np.iinfo(kind)
    wrong = {"lowest": limits.min + 1, "highest": limits.max}.get(index, index)
    where = np.array([3, 0, wrong, 6], kind)
    table, rows = normal(7, 20), normal(4, 20)
    number = np.float32([1])
    cases = [
        (Gather(axis=1), [table[None], where]),
        (ScatterAssign(), [table, where, rows]),
        (ScatterWeightedSum(), [table, number, where, rows, number]),
        (SparseToDense(), [where, rows, table]),
        (BatchGatherGradient(), [table[None], where, rows[None]]),
        (find("SparseLengthsSum")(), [table, where, np.array([1, 3], kind)]),
        (SparseAdagrad(), [table, table, where, rows, number]),
    ]
    for op, arrays in cases:
        op = op.with_arity(len(arrays), len(type(op).outputs))
        with pytest.raises((IndexError, ShapeError)) as expected:
            plain(op, arrays)
        found = bind(KERNELS[op.type], op, [Value.of(each) for each in arrays], threads=threads, inplace=True,
                     context=alone().run)  # fmt: skip
        before = [value.plain() for value in found.outputs]
        for _ in range(2):
            with pytest.raises(type(expected.value)) as error:
                found.call()
            assert str(error.value) == str(expected.value)
        for value, old in zip(found.outputs, before):
            np.testing.assert_array_equal(value.plain(), old)


@pytest.mark.parametrize("lengths", [[1, 2], [1, 4], [-1, 5], [2**31 - 1, -(2**31) + 5]])
def test_lengths_that_do_not_fit_are_the_plain_kernels_errors(kind, lengths, threads):
    lengths, where = np.array(lengths, kind), np.array([0, 1, 2, 1], kind)
    for how in ("SparseLengthsMean", "LengthsSum", "SparseLengthsIndicesInGradientSumGradient"):
        given = {"X": normal(4, 3), "dY": normal(2, 3), "lengths": lengths, "indices": where}
        arrays = [given[name] for name in find(how).inputs]
        op = find(how)().with_arity(len(arrays), 1)
        with pytest.raises(ShapeError) as expected:
            plain(op, arrays)
        with pytest.raises(ShapeError) as error:
            served(op, arrays, threads)
        assert str(error.value) == str(expected.value)


def test_positions_without_a_weight_are_refused():
    arrays = [normal(4, 3), normal(2), np.int32([0, 1, 2, 3]), np.int32([1, 3])]
    with pytest.raises(ShapeError, match="longest segment, 3; got 2"):
        served(find("SparseLengthsPositionalWeightedSum")().with_arity(4, 1), arrays)
