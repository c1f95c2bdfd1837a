"""GatherND and GatherElements as machine code against loops over all places: types, wrong indices, threads."""

import numpy as np
import pytest

from machine_code import alone
from netbuilder.engines.llvm import chosen_elements, machine
from netbuilder.ops.arrange.elements import GatherElements, GatherND
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
rng = np.random.default_rng(0)


@pytest.fixture(params=[(1, np.int32), (3, np.int64)], ids=str)
def threads_and_kind(request, monkeypatch):
    monkeypatch.setattr(chosen_elements, "OF_A_THREAD", 0)
    return request.param


def served(op, x, indices, threads):
    op = op.with_arity(2, 1)
    found = bind(chosen_elements.CHOSEN_ELEMENTS[op.type], op, [Value.of(x), Value.of(indices)], threads=threads,
                 context=alone().run)  # fmt: skip
    found.call()
    return found.outputs[0].plain()


def numbers(shape, dtype):
    return (10 * rng.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.int64, np.bool_, np.complex128])
@pytest.mark.parametrize("inner", [(), (3,), (4, 9), (0,)])
@pytest.mark.parametrize(("batch", "count"), [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1), (1, 0)])
def test_slices(batch, count, inner, dtype, threads_and_kind):
    threads, kind = threads_and_kind
    x = numbers((3, 4, 5, *inner), dtype)
    rows = (*x.shape[:batch], 7)
    columns = [rng.integers(-n, n, rows) for n in x.shape[batch : batch + count]]
    indices = (np.stack(columns, -1) if columns else np.zeros((*rows, 0))).astype(kind)
    expected = [x[(*place[:batch], *indices[place])] for place in np.ndindex(rows)]
    y = served(GatherND(batch_dims=batch), x, indices, threads)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.array(expected).reshape(y.shape))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.int64, np.bool_])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 2), (3, 1, 1), (3, 4, 0)])
def test_elements(axis, shape, dtype, threads_and_kind):
    threads, kind = threads_and_kind
    x = numbers((3, 4, 5), dtype)
    shape = [9 if i == axis % 3 and n else n for i, n in enumerate(shape)]  # the indices of other axes may be fewer
    indices = rng.integers(-x.shape[axis], x.shape[axis], shape).astype(kind)
    expected = np.zeros(shape, dtype)
    for place in np.ndindex(*shape):
        chosen = list(place)
        chosen[axis] = indices[place]
        expected[place] = x[tuple(chosen)]
    y = served(GatherElements(axis=axis), x, indices, threads)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("wrong", [-4, 3, 2**31 - 1])
def test_wrong_indices(wrong, threads_and_kind):
    threads, kind = threads_and_kind
    x, slices = numbers((5, 3), np.float32), np.zeros((4, 2), kind)
    slices[2, 1] = wrong
    elements = np.zeros((5, 2), kind)
    elements[4, 0] = wrong
    for op, indices in ((GatherND(), slices), (GatherElements(axis=1), elements)):
        with pytest.raises(IndexError, match=str(wrong)):
            served(op, x, indices, threads)
