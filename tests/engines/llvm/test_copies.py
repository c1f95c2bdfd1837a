"""Copies as machine code against NumPy's, for any strides and sizes, and the operators that copy."""

import itertools

import numpy as np
import pytest

from checks import run_plain
from machine_code import alone
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.copies import COPIES, _job, copying
from netbuilder.ops.arrange.concat import Concat, Split
from netbuilder.ops.arrange.copy import Copy
from netbuilder.ops.arrange.flatten import Flatten
from netbuilder.ops.arrange.pad import Pad
from netbuilder.ops.arrange.shape import ExpandDims, Reshape, Squeeze, Transpose
from netbuilder.ops.arrange.slice import Slice, SliceGradient
from netbuilder.ops.arrange.tile import Tile
from netbuilder.ops.core.operator import spec_of
from netbuilder.ops.fills.fill import ConstantFill
from netbuilder.ops.images.pad_image import PadImage
from netbuilder.proto import TensorProto
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")


def numbers(shape, dtype=np.float32):
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


def check(source, threads=1, kind=None):
    target = np.full(source.shape, 77, source.dtype)
    copying(alone(threads), [(source, target)])()
    np.testing.assert_array_equal(target, source)
    if kind is not None:
        assert _job(source, target)[0].how == kind


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.uint8, np.bool_])
@pytest.mark.parametrize("shape", [(2, 5, 1, 7), (17, 3, 2, 33)])
def test_permutations(shape, dtype):
    x = numbers(shape, dtype)
    for order in itertools.permutations(range(4)):
        check(x.transpose(order))


@pytest.mark.parametrize(("n", "m"), [(16, 16), (15, 16), (16, 31), (33, 50), (4, 100), (100, 4), (1, 5), (3, 3)])
def test_squares_and_what_is_left_at_their_ends(n, m):
    check(numbers((3, n, m)).swapaxes(1, 2), kind="squares" if min(n, m) > 3 else None)


def test_parts_repetitions_and_strides():
    x = numbers((5, 40, 300))
    check(x[:, 3:30, 5:17], kind="together")
    check(x[:, 3:30], kind="together")
    check(x[::2, ::-1, ::3], kind="single")
    check(np.broadcast_to(x[:, :, :1], (5, 40, 37)), kind="repeated")
    check(np.broadcast_to(x[:1, :, None], (5, 40, 3, 300)))
    check(x[:0])
    check(numbers(()))


def test_threads_copy_all():
    check(numbers((7, 300, 200)).swapaxes(0, 2), threads=3)
    check(numbers((1, 2, 300_000)).swapaxes(0, 1), threads=3)


def run(op, *arrays):
    found = bind(COPIES[op.type], op, [Value.of(array) for array in arrays])
    assert found is not None
    found.call()
    return [value.plain() for value in found.outputs]


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        *((Concat(axis=axis).with_arity(2, 2), [(2, 3, 4)] * 2) for axis in (0, 1, -1)),
        (Concat(axis=1).with_arity(3, 2), [(2, 3), (2, 0), (2, 1)]),
        *((Concat(axis=axis, add_axis=True).with_arity(2, 2), [(2, 3)] * 2) for axis in (0, 1, 2)),
        *((Split(axis=axis, split=(1, 0, 3)).with_arity(1, 3), [(4, 4)]) for axis in (0, 1)),
        (Split(axis=0, add_axis=True).with_arity(1, 3), [(3,)]),
        (Transpose(axes=(2, 0, 1)), [(3, 4, 5)]),
        (Slice(starts=(1, 0), ends=(3, -2)), [(4, 5, 6)]),
        (Slice(starts=(2,), ends=(2,)), [(4, 5)]),
        (SliceGradient(starts=(1, 0), ends=(3, -2)).with_arity(2, 1), [(4, 5, 6), (2, 4, 6)]),
        (SliceGradient(starts=(0, 5), ends=(4, 5)).with_arity(2, 1), [(4, 5), (4, 0)]),
        (Tile(tiles=3, axis=1), [(2, 3, 4)]),
        (Reshape(shape=(0, -1)).with_arity(1, 2), [(2, 3, 4)]),
        (Reshape(shape=(3, 0)).with_arity(1, 2), [(3, 0)]),
        (ExpandDims(dims=(0, 2)), [(3, 4)]),
        (Squeeze(dims=(0, 2)), [(1, 3, 1)]),
        (Flatten(axis=2), [(2, 3, 4)]),
        (Copy().with_arity(1, 1), [(5, 7)]),
        (ConstantFill(value=7, dtype=TensorProto.INT32).with_arity(1, 1), [(2, 3)]),
    ],
    ids=str,
)
def test_operators(op, shapes, dtype):
    arrays = [numbers(shape, dtype) for shape in shapes]
    for got, want in zip(run(op, *arrays), run_plain(op, arrays)):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


def test_a_reshape_in_place_copies_nothing_and_a_copy_keeps_its_input():
    x = numbers((3, 4))
    made = COPIES["Reshape"](Reshape(shape=(4, 3)).with_arity(1, 1), alone(), spec_of(x))
    assert made.inplace == ((0, 0),)
    x.flags.writeable = False
    made.bind([x], [x.reshape(4, 3)], None)()
    assert bind(COPIES["Copy"], Copy().with_arity(1, 1), [Value.of(x)]).prepared.inplace == ()


def test_what_nobody_reads_is_not_written():
    plan = alone()
    plan.demands = {1: "never"}
    made = COPIES["Reshape"](Reshape(shape=(-1,)).with_arity(1, 2), plan, spec_of(numbers((2, 3))))
    assert made.outputs[1] is None


def test_inputs_of_another_type_are_converted_by_others():
    specs = [spec_of(numbers((4,), dtype)) for dtype in (np.int64, np.int32)]
    assert COPIES["Concat"](Concat(axis=0).with_arity(2, 1), alone(), *specs) is None


PADS = [
    ((0, 0, 2, 1, 0, 0, 1, 3), "constant"),
    ((0, 0, 2, 1, 0, 0, 1, 3), "reflect"),
    ((1, 0, 2, 1, 0, 2, 0, 3), "edge"),
    ((0, 7, 9, 0, 3, 0, 11, 4), "wrap"),
    ((0, 0, -1, 1, 0, 0, 1, -2), "reflect"),
    ((0, 0, -1, -1, 0, 0, -1, -2), "constant"),
    ((0, 0, 0, 0, 0, 0, 0, 0), "edge"),
]


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
@pytest.mark.parametrize(("pads", "mode"), PADS)
def test_borders(pads, mode, dtype):
    x, op = numbers((2, 3, 5, 6), dtype), Pad(pads=pads, mode=mode, value=3)
    np.testing.assert_array_equal(run(op, x)[0], run_plain(op, [x])[0])


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("pads", [(1, 2, 3, 4), (2, -1, 0, 1), (0, 0, 0, 0)])
def test_borders_of_images(pads, mode, order):
    x, op = numbers((2, 6, 5, 7)), PadImage(pads=pads, mode=mode, value=0.5, order=order)
    np.testing.assert_array_equal(run(op, x)[0], run_plain(op, [x])[0])
