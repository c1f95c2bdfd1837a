"""Traced elementwise operators as CUDA kernels: types, broadcasting, large and odd sizes, chains, random numbers."""

from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.engines.cuda.code import BFLOAT16, Places
from netbuilder.engines.cuda.elementwise import BoundProgram, elementwise
from netbuilder.engines.gpu import gpu
from netbuilder.engines.programs import NotTraced
from netbuilder.engines.random import uniform
from netbuilder.engines.tracing import Tracer
from netbuilder.ops.core.extensions import Capturable
from netbuilder.ops.core.operator import TensorSpec, decode, spec_of
from netbuilder.ops.core.registry import find
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from on_gpu import bound, launched, run_net
from switches import single

RNG = np.random.default_rng(7)
FLOATS = ("float32", "float16", "float64")


def context(op_type="Relu", position=(11, 3)):
    run = SimpleNamespace(position=lambda shape, per_sample=False: position)
    return SimpleNamespace(op_def=OperatorDef(type=op_type), run=run)


def prepared(op_type, inputs, **arguments):
    names = [f"x{i}" for i in range(len(inputs))]
    outputs = ["y", "mask"] if op_type == "Dropout" else ["y"]
    op = decode(find(op_type), make_op(op_type, names, outputs, **arguments))
    return elementwise(op, context(op_type), *map(spec_of, inputs))


def computed(op_type, *inputs, **arguments):
    made = prepared(op_type, inputs, **arguments)
    outs = [np.empty(spec.shape, spec.dtype) for spec in made.outputs]
    return bound(made, inputs, outs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (1023,), (1025,), (2, 3, 4, 5), ()])
def test_relu_of_any_size(shape, dtype):
    x = np.asarray(RNG.standard_normal(shape)).astype(dtype)
    (y,) = computed("Relu", x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
def test_denormal_numbers(dtype):
    """Those of float32 are 0, as inputs and as results; float16 is computed in float32, where its own are normal."""
    small = np.finfo(dtype).tiny
    x, half, one = np.array([small / 4, small], dtype), np.array(0.5, dtype), np.array(1, dtype)
    kept = np.array([0, small], dtype) if dtype == "float32" else x
    with launched() as titles:
        for op_type, other, want in (("Mul", one, kept), ("Mul", half, kept / 2), ("Sub", x[::-1], kept - kept[::-1])):
            (y,) = computed(op_type, x, other)
            np.testing.assert_array_equal(y, want * (np.abs(want) >= small) if dtype == "float32" else want)
    assert len(titles) == 3


@pytest.mark.gpu
def test_an_empty_value_launches_nothing():
    with launched() as launches:
        made = prepared("Relu", [np.empty((0, 3), np.float32)])
        bound(made, [np.empty((0, 3), np.float32)], [np.empty((0, 3), np.float32)])
    assert not launches


def test_the_gradient_of_a_float64_loss_is_filled_by_a_kernel():
    """A float of Python is cast to float64; NumPy says that no element type equals that."""
    assert prepared("ConstantFill", [np.float64(3)], value=1.0).outputs[0].dtype == np.float64


def test_sizes_beyond_32_bits_have_indices_of_64():
    wide = prepared("Relu", [np.broadcast_to(np.float32(1), (1 << 31,))])
    near = prepared("Relu", [np.broadcast_to(np.float32(1), ((1 << 31) - 1024,))])
    small = prepared("Relu", [np.float32([1])])
    assert wide.name == near.name != small.name


@pytest.mark.one_in(3)
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint8", "int8"])
@pytest.mark.parametrize(
    "b_shape, arguments",
    [((2, 3, 4, 5), {}), ((5,), {}), ((4, 1), {}), ((3, 1, 1), {}), ((2, 1, 4, 1), {}), ((1,), {}),
     ((3,), {"broadcast": 1, "axis": 1}), ((3, 4), {"broadcast": 1, "axis": 1}), ((), {"broadcast": 1})],
)  # fmt: skip
def test_broadcasting(b_shape, arguments, dtype):
    a, b = (np.asarray(RNG.integers(-9, 9, shape)).astype(dtype) for shape in ((2, 3, 4, 5), b_shape))
    aligned = b.reshape(b_shape + (1,) * (4 - 1 - len(b_shape))) if arguments.get("axis") else b
    for op_type, function in (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)):
        (y,) = computed(op_type, a, b, **arguments)
        np.testing.assert_array_equal(y, function(a, aligned), err_msg=op_type)


