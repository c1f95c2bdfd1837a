"""What several indices choose together, as machine code, against loops over all places: types, errors, threads."""

import numpy as np
import pytest

from machine_code import alone
from netbuilder.engines.llvm import chosen_elements, machine
from netbuilder.ops.arrange.elements import (
    GatherElements,
    GatherElementsGradient,
    GatherND,
    GatherNDGradient,
    ScatterElements,
    ScatterElementsGradient,
    ScatterND,
    ScatterNDGradient,
)
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
rng = np.random.default_rng(0)
DTYPES = [np.float32, np.float64, np.float16, np.int8, np.int64, np.bool_]
REDUCTIONS = {"none": lambda old, new: new, "add": lambda old, new: old + new, "max": np.maximum, "min": np.minimum}


@pytest.fixture(params=[(1, np.int32), (3, np.int64)], ids=str)
def threads_and_kind(request, monkeypatch):
    monkeypatch.setattr(chosen_elements, "OF_A_THREAD", 0)
    return request.param


def prepared(op, *inputs, threads=1):
    op = op.with_arity(len(inputs), 1)
    return bind(chosen_elements.CHOSEN_ELEMENTS[op.type], op, [Value.of(each) for each in inputs], threads=threads,
                context=alone().run)  # fmt: skip


def served(op, *inputs, threads):
    found = prepared(op, *inputs, threads=threads)
    found.call()
    return found.outputs[0].plain()


def numbers(shape, dtype):
    return (10 * rng.standard_normal(shape)).astype(dtype)


def checked(ops, x, indices, places, shape, threads):
    """Compare a gathering and a scattering operator, and their gradients, with loops.

    Args:
        ops: the classes, and their arguments.
        places: what each index chooses: (place in what is chosen, of shape ``shape``; place in X).
    """
    (gather, gather_gradient, scatter, scatter_gradient), options = ops
    expected = np.zeros(shape, x.dtype)
    for at, place in places:
        expected[at] = x[place]
    y = served(gather(**options), x, indices, threads=threads)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, expected)
    updates = numbers(shape, x.dtype)
    if updates.size and x.dtype.kind == "f":
        updates.reshape(-1)[0] = np.nan
    for reduction, change in REDUCTIONS.items():
        op = scatter(reduction=reduction, **options)
        if reduction != "none" and x.dtype in (np.float16, np.bool_, np.complex128):
            assert prepared(op, x, indices, updates) is None
            continue
        expected = x.copy()
        for at, place in places:
            expected[place] = change(expected[place], updates[at])
        np.testing.assert_array_equal(served(op, x, indices, updates, threads=threads), expected)
    expected = x.copy()
    for _, place in places:
        expected[place] = 0
    np.testing.assert_array_equal(served(scatter_gradient(**options), indices, x, threads=threads), expected)
    if x.dtype in (np.float32, np.float64):
        expected = np.zeros_like(x)
        for at, place in places:
            expected[place] += updates[at]
        got = served(gather_gradient(**options), x, indices, updates, threads=threads)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [*DTYPES, np.complex128])
@pytest.mark.parametrize("inner", [(), (3,), (4, 9), (0,)])
@pytest.mark.parametrize(("batch", "count"), [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1), (1, 0)])
def test_slices(batch, count, inner, dtype, threads_and_kind):
    threads, kind = threads_and_kind
    x = numbers((3, 4, 5, *inner), dtype)
    rows = (*x.shape[:batch], 7)
    columns = [rng.integers(-n, n, rows) for n in x.shape[batch : batch + count]]
    indices = (np.stack(columns, -1) if columns else np.zeros((*rows, 0))).astype(kind)
    places = [(row, (*row[:batch], *indices[row])) for row in np.ndindex(rows)]
    ops = GatherND, GatherNDGradient, ScatterND, ScatterNDGradient
    shape = (*rows, *x.shape[batch + count :])
    checked((ops, {"batch_dims": batch}), x, indices, places, shape, threads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 2), (3, 1, 1), (3, 4, 0)])
def test_elements(axis, shape, dtype, threads_and_kind):
    threads, kind = threads_and_kind
    x = numbers((3, 4, 5), dtype)
    shape = [9 if i == axis % 3 and n else n for i, n in enumerate(shape)]  # the indices of other axes may be fewer
    indices = rng.integers(-x.shape[axis], x.shape[axis], shape).astype(kind)
    places = []
    for at in np.ndindex(*shape):
        place = list(at)
        place[axis] = indices[at]
        places.append((at, tuple(place)))
    ops = GatherElements, GatherElementsGradient, ScatterElements, ScatterElementsGradient
    checked((ops, {"axis": axis}), x, indices, places, shape, threads)


@pytest.mark.parametrize("wrong", [-4, 3, 2**31 - 1])
def test_wrong_indices(wrong, threads_and_kind):
    threads, kind = threads_and_kind
    x, slices = numbers((5, 3), np.float32), np.zeros((4, 2), kind)
    slices[2, 1] = wrong
    elements = np.zeros((5, 2), kind)
    elements[4, 0] = wrong
    few, some = numbers(4, np.float32), numbers((5, 2), np.float32)
    for op, *inputs in (
        (GatherND(), x, slices),
        (GatherNDGradient(), x, slices, few),
        (ScatterND(), x, slices, few),
        (ScatterNDGradient(), slices, x),
        (GatherElements(axis=1), x, elements),
        (GatherElementsGradient(axis=1), x, elements, some),
        (ScatterElements(axis=1), x, elements, some),
        (ScatterElementsGradient(axis=1), elements, x),
    ):
        with pytest.raises(IndexError, match=str(wrong)):
            served(op, *inputs, threads=threads)
