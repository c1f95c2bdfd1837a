"""Machine code on values in oneDNN's layouts: nothing is copied to plain order, and padding stays zero."""

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines import onednn
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.elementwise import elementwise
from netbuilder.graph import Net
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.profiling import profile
from prepared import Value, bind

if not onednn.available() or not machine.available():
    pytest.skip("needs oneDNN and llvmlite", allow_module_level=True)

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.blocked_layout import channel_blocked, image_view, layout_of
from netbuilder.engines.onednn.channels_last import channels_last_desc

RNG = np.random.default_rng(11)
LAYOUTS = {
    "blocks of 8": lambda view: channel_blocked(view, c.F32, 8),
    "blocks of 16": lambda view: channel_blocked(view, c.F32, 16),
    "channels last": lambda view: layout_of(channels_last_desc(view, c.F32).handle, view),
}
SHAPES = [(2, 16, 5, 7), (1, 20, 3, 3), (3, 3, 4, 5), (2, 1, 3, 3), (1, 40, 1, 1), (2, 48, 9)]


def random(*shape):
    x = np.asarray(RNG.standard_normal(shape) * 3).astype(np.float32)
    if x.size > 40:
        x.flat[RNG.permutation(x.size)[:4]] = np.nan, np.inf, -np.inf, 1e-40
    return x


def in_layout(x, make):
    """Return a value in a layout, plain where the layout is plain order for this shape."""
    layout = make(image_view(x.shape))
    value = Value.of(x)
    return value if layout is None else value.to(value.spec.with_layout(layout))


def check(op_def, arrays, make, in_order=(0,)):
    """Run an operator with some inputs in a layout; no input may be copied, and the output comes in the layout."""
    values = [in_layout(x, make) if i in in_order else Value.of(x) for i, x in enumerate(arrays)]
    bound = bind(elementwise, decode(find(op_def.type), op_def), values)
    assert bound.reorders == 0
    bound.call()
    (made,) = bound.outputs
    with np.errstate(all="ignore"):
        want = interpret([op_def], dict(zip(op_def.input, arrays)))[op_def.output[0]]
    assert made.spec.layout is values[0].spec.layout
    np.testing.assert_allclose(made.plain(), want, rtol=2e-6, atol=1e-6)
    if made.spec.layout is not None:
        real = Value.of(np.ones_like(want)).to(made.spec).buffer.view(np.float32) == 1
        assert not made.buffer.view(np.float32)[~real].any()


GRADIENTS = [
    ("MulGradient", lambda x, n, c: [x, x, (n, c, 1, 1)]),
    ("MulGradient", lambda x, n, c: [x, x, (c, 1, 1)]),
    ("DivGradient", lambda x, n, c: [x, x, (n, c, 1, 1), x]),
    ("PReluGradient", lambda x, n, c: [x, x, x, (c,)]),
]


@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_that_sum_over_images(layout, channels):
    for op_type, shapes in GRADIENTS:
        arrays = [
            (1 + np.abs(RNG.standard_normal(shape))).astype(np.float32)
            for shape in shapes((3, channels, 5, 7), 3, channels)
        ]
        arguments = {} if op_type == "PReluGradient" else {"broadcast": 1}
        op_def = make_op(op_type, [f"x{i}" for i in range(len(arrays))], ["a", "b"], **arguments)
        values = [
            in_layout(x, LAYOUTS[layout]) if x.shape[1:2] == (channels,) and x.size > 60 else Value.of(x)
            for x in arrays
        ]
        bound = bind(elementwise, decode(find(op_type), op_def), values)
        padded = layout != "channels last" and channels == 20
        assert (bound.reorders == 0) == (not padded)
        bound.call()
        want = interpret([op_def], {f"x{i}": x.astype(np.float64) for i, x in enumerate(arrays)})
        for made, name in zip(bound.outputs, "ab"):
            np.testing.assert_allclose(made.plain(), want[name], rtol=2e-5)
        assert padded or bound.outputs[0].spec.layout is values[0].spec.layout


