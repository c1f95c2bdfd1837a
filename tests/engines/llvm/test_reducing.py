"""Operators with reductions as machine code against the array kernels in float64, and what a row may hold."""

import math

import numpy as np
import pytest

from checks import interpret
from machine_code import alone
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import Rows, Work
from netbuilder.engines.llvm.reducing import reducing
from netbuilder.engines.llvm.reductions import reduced_code
from netbuilder.engines.programs import NotTraced
from netbuilder.engines.tracing import Tracer
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.operator import decode, spec_of
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")

CASES = {
    "rows": (make_op("LayerNorm", ["x"], ["y", "mean", "std"]), (5, 33), ()),
    "affine": (make_op("LayerNorm", ["x", "g", "b"], ["y", "mean", "std"], elementwise_affine=1), (40, 300), (300,)),
    "axis": (
        make_op("LayerNorm", ["x", "g", "b"], ["y", "mean", "std"], axis=-2, elementwise_affine=1, epsilon=0.1),
        (3, 2, 4, 6),
        (4, 6),
    ),
    "not affine": (make_op("LayerNorm", ["x", "g", "b"], ["y", "mean", "std"]), (5, 7), (7,)),
    "groups": (make_op("GroupNorm", ["x", "g", "b"], ["y", "mean", "rsig"], group=4), (3, 8, 5, 6), (8,)),
    "groups of vectors": (make_op("GroupNorm", ["x", "g", "b"], ["y", "mean", "rsig"], group=2), (3, 8), (8,)),
    "many images": (make_op("GroupNorm", ["x", "g", "b"], ["y", "mean", "rsig"], group=8), (9, 32, 12, 11), (32,)),
    "instances": (make_op("InstanceNorm", ["x", "g", "b"], ["y", "mean", "inv"], epsilon=0.1), (2, 3, 4, 5), (3,)),
    "images in NHWC": (
        make_op("GroupNorm", ["x", "g", "b"], ["y", "mean", "rsig"], group=2, order="NHWC"),
        (2, 5, 3, 34),
        (34,),
    ),
    "softmax": (make_op("Softmax", ["x"], ["y"], axis=-1), (2, 3, 37), ()),
    "root mean square": (make_op("RMSNorm", ["x", "g", "b"], ["y", "rrms"], axis=2), (2, 3, 50), (50,)),
    "volumes": (make_op("InstanceNorm", ["x", "g", "b"], ["y", "mean", "inv"]), (2, 3, 4, 5, 2), (3,)),
}


def run(op_def, values, threads):
    op = decode(find(op_def.type), op_def)
    found = bind(reducing, op, [values[n] for n in op_def.input], threads=threads)
    assert found is not None, f"{op_def.type} is not served"
    found.call()
    values.update(zip(op_def.output, found.outputs))


def compare(op_def, values, want, rtol=2e-4, atol=2e-5):
    for name in op_def.output:
        np.testing.assert_allclose(values[name].plain(), want[name], rtol, atol, err_msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_kernels_agree_with_arrays(case, threads):
    op_def, shape, features = CASES[case]
    rng = np.random.default_rng(0)
    arrays = {"x": 1 + 2 * rng.normal(size=shape), "g": rng.normal(size=features), "b": rng.normal(size=features)}
    arrays = {name: arrays[name].astype(np.float32) for name in op_def.input}
    want = interpret([op_def], {name: a.astype(np.float64) for name, a in arrays.items()})
    values = {name: Value.of(a) for name, a in arrays.items()}
    run(op_def, values, threads)
    compare(op_def, values, want)
    dy = rng.normal(size=shape).astype(np.float32)
    (gradient,), _ = operator_gradient(op_def, {0: "dy"})
    want = interpret([gradient], {**want, "dy": dy.astype(np.float64)})
    values["dy"] = Value.of(dy)
    run(gradient, values, threads)
    compare(gradient, values, want, 1e-3, 2e-4)


@pytest.mark.parametrize("outputs", [["y"], ["y", "mean"]])
def test_statistics_that_are_not_asked_for(outputs):
    op_def = make_op("InstanceNorm", ["x", "g", "b"], outputs)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(2, 3, 4, 4)), "g": rng.normal(size=3), "b": rng.normal(size=3)}
    values = {name: Value.of(a.astype(np.float32)) for name, a in arrays.items()}
    run(op_def, values, 1)
    compare(op_def, values, interpret([op_def], {name: v.plain().astype(np.float64) for name, v in values.items()}))


def code_of(function, *arrays):
    tracer = Tracer(is_gpu=False)
    symbols = function(tracer.xp, *(tracer.input(i, spec_of(array)) for i, array in enumerate(arrays)))
    return reduced_code(symbols), [np.full(symbol.shape, 7, symbol.dtype) for symbol in symbols]


