"""Machine code of elementwise operators against their plain kernels: types, sizes, broadcasting, in place, threads."""

import platform
from itertools import product

import numpy as np
import pytest

from machine_code import alone, run_traced, traced
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.elementwise import elementwise, with_reductions
from netbuilder.engines.llvm.functions import FUNCTIONS
from netbuilder.engines.traced import ELEMENTWISE
from netbuilder.ops.activations.activations import logistic
from netbuilder.ops.core.operator import decode, spec_of
from netbuilder.ops.core.registry import CPU, find, plain_kernel
from netbuilder.ops.math.error_function import erf
from netbuilder.proto import NetError
from netbuilder.proto.arguments import make_op
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")

RNG = np.random.default_rng(3)
TYPES = ("float32", "float16", "int64", "bool")
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, 20.0, -20.0)


def values(shape, dtype):
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        return RNG.integers(0 if dtype[0] == "u" else -9, 100, shape).astype(dtype)
    found = np.asarray(RNG.standard_normal(shape))
    with np.errstate(all="ignore"):
        if found.size > 2 * len(SPECIAL):
            found.flat[: len(SPECIAL)] = RNG.permutation(SPECIAL)
        return found.astype(dtype)


def prepared(op_type, arrays, outputs=1, **arguments):
    """Return the operator and its kernel; None if it takes no such inputs, or has no machine code for them."""
    op_def = make_op(op_type, [f"x{i}" for i in range(len(arrays))], [f"y{i}" for i in range(outputs)], **arguments)
    try:
        op = decode(find(op_type), op_def)
        with np.errstate(all="ignore"):
            made = elementwise(op, alone(op_def=op_def), *map(spec_of, arrays))
    except NetError:
        return op_def, None
    return op, made


def check(op, made, arrays):
    """Compare a kernel with the plain one, with outputs of their own and in place."""
    ctx = alone(op_def=make_op(op.type, [], []))
    with np.errstate(all="ignore"):
        want = plain_kernel(op.type, CPU)(op, ctx.run, *(array.copy() for array in arrays))
    for pair in (None, *made.inplace):
        inputs = [array.copy() for array in arrays]
        outs = [np.full(spec.shape, 1).astype(spec.dtype) for spec in made.outputs]
        if pair is not None:
            outs[pair[1]] = inputs[pair[0]].view(outs[pair[1]].dtype).reshape(outs[pair[1]].shape)
        made.bind(inputs, outs, None)()
        for got, exact in zip(outs, want):
            with np.errstate(all="ignore"):
                exact = np.asarray(exact).astype(got.dtype)
            assert got.shape == exact.shape
            if uses_functions(op, arrays):
                tolerance = 2e-3 if got.dtype == np.float16 else 2e-5
                np.testing.assert_allclose(got, exact, rtol=tolerance, atol=tolerance / 10, err_msg=op.type)
            else:
                np.testing.assert_array_equal(got, exact, err_msg=f"{op.type} {pair}")


def uses_functions(op, arrays):
    """Whether the formula has exponentials and the like, which agree up to rounding only."""

    def run(xp, *symbols):
        ctx = alone().run
        ctx.xp = xp
        return list(plain_kernel(op.type, CPU)(op, ctx, *symbols))

    return any(step.function in FUNCTIONS for step in traced(run, *arrays).steps())


OTHERS = {"Dropout", "LearningRate", "ConstantFill"}  # tested elsewhere: they draw, or read numbers of the host


@pytest.mark.one_in(6)
@pytest.mark.parametrize("op_type", sorted(ELEMENTWISE - OTHERS))
def test_each_operator_is_its_plain_kernel(op_type):
    for dtype, count, outputs in product(TYPES, (1, 2, 3), (1, 2)):
        arrays = [values((3, 37), dtype) for _ in range(count)]
        op, made = prepared(op_type, arrays, outputs)
        if made is not None:
            check(op, made, arrays)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="NumPy's results depend on the CPU")
@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16", "int32", "int64"])
def test_floats_as_integers(source, target):
    x = [0.5, -0.5, 1.99, -1.99, 127, 128, 255, 256, -129, 40000, 2.0**31, -(2.0**31), 5e9, 2.0**63, -(2.0**63)]
    with np.errstate(all="ignore"):
        x = np.array([*x, np.nan, np.inf, -np.inf, 1e300, -0.0]).astype(source)
        (got,) = run_traced(lambda xp, x: [x.astype(target)], x)
        np.testing.assert_array_equal(got, x.astype(target))


def test_most_operators_have_machine_code():
    """Those without take sines, or need other inputs than are tried here."""
    served = {
        op_type
        for op_type, count in product(ELEMENTWISE - OTHERS, (1, 2, 3))
        if prepared(op_type, [values((3, 37), "float32")] * count)[1] is not None
    }
    assert {"Clip", "Elu", "EluGradient", "Erf", "Gelu", "GeluGradient", "HardSigmoid", "LeakyReluGradient", "Mish",
            "Pow", "Selu", "Softplus", "Swish", "SwishGradient", "Sum", "Mul"} <= served  # fmt: skip
    assert len(served) > 80