UNARY = [
    ("Swish", {}),
    ("Clip", {"min": 0.0, "max": 6.0}),
    ("Clip", {"min": 0.5, "max": 6.0}),  # not 0 at 0
    ("HardSigmoid", {}),
    ("Exp", {}),
    ("Softplus", {}),
    ("Pow", {"exponent": 3.0}),
    ("Reciprocal", {}),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_functions_of_one_value(shape, layout):
    for op_type, arguments in UNARY:
        check(make_op(op_type, ["x"], ["y"], **arguments), [random(*shape)], LAYOUTS[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_that_are_broadcast(shape, layout):
    n, channels, *image = shape
    ones = [1] * len(image)
    make = LAYOUTS[layout]
    x = random(*shape)
    for other in ((channels, *ones), (n, channels, *ones), (n, 1, *ones), (1, 1, *image), (1,), ()):
        if np.broadcast_shapes(other, shape) == shape:
            for op_type in ("Mul", "Add", "Div"):
                check(make_op(op_type, ["x", "s"], ["y"], broadcast=1), [x, random(*other)], make)
    if channels > 1:  # one channel is broadcast along the block
        check(make_op("Mul", ["x", "s"], ["y"], broadcast=1), [x, random(n, channels, *ones)], make, in_order=(0, 1))
    check(make_op("Add", ["x", "s"], ["y"]), [x, random(*shape)], make, in_order=(0, 1))
    check(make_op("PRelu", ["x", "s"], ["y"]), [x, random(channels)], make)


def steps_of(build, channels):
    """Return the kinds of a prediction's steps from the first convolution on, and compare its result with NumPy's."""
    net = Net("prediction")
    arrays = {"x": random_images(2, channels, 9, 9)}

    def parameter(name, *shape):
        arrays[name] = np.asarray(RNG.standard_normal(shape) / 4).astype(np.float32)
        return name

    def conv(x, y, outputs=channels, inputs=channels):
        w, b = parameter(f"{y}_w", outputs, inputs, 1, 1), parameter(f"{y}_b", outputs)
        return net.Conv([x, w, b], y, kernel=1)

    conv("x", "c")
    build(net, conv, parameter)
    conv("a", "y")
    workspace = Workspace()
    for name, array in arrays.items():
        workspace.feed(name, array)
    name = workspace.create_net(net, observable="outputs", constants=[blob for blob in arrays if blob != "x"])
    found = profile(workspace, name, runs=1, limits={})
    want = interpret(net.Proto().op, {key: array.astype(np.float64) for key, array in arrays.items()})["y"]
    np.testing.assert_allclose(workspace.fetch("y"), want, atol=2e-4)
    kinds = [call.kind for call in found.calls]
    return kinds[kinds.index("Conv") :] if "Conv" in kinds else kinds


def random_images(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def gelu_in_parts(net, conv, parameter):
    parameter("one", 1), parameter("half", 1)
    net.Scale("c", "scaled", scale=0.5**0.5)
    net.Erf("scaled", "e")
    net.Add(["e", "one"], "sum", broadcast=1)
    net.Mul(["c", "half"], "halved", broadcast=1)
    net.Mul(["halved", "sum"], "a")


def squeeze_and_excitation(net, conv, parameter):
    channels = 20
    net.ReduceMean("c", "pooled", axes=[2, 3], keepdims=1)
    conv("pooled", "few", 8, channels)
    net.Swish("few", "active")
    conv("active", "many", channels, 8)
    net.Sigmoid("many", "gate")
    net.Mul(["c", "gate"], "a", broadcast=1)


CHAINS = {
    "one": (lambda net, conv, parameter: net.HardSigmoid("c", "a"), ["Conv", "HardSigmoid", "Conv"]),
    "prelu": (lambda net, conv, parameter: net.PRelu(["c", parameter("s", 20)], "a"), ["Conv", "PRelu", "Conv"]),
    "gelu in parts": (gelu_in_parts, ["Conv", "Scale+Erf+Add+Mul x2", "Conv"]),
    "squeeze and excitation": (
        squeeze_and_excitation, ["Conv", "ReduceMean", "Conv", "Swish", "Conv", "Sigmoid", "Mul", "Conv"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_no_copy_stands_around_elementwise_operators(chain):
    build, kinds = CHAINS[chain]
    assert steps_of(build, 20) == kinds