def test_where_a_load_finds_its_elements():
    tracer = Tracer()
    x = tracer.input(0, TensorSpec((6, 1, 5), np.dtype("float32")))
    y = tracer.input(1, TensorSpec((6, 7, 5), np.dtype("float32")))
    program = tracer.program([x + y])
    places = Places(program)
    own, whole = program.loads()
    assert places.identity(whole) and not places.identity(own)
    index = places[own]
    extents = {f"d{k}": extent for k, extent in enumerate(places.extents)}
    found = [eval(index.replace("/", "//"), {"i": i, **extents}) for i in range(6 * 7 * 5)]
    np.testing.assert_array_equal(found, np.broadcast_to(np.arange(30).reshape(6, 1, 5), (6, 7, 5)).reshape(-1))


@pytest.mark.one_in(3)
@pytest.mark.gpu
@pytest.mark.parametrize("source", [*FLOATS, "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("target", [*FLOATS, "int32", "int64", "uint8", "bool"])
def test_casts(source, target):
    x = np.asarray([0, 1, 2.5, 100.25, 3, 7, 65, 0.1]).astype(source)
    (y,) = computed("Cast", x, to={"float32": "float", "float64": "double"}.get(target, target))
    np.testing.assert_array_equal(y, x.astype(target))


@pytest.mark.gpu
def test_float16_rounds_to_even_and_overflows():
    x = np.float32([2049, 2051, 65519, 65520, -1e9, 5.9604645e-08, 1e-8, np.inf, -0.0, 1 / 3])
    (y,) = computed("Cast", x, to="float16")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, x.astype(np.float16))
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    (wide,) = computed("Cast", every, to="float")
    np.testing.assert_array_equal(wide, every.astype(np.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("op_type", ["ReluGradient", "SigmoidGradient", "TanhGradient", "LeakyReluGradient"])
def test_gradients_in_place(op_type):
    y, dy = RNG.random((40, 31), np.float32) - 0.2, RNG.standard_normal((40, 31)).astype(np.float32)
    made = prepared(op_type, [y, dy])
    assert (1, 0) in made.inplace and made.get(Capturable)
    wide = {
        "ReluGradient": lambda y, dy: np.where(y > 0, dy, 0),
        "SigmoidGradient": lambda y, dy: dy * y * (1 - y),
        "TanhGradient": lambda y, dy: dy * (1 - y * y),
        "LeakyReluGradient": lambda y, dy: np.where(y >= 0, dy, 0.01 * dy),
    }[op_type](y.astype(float), dy.astype(float))
    (dx,) = computed(op_type, y, dy)
    np.testing.assert_allclose(dx, wide, rtol=1e-6, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_sums_of_many(count, dtype):
    xs = [RNG.standard_normal((9, 11)).astype(dtype) for _ in range(count)]
    (y,) = computed("Sum", *xs)
    total = xs[0].astype(np.float32 if dtype == "float16" else dtype)
    for x in xs[1:]:
        total = total + x
    np.testing.assert_array_equal(y, total.astype(dtype))  # float16 is rounded once


FUNCTIONS = {
    "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Abs": np.abs,
    "Tanh": np.tanh, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Negative": np.negative, "Sqr": np.square,
    "Reciprocal": np.reciprocal, "Sign": np.sign, "Floor": np.floor, "Ceil": np.ceil, "Cbrt": np.cbrt,
    "Log1p": np.log1p, "Softsign": lambda x: x / (1 + abs(x)), "Acos": np.arccos, "Asin": np.arcsin, "Atan": np.arctan,
    "Sinh": np.sinh, "Cosh": np.cosh, "Cube": lambda x: x**3, "Rsqrt": lambda x: x**-0.5,
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.gpu
@pytest.mark.parametrize("op_type", sorted(FUNCTIONS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions(op_type, dtype):
    low = 0.05 if op_type in ("Log", "Sqrt", "Rsqrt", "Reciprocal") else -0.95
    x = np.linspace(low, 0.95, 777).astype(dtype)
    (y,) = computed(op_type, x)
    assert y.dtype == dtype
    tolerance = 3e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(y, FUNCTIONS[op_type](x.astype(np.float64)), rtol=tolerance, atol=tolerance / 10)


@pytest.mark.gpu
def test_numbers_that_are_not_finite():
    x = np.float32([np.nan, np.inf, -np.inf, 0, -1])
    (y,) = computed("Relu", x)
    np.testing.assert_array_equal(y, [np.nan, np.inf, 0, 0, 0])
    (y,) = computed("IsNaN", x)
    np.testing.assert_array_equal(y, [1, 0, 0, 0, 0])
    (y,) = computed("Max", x, np.float32([0, np.nan, 1, np.inf, -2]))
    np.testing.assert_array_equal(y, [np.nan, np.nan, 1, np.inf, -1])


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [0, 1])
def test_dropout_draws_what_the_cpu_draws(axis):
    x = RNG.standard_normal((6, 5, 7)).astype(np.float32)
    y, mask = computed("Dropout", x, ratio=0.3, **({"sample_axis": axis} if axis else {}))
    drawn = uniform(np, 11, (6, 5, 7) if not axis else (5, 6, 7), start=3)
    kept = (drawn if not axis else drawn.transpose(1, 0, 2)) >= 0.3
    np.testing.assert_array_equal(mask, kept)
    np.testing.assert_array_equal(y, x * (kept * np.float32(1 / (1 - 0.3))))
    assert prepared("Dropout", [x], ratio=0.3).get(Capturable)  # the key of a run is in the GPU's memory


CHAIN = [
    make_op("Scale", ["x"], ["a"], scale=1.7),
    make_op("Add", ["a", "b"], ["a"], broadcast=1),
    make_op("Tanh", ["a"], ["c"]),
    make_op("Mul", ["c", "x"], ["d"]),
    make_op("Cast", ["d"], ["h"], to="float16"),
    make_op("Sum", ["h", "h", "h"], ["s"]),
]


def feeds():
    return {"x": RNG.standard_normal((33, 7)).astype(np.float32), "b": np.arange(7, dtype=np.float32)}


@pytest.mark.gpu
def test_a_chain_is_one_kernel_and_changes_no_bit():
    given = feeds()
    names = list("acdhs")
    with launched() as launches:
        together = run_net(CHAIN, given, names)
    assert len(launches) == 1
    apart = run_net(CHAIN, given, names, without=single("elementwise_chains"))
    for name in names:
        np.testing.assert_array_equal(together[name], apart[name], err_msg=name)


@pytest.mark.gpu
def test_a_chain_ends_where_another_operator_reads_it():
    ops = [
        make_op("Scale", ["x"], ["a"], scale=2.0),
        make_op("Softmax", ["a"], ["p"]),
        make_op("Add", ["a", "p"], ["a"]),
        make_op("Relu", ["a"], ["y"]),
        make_op("Copy", ["x"], ["z"]),
        make_op("Negative", ["y"], ["x"]),
    ]
    given = feeds()
    found = run_net(ops, given, "apyzx")
    wanted = run_net(ops, given, "apyzx", gpu=False)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


def test_what_is_not_elementwise_is_not_traced():
    tracer = Tracer()
    x = tracer.input(0, TensorSpec((2, 3), np.dtype("float32")))
    for attempt in (
        lambda: x.argmax(), lambda: tracer.program([x.sum(axis=0)]),
            lambda: x[0], lambda: bool(x > 0), lambda: np.asarray(x), lambda: np.add.reduce(x),
        lambda: tracer.xp.sort(x), lambda: tracer.program([x, x.reshape(6)]), lambda: tracer.workspace_of,
        lambda: tracer.program([(x + tracer.input(1, TensorSpec((3,), x.dtype))).reshape(6)]), lambda: x.reshape(7),
        lambda: tracer.host(x), lambda: tracer.derived(int, x), lambda: tracer.uniform((2, 3)),
    ):  # fmt: skip
        with pytest.raises(NotTraced):
            attempt()
    assert prepared("Softmax", [np.ones((2, 3), np.float32)]) is None


@pytest.mark.gpu
def test_bfloat16_in_memory():
    """A program may store its values as bfloat16, as layouts that round do."""
    values = np.float32([1, 1.0039062, 1.0117188, -3.14159, 3.4e38, np.inf, np.nan, 1e-30, 65504])
    tracer = Tracer()
    spec = TensorSpec(values.shape, np.dtype("float32"))
    narrow = BoundProgram("narrow", tracer.program([tracer.input(0, spec).copy()]), [spec.dtype], [BFLOAT16])
    wide = BoundProgram("wide", tracer.program([tracer.input(0, spec) * 2]), [BFLOAT16], [spec.dtype])
    assert narrow.kernel.name != wide.kernel.name
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)
    rounded[6] = np.nan
    with gpu(0) as here:
        stored, doubled = here.xp.empty(9, "uint16"), here.xp.empty(9, "float32")
        narrow.bind([here.xp.asarray(values)], [stored])()
        wide.bind([stored], [doubled])()
        got = (stored.get().astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(got, rounded)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(doubled.get(), rounded * 2)