@pytest.mark.parametrize("dtype", ["float64", "int32", "float16"])
@pytest.mark.parametrize("shape", [(), (1,), (15,), (16,), (17,), (1000,), (2, 3, 4, 5), (0, 3)], ids=str)
def test_any_size(shape, dtype):
    arrays = [values(shape, dtype) for _ in range(2)]
    op, made = prepared("Add", arrays)
    if 0 in shape:
        assert made is None
    else:
        check(op, made, arrays)


BROADCAST = [
    ((2, 3, 4, 5), {}), ((5,), {}), ((4, 1), {}), ((3, 1, 1), {}), ((2, 1, 4, 1), {}), ((1, 3, 1, 5), {}), ((1,), {}),
    ((3,), {"broadcast": 1, "axis": 1}), ((3, 4), {"broadcast": 1, "axis": 1}), ((), {"broadcast": 1}),
]  # fmt: skip


@pytest.mark.parametrize("b_shape, arguments", BROADCAST, ids=str)
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "LT", "EQ"])
def test_broadcasting(op_type, b_shape, arguments):
    for dtype in ("float32", "uint8"):
        arrays = [values((2, 3, 4, 5), dtype), values(b_shape, dtype)]
        op, made = prepared(op_type, arrays, **arguments)
        assert made is not None or (op_type == "Div" and dtype == "uint8")
        if made is not None:
            check(op, made, arrays)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(5))
def test_random_broadcasting(seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        shape = tuple(rng.integers(1, 7, rng.integers(1, 6)))
        shapes = [tuple(np.where(rng.random(len(shape)) < 0.5, shape, 1)) for _ in range(2)]
        x, y, z = (rng.standard_normal(each).astype(np.float32) for each in (shape, *shapes))
        for threads in (1, 3):
            (got,) = run_traced(lambda xp, x, y, z: [x * y - z], x, y, z, threads=threads)
            np.testing.assert_array_equal(got, x * y - z)


@pytest.mark.parametrize("shape, other", [((1 << 19,), ()), ((100, 3001), (100, 1)), ((7, 50_000), (50_000,))])
def test_several_threads(shape, other):
    x, y = RNG.standard_normal(shape).astype(np.float32), np.asarray(RNG.standard_normal(other)).astype(np.float32)
    for threads in (2, 3, 5):
        (got,) = run_traced(lambda xp, x, y: [x * y + x], x, y, threads=threads)
        np.testing.assert_array_equal(got, x * y + x)


def test_sigmoid_and_error_function():
    x = np.concatenate([np.linspace(-100, 100, 50_001), np.geomspace(1e-44, 1e38, 5_000)]).astype(np.float32)
    exact = x.astype(np.float64)
    for function, want in (
        (logistic, 1 / (1 + np.exp(-exact))),
        (erf, erf(np, exact)),
    ):
        (got,) = run_traced(lambda xp, x, function=function: [function(xp, x)], x)
        unit = np.maximum(np.spacing(np.abs(want.astype(np.float32))).astype(np.float64), 2.0**-149)
        assert np.max(np.abs(got - want) / unit) <= 4


def test_what_has_no_code_has_no_kernel():
    x = values((3, 5), "float32")
    wide = x.astype(np.float64)
    for op_type, array, arguments in (("Asin", x, {}), ("Sin", wide, {}), ("Pow", wide, {"exponent": 1.7})):
        assert prepared(op_type, [array], **arguments)[1] is None


def test_a_mean_over_one_element_and_outputs_of_other_axes():
    """Reductions over one element are none, and outputs may have more axes of extent 1 than others."""
    x, t = values((6, 1), "float32"), values((6, 1), "float32")
    cases = [
        ("SigmoidCrossEntropyWithLogits", [x, t], 1, {}),
        ("AddGradient", [x.reshape(1, 2, 3), x.reshape(1, 2, 3), t.reshape(2, 3)], 2, {}),
    ]
    for op_type, arrays, outputs, arguments in cases:
        names = [f"x{i}" for i in range(len(arrays))]
        op_def = make_op(op_type, names, [f"y{j}" for j in range(outputs)], **arguments)
        op = decode(find(op_type), op_def)
        found = bind(with_reductions, op, [Value.of(each) for each in arrays])
        found.call()
        expected = plain_kernel(op_type, CPU)(op, alone().run, *(each.astype(np.float64) for each in arrays))
        for value, wanted in zip(found.outputs, expected, strict=True):
            assert value.plain().shape == wanted.shape
            np.testing.assert_allclose(value.plain(), wanted, rtol=1e-5, atol=1e-6)
