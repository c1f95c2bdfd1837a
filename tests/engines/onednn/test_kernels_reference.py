"""Every kernel, forward and backward, against the array kernels in float64, on plain and on blocked values."""

import numpy as np
import pytest

from checks import interpret
from kernel_cases import ACTIVATIONS, CONVOLUTIONS, POOLS, TRANSPOSED, normalization, random
from kernel_checks import B8, B16, PLAIN, close, has_instructions, padding_is_zero, value_of
from netbuilder import Workspace
from netbuilder.engines import onednn
from netbuilder.engines.llvm.elementwise import elementwise
from netbuilder.engines.traced import ELEMENTWISE
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from prepared import Value, bind

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn.registration import kernel_table

TABLE = {**dict.fromkeys(ELEMENTWISE, elementwise), **kernel_table()}


def run(op_def, values, inplace, threads):
    op = decode(find(op_def.type), op_def)
    bound = bind(TABLE[op_def.type], op, [values[n] for n in op_def.input], inplace=inplace, threads=threads)
    assert bound is not None, f"{op_def.type} is not served"
    bound.call()
    assert [(v.spec.shape, v.spec.dtype) for v in bound.outputs] == [
        (s.shape, s.dtype) for s in op.infer(*(values[n].spec.plain for n in op_def.input))
    ]
    for name, value in zip(op_def.output, bound.outputs):
        assert padding_is_zero(value), f"{op_def.type}: the padding of {name} is not zero"
        values[name] = value
    return bound


def check(op_def, arrays, block=PLAIN, *, gradient=True, inplace=False, threads=1, blocked=("x", "a", "b")):
    """Compare a kernel and those of its gradient with float64 references.

    Args:
        blocked: inputs that are images, and so come in blocks of ``block`` channels.
    """
    last = any(a.name == "order" and a.s == b"NHWC" for a in op_def.arg)
    exact = {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in arrays.items()}
    want = interpret([op_def], exact)
    values = {n: value_of(x, block if n in blocked else 0, last) for n, x in arrays.items()}
    run(op_def, values, inplace, threads)
    for name in op_def.output:
        close(values[name].plain(), want[name], name)
    if not gradient:
        return
    slope = random(*want[op_def.output[0]].shape, seed=9)
    ops, _ = operator_gradient(op_def, {0: "dy"})
    want = interpret(ops, {**want, "dy": slope.astype(np.float64)})
    y_block = block if values[op_def.output[0]].spec.layout is not None else 0
    values["dy"] = value_of(slope, y_block, last)
    for gradient_op in ops:
        run(gradient_op, values, inplace, threads)
        for name in gradient_op.output:
            close(values[name].plain(), want[name], name)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("block", [PLAIN, B16, B8])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv(name, bias, block):
    x, w, args = CONVOLUTIONS[name]
    arrays = {"x": random(*x), "w": random(*w, seed=1)}
    if bias:
        arrays["bias"] = random(w[0], seed=2)
    check(make_op("Conv", list(arrays), ["y"], **args), arrays, block)


@pytest.mark.parametrize("block", [PLAIN, B16])
def test_conv_channels_last(block):
    arrays = {"x": random(2, 7, 6, 17), "w": random(20, 3, 3, 17, seed=1), "bias": random(20, seed=2)}
    check(make_op("Conv", list(arrays), ["y"], kernel=3, pad=1, order="NHWC"), arrays, block)


@pytest.mark.parametrize("block", [PLAIN, B16])
def test_conv_on_two_threads(block):
    arrays = {"x": random(4, 16, 12, 12), "w": random(32, 16, 3, 3, seed=1)}
    check(make_op("Conv", list(arrays), ["y"], kernel=3, pad=1), arrays, block, threads=2)


def test_conv_gradient_without_that_of_the_image():
    arrays = {"x": random(2, 3, 8, 8), "w": random(16, 3, 3, 3, seed=1), "dy": random(2, 16, 6, 6, seed=2)}
    op_def = make_op("ConvGradient", ["x", "w", "dy"], ["dw", "db"], kernel=3)
    check(op_def, arrays, gradient=False)


@pytest.mark.parametrize("block", [PLAIN, B16])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose(name, block):
    x, w, args = TRANSPOSED[name]
    arrays = {"x": random(*x), "w": random(*w, seed=1), "bias": random(w[1] * args.get("group", 1), seed=2)}
    check(make_op("ConvTranspose", list(arrays), ["y"], **args), arrays, block)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 7), (1, 6, 3), (32, 64, 64), (33, 100, 17), (130, 150, 90)])
