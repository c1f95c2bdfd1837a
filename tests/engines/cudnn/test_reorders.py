"""Copies between layouts: many by one launch, on a GPU, an emulated one or the double, equal to NumPy to the bit."""

import itertools

import numpy as np
import pytest

from netbuilder.engines.cuda.gpu_layout import BFLOAT16, elements_of, image_spec, order_of, row_major_spec
from netbuilder.engines.cuda.many_tensors import CHUNK
from netbuilder.engines.cudnn.reorders import CHANGES, reorder
from netbuilder.ops.core.extensions import Joinable
from netbuilder.ops.core.operator import TensorSpec
from on_gpu import bound, launched

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(7)
SHAPES = [
    (1,),
    (5, 3, 2, 2),
    (64, 3, 7, 7),
    (7, 16, 3, 3, 3),
    (CHUNK - 1,),
    (CHUNK + 1,),
    (3, 2, CHUNK // 2),
    (2, 0, 3),
]
ORDERS = [image_spec, lambda spec, order, elements: row_major_spec(spec, elements)]


def bfloat16(values):
    """The upper halves, to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), (bits >> 16 | 0x40).astype(np.uint16), rounded)


def stored(values, spec):
    """The bytes of a value in the layout of a spec."""
    order, elements = order_of(spec), elements_of(spec)
    if order is not None:
        values = values.reshape(order.images, order.channels, order.pixels).swapaxes(1, 2)
    flat = bfloat16(values) if elements == BFLOAT16 else values.astype(elements)
    return np.ascontiguousarray(flat).reshape(-1).view(np.uint8)


def rounded(values, elements):
    """The values that a type of elements has."""
    if elements == BFLOAT16:
        return (bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    return values.astype(elements).astype(np.float32)


def copies():
    """A copy of each kind: all changes of elements, between all orders."""
    kinds = itertools.product(CHANGES, itertools.product(ORDERS, repeat=2))
    for k, ((given, wanted), (before, after)) in enumerate(kinds):
        spec = TensorSpec(SHAPES[k % len(SHAPES)], np.dtype(np.float32))
        if spec.ndim < 3:
            before = after = ORDERS[1]
        yield before(spec, "NCHW", given), after(spec, "NCHW", wanted)


def test_copies_of_all_kinds_are_one_launch():
    specs = [*copies()]
    values = [RNG.standard_normal(source.shape).astype(np.float32) for source, _ in specs]
    for array in values:
        array.reshape(-1)[: array.size // 2 : 3] = np.float32(1.00390625)  # halfway between two of bfloat16
    given = [rounded(array, elements_of(source)) for array, (source, _) in zip(values, specs)]
    inputs = [stored(array, source) for array, (source, _) in zip(given, specs)]
    outputs = [np.zeros(target.nbytes, np.uint8) for _, target in specs]
    works = [reorder(*each).get(Joinable) for each in specs]
    with launched() as launches:
        found = bound(works[0].make([work.member for work in works]), inputs, outputs)
    assert len(launches) == 1
    for array, (source, target), got in zip(given, specs, found):
        np.testing.assert_array_equal(got, stored(array, target), err_msg=f"{source} {target}")


@pytest.mark.parametrize("wanted", ["float16", BFLOAT16])
def test_what_is_no_number_stays_so(wanted):
    spec = TensorSpec((6,), np.dtype(np.float32))
    values = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 3e38])
    target = row_major_spec(spec, wanted)
    with np.errstate(over="ignore"):
        (found,) = bound(reorder(spec, target), [values], [np.zeros(12, np.uint8)])
        (back,) = bound(reorder(target, spec), [found], [np.zeros(6, np.float32)])
        np.testing.assert_array_equal(back, rounded(values, wanted))
        np.testing.assert_array_equal(np.signbit(back[1:]), np.signbit(values[1:]))