def run_code(function, *arrays, threads=1):
    """Return what machine code computes for ``function(xp, *arrays)``, which returns a list of arrays."""
    code, outs = code_of(function, *arrays)
    work = Work(code, code.read, range(len(outs)), (), math.prod(code.extents), code.extents, code.units)
    Rows(alone(threads), [work]).bind(arrays, outs)()
    return outs


def softmax_and_more(axis):
    def function(xp, x):
        e = xp.exp(x - x.max(axis=axis, keepdims=True))
        return [e / e.sum(axis=axis, keepdims=True), x.mean(axis=axis), x.min(axis=axis) * 2]

    return function


AXES = [
    ((3, 197), 1), ((2, 16), 1), ((3, 1), 1), ((1, 40), 1), ((4, 7, 33), 1), ((4, 7, 100), 0), ((2, 3, 5, 7), (1, 3)),
    ((2, 3, 5, 70), (0, 2)), ((2, 3, 4, 5), (0, 2, 3)), ((1000,), 0), ((3, 1, 65), (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), AXES)
def test_any_axes(shape, axis):
    x = np.random.default_rng(0).normal(0, 4, shape).astype(np.float32)
    wide = x.astype(np.float64)
    if math.prod(shape) == math.prod(np.sum(x, axis).shape):  # nothing is reduced
        with pytest.raises(NotTraced, match="no reduction"):
            run_code(softmax_and_more(axis), x)
        return
    for threads in (1, 2):
        for y, exact in zip(run_code(softmax_and_more(axis), x, threads=threads), softmax_and_more(axis)(np, wide)):
            np.testing.assert_allclose(y, exact, 2e-6, 1e-7)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("shape", "axis"), [each for each in AXES if each[0] != (3, 1)])
def test_sums_of_integers(shape, axis, dtype):
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, shape, dtype)  # sums wrap around
    axes = axis if isinstance(axis, tuple) else (axis,)
    for threads in (1, 2):
        values = {"x": Value.of(x)}
        run(make_op("ReduceSum", ["x"], ["y"], axes=axes, keepdims=0), values, threads)
        y = values["y"].plain()
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, x.sum(axis=axis, dtype=dtype))


def test_long_sums_of_integers_and_means():
    x = np.random.default_rng(0).integers(-100, 1000, (3, 10_000)).astype(np.int32)
    total, mean = run_code(lambda xp, x: [x.sum(axis=1), x.mean(axis=1)], x)
    assert (total.dtype, mean.dtype) == (np.int64, np.float64)
    np.testing.assert_array_equal(total, x.sum(axis=1))
    np.testing.assert_allclose(mean, x.mean(axis=1), rtol=1e-14)


@pytest.mark.parametrize("axis", [0, 1])
def test_threads_compute_the_same(axis):
    x = np.random.default_rng(0).normal(size=(300, 5000)).astype(np.float32)
    one, two = (run_code(softmax_and_more(axis), x, threads=threads) for threads in (1, 2))
    for a, b in zip(one, two):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_that_are_not_finite_stay_in_their_rows(axis):
    x = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    rows = x if axis else x.T
    rows[3, 39], rows[5, 0], rows[7, 20], rows[9] = np.nan, np.inf, -np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        want = softmax_and_more(axis)(np, x.astype(np.float64))
    for y, exact in zip(run_code(softmax_and_more(axis), x), want):
        np.testing.assert_allclose(y, exact, 2e-6, 1e-7)


def test_long_sums_are_added_in_float64():
    x = np.full((2, 1 << 20), 0.1, np.float32)
    x[:, ::2] = 1000
    for axis, array in ((1, x), (0, x.T.copy())):
        (y,) = run_code(lambda xp, x, axis=axis: [x.sum(axis=axis)], array)
        np.testing.assert_array_equal(y, array.astype(np.float64).sum(axis=axis).astype(np.float32))


def test_softmax_may_overwrite_its_input_and_an_input_that_is_read_again_stays():
    x = np.random.default_rng(0).normal(size=(5, 50)).astype(np.float32)
    code, _ = code_of(lambda xp, x: softmax_and_more(1)(xp, x)[:1], x)
    assert code.inplace == ((0, 0),)
    want, y = run_code(softmax_and_more(1), x)[0], x.copy()
    work = Work(code, code.read, [0], (), x.size, code.extents, code.units)
    Rows(alone(), [work]).bind([y], [y])()
    np.testing.assert_array_equal(y, want)

    def again(xp, x):
        e = xp.exp(x)
        return [e / e.sum(axis=1, keepdims=True) + x]

    assert code_of(again, x)[0].inplace == ()
    np.testing.assert_allclose(run_code(again, x)[0], again(np, x.astype(np.float64))[0], 2e-6)