@pytest.mark.parametrize("op_type", ["FC", "FCTransposed"])
def test_fc(op_type, shape, threads):
    rows, inner, columns = shape
    w = (columns, inner) if op_type == "FC" else (inner, columns)
    arrays = {"x": random(rows, inner), "w": random(*w, seed=1), "bias": random(columns, seed=2)}
    check(make_op(op_type, list(arrays), ["y"]), arrays, threads=threads)


def test_fc_flattens_a_blocked_image():
    arrays = {"x": random(3, 17, 2, 2), "w": random(5, 68, seed=1), "bias": random(5, seed=2)}
    check(make_op("FC", list(arrays), ["y"]), arrays, B16)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_matmul(trans_a, trans_b):
    a, b = random(*((7, 5) if trans_a else (5, 7))), random(*((3, 7) if trans_b else (7, 3)), seed=1)
    check(make_op("MatMul", ["a", "b"], ["y"], trans_a=trans_a, trans_b=trans_b), {"a": a, "b": b})
    stacked = {"a": np.stack([a, 2 * a]), "b": np.stack([b, -b])}
    check(make_op("BatchMatMul", ["a", "b"], ["y"], trans_a=trans_a, trans_b=trans_b), stacked)


NORMALIZED = [
    ((4, 3, 5, 5), PLAIN),
    ((4, 17, 5, 5), B16),
    ((2, 32, 4, 3), B16),
    ((3, 20, 4), B16),
    ((2, 17, 2, 3, 2), B16),
]


TRAINED = ["y", "rm", "rv", "sm", "si"]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("shape, block", NORMALIZED)
def test_spatial_bn(shape, block, inplace):
    arrays = normalization(shape, shape[1])
    op_def = make_op("SpatialBN", list(arrays), TRAINED, is_test=0, epsilon=1e-3, momentum=0.7)
    check(op_def, arrays, block, inplace=inplace, blocked=("x",))


def test_spatial_bn_channels_last():
    arrays = normalization((2, 4, 5, 17), 17)
    op_def = make_op("SpatialBN", list(arrays), TRAINED, is_test=0, order="NHWC")
    check(op_def, arrays, B16, blocked=("x",))


@pytest.mark.parametrize("shape, block", NORMALIZED)
def test_spatial_bn_in_test_mode(shape, block):
    arrays = normalization(shape, shape[1])
    op_def = make_op("SpatialBN", list(arrays), ["y"], is_test=1)
    check(op_def, arrays, block, gradient=False, inplace=True, blocked=("x",))


def test_spatial_bn_gradient_without_the_forward_operator():
    arrays = normalization((4, 17, 5, 5), 17)
    forward = make_op("SpatialBN", list(arrays), TRAINED, is_test=0)
    done = interpret([forward], {n: x.astype(np.float64) for n, x in arrays.items()})
    given = {n: done[n].astype(np.float32) for n in ("x", "s", "sm", "si")} | {"dy": random(4, 17, 5, 5, seed=9)}
    op_def = make_op("SpatialBNGradient", ["x", "s", "dy", "sm", "si"], ["dx", "ds", "db"], is_test=0)
    check(op_def, given, B16, gradient=False, blocked=("x", "dy"))


PARTS = [
    ((4, 17, 5, 5), B16, "NCHW"), ((2, 32, 4, 3), B16, "NCHW"), ((2, 24, 4, 3), B8, "NCHW"),
    ((2, 4, 5, 32), PLAIN, "NHWC"),
]  # fmt: skip


def of_parts(shape, order):
    """Return inputs of a part of a batch, images and the sums over all parts, as the plain kernels compute them."""
    arrays = normalization(shape, shape[1 if order == "NCHW" else -1])
    op_def = make_op("ChannelStats", ["x"], ["p", "q", "n"], order=order)
    done = interpret([op_def], {"x": arrays["x"].astype(np.float64)})
    return {**arrays, **{name: 1.5 * done[name].astype(np.float32) for name in "pqn"}}


@pytest.mark.parametrize("weight", [None, 0.0, 0.5])
@pytest.mark.parametrize("shape, block, order", PARTS)
def test_channel_stats(shape, block, order, weight):
    if block == B8 and has_instructions("avx512"):
        pytest.skip("the kernel is for blocks of 16 channels")
    arrays = {"x": random(*shape)} if weight is None else {"x": random(*shape), "w": np.float32([weight])}
    op_def = make_op("ChannelStats", list(arrays), ["p", "q", "n"], order=order)
    check(op_def, arrays, block, gradient=False, threads=2)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("shape, block, order", PARTS)
def test_spatial_bn_of_a_part(shape, block, order, counted, inplace):
    arrays = of_parts(shape, order)
    if not counted:
        del arrays["n"]
    op_def = make_op(
        "SpatialBN", list(arrays), TRAINED, is_test=0, epsilon=1e-3, momentum=0.7, num_batches=2, order=order
    )
    check(op_def, arrays, block, gradient=False, inplace=inplace, blocked=("x",))


@pytest.mark.parametrize("weight", [None, 0.0, 0.5])
@pytest.mark.parametrize("shape, block, order", PARTS)
def test_gradient_of_a_part(shape, block, order, weight):
    if block == B8 and has_instructions("avx512"):
        pytest.skip("the kernel is for blocks of 16 channels")
    arrays = of_parts(shape, order)
    forward = make_op("SpatialBN", list(arrays), TRAINED, is_test=0, num_batches=2, order=order)
    done = interpret([forward], {n: x.astype(np.float64) for n, x in arrays.items()})
    given = {n: done[n].astype(np.float32) for n in ("x", "s", "sm", "si", "n")} | {"dy": random(*shape, seed=9)}
    op_def = make_op("ChannelBackpropStats", ["x", "sm", "si", "dy"], ["ds", "db"], order=order)
    check(op_def, given, block, gradient=False, blocked=("x", "dy"))
    sums = interpret([op_def], given)
    given |= {name: sums[name].astype(np.float32) for name in ("ds", "db")}
    inputs = ["x", "s", "dy", "sm", "si", "ds", "db"]
    if weight is not None:
        given["w"] = np.float32([weight])
        inputs += ["n", "w"]
    op_def = make_op("SpatialBNGradient", inputs, ["dx", "ds", "db"], is_test=0, num_batches=2, order=order)
    for inplace in (False, True):
        check(op_def, given, block, gradient=False, inplace=inplace, blocked=("x", "dy"))


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [3, 16, 24])
def test_parts_of_images_of_one_pixel(channels, order):
    """Whatever kernels a workspace chooses."""
    shape = (4, channels, 1, 1) if order == "NCHW" else (4, 1, 1, channels)
    arrays = of_parts(shape, order) | {"dy": random(*shape, seed=9)}
    ops = [
        make_op("ChannelStats", ["x"], ["own_p", "own_q"], order=order),
        make_op("SpatialBN", list(arrays)[:-1], TRAINED, is_test=0, num_batches=2, order=order),
        make_op("ChannelBackpropStats", ["x", "sm", "si", "dy"], ["ds", "db"], order=order),
        make_op("SpatialBNGradient", ["x", "s", "dy", "sm", "si", "ds", "db", "n"], ["dx", "d", "e"], is_test=0,
                num_batches=2, order=order),
    ]  # fmt: skip
    want = interpret(ops, {name: x.astype(np.float64) for name, x in arrays.items()})
    workspace = Workspace()
    for name, x in arrays.items():
        workspace.feed(name, x)
    for op_def in ops:
        workspace.run_net_once(NetDef(op=[op_def]))
        for name in op_def.output:
            close(workspace.fetch(name), want[name], name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("block", [PLAIN, B16, B8])
@pytest.mark.parametrize("args", POOLS, ids=str)
@pytest.mark.parametrize("channels", [3, 17, 32])
def test_average_pool(channels, args, block):
    check(make_op("AveragePool", ["x"], ["y"], **args), {"x": random(2, channels, 8, 9)}, block)


@pytest.mark.parametrize("block", [PLAIN, B16])
@pytest.mark.parametrize("args", POOLS, ids=str)
@pytest.mark.parametrize("channels", [3, 17, 32])
def test_max_pool_after_a_relu(channels, args, block):
    before = random(2, channels, 8, 9)
    ops = [make_op("Relu", ["x"], ["z"]), make_op("MaxPool", ["z"], ["y"], **args)]
    want = interpret(ops, {"x": before.astype(np.float64)})
    values = {"x": value_of(before, block)}
    for op_def in ops:
        run(op_def, values, False, 1)
    close(values["y"].plain(), want["y"], "y")
    slope = random(*want["y"].shape, seed=9)
    pool, _ = operator_gradient(ops[1], {0: "dy"})
    relu = make_op("ReluGradient", ["z", pool[0].output[0]], ["dx"])
    want = interpret([*pool, relu], {**want, "dy": slope.astype(np.float64)})
    values["dy"] = value_of(slope, block)
    for op_def in (*pool, relu):
        run(op_def, values, False, 1)
    close(values["dx"].plain(), want["dx"], "dx")


def test_max_pool_leaves_ties_of_an_arbitrary_input_to_the_array_kernel():
    values = {n: value_of(np.ones(s, np.float32), B16) for n, s in (("x", (1, 16, 4, 4)), ("dy", (1, 16, 2, 2)))}
    run(make_op("MaxPool", ["x"], ["y"], kernel=2, stride=2), values, False, 1)
    op_def = make_op("MaxPoolGradient", ["x", "y", "dy"], ["dx"], kernel=2, stride=2)
    op = decode(find("MaxPoolGradient"), op_def)
    assert bind(TABLE["MaxPoolGradient"], op, [values[n] for n in op_def.input]) is None


@pytest.mark.one_in(3)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape, block", [((7,), PLAIN), ((2, 17, 5, 5), B16), ((2, 3, 80, 70), PLAIN)])
@pytest.mark.parametrize("op_type, args", ACTIVATIONS)
def test_activation(op_type, args, shape, block, threads, inplace):
    x = random(*shape, low=-3, high=3)
    x.flat[0] = 0  # the kink
    check(make_op(op_type, ["x"], ["y"], **args), {"x": x}, block, threads=threads, inplace=inplace)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("block", [PLAIN, B16])
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Sum"])
def test_two_operands(op_type, block, threads):
    arrays = {"a": random(2, 17, 5, 5), "b": random(2, 17, 5, 5, seed=1)}
    check(make_op(op_type, ["a", "b"], ["y"]), arrays, block, gradient=False, threads=threads)
    check(make_op(op_type, ["a", "b"], ["y"]), arrays, block, gradient=False, threads=threads, blocked=("b",))


@pytest.mark.parametrize("block", [PLAIN, B16])
def test_sum_of_four(block):
    arrays = {name: random(2, 17, 3, 3, seed=i) for i, name in enumerate("abcd")}
    check(make_op("Sum", list(arrays), ["y"]), arrays, block, gradient=False, blocked=tuple("abcd"))


@pytest.mark.skipif(not has_instructions("avx512"), reason="the library has only its reference for so few channels")
@pytest.mark.parametrize("block", [PLAIN, B16])
def test_lrn(block):
    check(make_op("LRN", ["x"], ["y"], size=5, alpha=0.1, beta=0.75, bias=2.0), {"x": random(2, 16, 5, 5)}, block)


def test_concat_and_split_along_channels():
    arrays = {"a": random(2, 16, 3, 3), "b": random(2, 32, 3, 3, seed=1), "c": random(2, 17, 3, 3, seed=2)}
    check(make_op("Concat", list(arrays), ["y", "info"]), arrays, B16, gradient=False, blocked=("a", "b", "c"))
    check(make_op("Concat", list(arrays), ["y", "info"]), arrays, B16, gradient=False, blocked=("a",))
    check(make_op("Concat", ["a", "a"], ["y", "info"], axis=0), arrays, B16, gradient=False)
    check(make_op("Split", ["x"], ["y", "z"], split=[16, 33]), {"x": random(2, 49, 3, 3)}, B16, gradient=False)
    check(make_op("Split", ["x"], ["y", "z"], axis=2), {"x": random(2, 17, 4, 3)}, B16, gradient=False)


def test_concat_channels_last():
    arrays = {"a": random(2, 3, 4, 16), "b": random(2, 3, 4, 20, seed=1)}
    op_def = make_op("Concat", ["a", "b"], ["y", "info"], order="NHWC")
    check(op_def, arrays, B16, gradient=False)
    check(make_op("Split", ["x"], ["y", "z"], order="NHWC"), {"x": random(2, 3, 4, 32)}, B16, gradient=False)


@pytest.mark.parametrize("op_type", ["Concat", "Split"])
def test_parts_that_would_cut_a_block_are_left_to_the_array_kernels(op_type):
    op_def = {
        "Concat": make_op("Concat", ["x", "x"], ["y", "info"]),
        "Split": make_op("Split", ["x"], ["y", "z"], split=[3, 14]),
    }[op_type]
    value = value_of(random(2, 17, 3, 3), B16)
    assert bind(TABLE[op_type], decode(find(op_type), op_def), [value] * len(op_def.input)) is None


@pytest.mark.parametrize("inplace", [False, True])
def test_copies_and_weighted_sums_of_blocked_values(inplace):
    x, one = random(2, 17, 3, 3), np.array([0.5], np.float32)
    for op_type in ("Copy", "StopGradient", "Scale"):
        args = {"scale": 2.5} if op_type == "Scale" else {}
        check(make_op(op_type, ["x"], ["y"], **args), {"x": x}, B16, gradient=False, inplace=inplace)
    arrays = {"x": x, "u": one, "a": random(2, 17, 3, 3, seed=1), "v": -3 * one}
    check(make_op("WeightedSum", list(arrays), ["y"]), arrays, B16, gradient=False, inplace=inplace)


@pytest.mark.parametrize("op_type", ["Conv", "FC", "SpatialBN", "MaxPool"])
def test_other_types_are_left_to_the_array_kernels(op_type):
    shapes = {
        "Conv": [(1, 2, 4, 4), (3, 2, 3, 3)], "FC": [(2, 3), (4, 3), (4,)],
        "SpatialBN": [(2, 3, 4, 4), (3,), (3,), (3,), (3,)], "MaxPool": [(1, 2, 4, 4)],
    }.get(op_type, [(2, 3)])  # fmt: skip
    names = [f"i{k}" for k in range(len(shapes))]
    outputs = ["y", "i3", "i4", "sm", "si"] if op_type == "SpatialBN" else ["y"]
    args = {"kernel": 3} if op_type in ("Conv", "MaxPool") else {}
    op = decode(find(op_type), make_op(op_type, names, outputs, **args))
    assert bind(TABLE[op_type], op, [Value.of(np.ones(s, np.float64)) for s in shapes]) is None


def weight_layouts(channels):
    """Return the layouts that convolutions choose for weights and gradients; of few channels they are padded."""
    x, w = Value.of(random(2, channels, 8, 8)), Value.of(random(channels, channels, 3, 3))
    forward = make_op("Conv", ["x", "w"], ["y"], kernel=3, pad=1)
    backward = make_op("ConvGradient", ["x", "w", "dy"], ["dw", "dx"], kernel=3, pad=1, no_bias=1)
    made = [
        bind(TABLE[op_def.type], decode(find(op_def.type), op_def), values).prepared
        for op_def, values in ((forward, [x, w]), (backward, [x, w, x]))
    ]
    return {"Conv": made[0].inputs[1], "ConvGradient": made[1].inputs[1], "gradient": made[1].outputs[0]}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("channels", [4, 32])
@pytest.mark.parametrize("stored", ["plain", "blocks of 16", "Conv", "ConvGradient", "gradient"])
@pytest.mark.parametrize(
    "op_type", ["Add", "Mul", "Sub", "Sum", "Relu", "Tanh", "TanhGradient", "ReluGradient", "Scale"]
)
def test_each_pair_that_may_share_memory(op_type, stored, channels, threads):
    """One after the other, with the bits that the kernel gives with memory of its own."""
    names = ["a", "b"] if len(find(op_type).inputs) == 2 or op_type == "Sum" else ["a"]
    op_def = make_op(op_type, names, ["y"], **({"scale": 0.5} if op_type == "Scale" else {}))
    op, shape = decode(find(op_type), op_def), (channels, channels, 3, 3)
    values = [value_of(random(*shape, seed=seed), B16 if stored == "blocks of 16" else 0) for seed in range(len(names))]
    if spec := weight_layouts(channels).get(stored):
        values = [value.to(spec) for value in values]
    apart = bind(TABLE[op_type], op, values, threads=threads)
    apart.call()
    assert apart.prepared.inplace
    for index, pair in enumerate(apart.prepared.inplace):
        bound = bind(TABLE[op_type], op, values, threads=threads, inplace=index)
        bound.call()
        assert np.array_equal(bound.outputs[0].plain(), apart.outputs[0].plain()), f"inputs and outputs {pair}"
