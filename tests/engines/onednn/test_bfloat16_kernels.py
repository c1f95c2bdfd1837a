"""Every kernel that computes on bfloat16 against the array kernels in float64.

Inputs are numbers that bfloat16 holds exactly, so results in it may be off by one rounding, 2^-8 of their size, and
those in float32 by no more than float32 is.
"""

import numpy as np
import pytest

from checks import interpret
from kernel_cases import ACTIVATIONS, CONVOLUTIONS, POOLS, TRANSPOSED, normalization, random
from kernel_checks import has_instructions
from netbuilder.engines import onednn
from netbuilder.engines.llvm.elementwise import elementwise
from netbuilder.engines.onednn import kernels_conv, kernels_dense, kernels_norm
from netbuilder.engines.traced import ELEMENTWISE
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from prepared import Value, bind

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.bfloat16 import why_bfloat16_is_slow
from netbuilder.engines.onednn.blocked_layout import channel_blocked, image_view, rounded
from netbuilder.engines.onednn.registration import kernel_table

if "no instructions" in why_bfloat16_is_slow():
    pytest.skip("kernels may choose float32 on a CPU without AVX512_BF16", allow_module_level=True)

TABLE = {**dict.fromkeys(ELEMENTWISE, elementwise), **kernel_table()}
PLAIN, B16, B8 = 0, 16, 8
NARROW = 2.0**-8


def exact(array):
    """The nearest numbers that bfloat16 holds."""
    bits = array.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def value_of(array, block, last=False):
    """A value stored in bfloat16: an image in blocks of channels, anything else (and all if not ``block``) plain."""
    layout = rounded(array.size)
    if block and array.ndim >= 3:
        layout = channel_blocked(image_view(array.shape, last), c.BF16, block)
    return Value.of(array).to(TensorSpec(array.shape, array.dtype, layout))


def raw(value):
    """The elements of a value as they are stored, padding included."""
    if value.spec.rounds:
        return (value.buffer.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return value.buffer.view(np.float32)


def close(value, want, name, narrow, slack=0.0):
    """Compare a value and how it is stored: ``narrow`` in bfloat16, else in float32 and with its precision.

    Args:
        slack: by how much, of the greatest value, a result may be off that is rounded on its way.
    """
    assert value.spec.rounds == narrow, f"{name} is stored in {value.spec.layout}"
    got, want = value.plain(), np.asarray(want, np.float64)
    assert got.shape == want.shape and got.dtype == np.float32
    scale = max(float(np.abs(want).max(initial=0)), 1.0)
    np.testing.assert_allclose(got, want, rtol=NARROW if narrow else 2e-5, atol=(slack + 2e-6) * scale, err_msg=name)
    if value.spec.layout is not None:
        total = np.abs(raw(value)).sum(dtype=np.float64)
        assert np.isclose(total, np.abs(got).sum(dtype=np.float64), rtol=1e-9), f"the padding of {name} is not zero"


def run(op_def, values, *, inplace=False, threads=1, precision="bfloat16", make=None):
    op = decode(find(op_def.type), op_def)
    bound = bind(
        make or TABLE[op_def.type], op, [values[n] for n in op_def.input],
        inplace=inplace, threads=threads, precision=precision, op_def=op_def,
    )  # fmt: skip
    assert bound is not None, f"{op_def.type} is not served"
    assert "ref" not in bound.prepared.name
    bound.call()
    assert [(v.spec.shape, v.spec.dtype) for v in bound.outputs] == [
        (s.shape, s.dtype) for s in op.infer(*(values[n].spec.plain for n in op_def.input))
    ]
    values.update(zip(op_def.output, bound.outputs))
    return bound


def check(op_def, arrays, block=PLAIN, *, images=("x", "a", "b"), narrow=(), gradient=True, slack=0.0, **options):
    """Compare a kernel and those of its gradient with float64 references.

    Args:
        images: inputs stored in bfloat16; the others are float32.
        narrow: outputs, of the gradient too, that must be stored in it.
        slack: of the gradient, see ``close``.
    """
    last = any(a.name == "order" and a.s == b"NHWC" for a in op_def.arg)
    values = {n: value_of(x, block, last) if n in images else Value.of(x) for n, x in arrays.items()}
    want = interpret([op_def], {n: v.plain().astype(np.float64) for n, v in values.items()})
    bound = run(op_def, values, **options)
    for name in op_def.output:
        close(values[name], want[name], name, name in narrow)
    if not gradient:
        return bound
    ops, _ = operator_gradient(op_def, {0: "dy"})
    blocked = block if values[op_def.output[0]].spec.layout is not None else PLAIN
    values["dy"] = value_of(exact(random(*want[op_def.output[0]].shape, seed=9)), blocked, last)
    want = interpret(ops, {n: v.plain().astype(np.float64) for n, v in values.items()})
    for gradient_op in ops:
        bound = run(gradient_op, values, **options)
        for name in gradient_op.output:
            close(values[name], want[name], name, name in narrow, slack)
    return bound


def conv_arrays(x, w, channels):
    """Images, weights and a bias that bfloat16 does not hold."""
    return {"x": exact(random(*x)), "w": exact(random(*w, seed=1)), "bias": random(channels, seed=2)}


@pytest.mark.parametrize("block", [PLAIN, B16])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv(name, bias, block):
    x, w, args = CONVOLUTIONS[name]
    arrays = conv_arrays(x, w, w[0])
    if not bias:
        del arrays["bias"]
    bound = check(make_op("Conv", list(arrays), ["y"], **args), arrays, block, images="x", narrow=("y", "x_grad"))
    assert "f32" not in bound.prepared.name


@pytest.mark.parametrize("block", [PLAIN, B16])
def test_conv_channels_last(block):
    arrays = conv_arrays((2, 7, 6, 17), (20, 3, 3, 17), 20)
    op_def = make_op("Conv", list(arrays), ["y"], kernel=3, pad=1, order="NHWC")
    check(op_def, arrays, block, images="x", narrow=("y", "x_grad"))


@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose(name):
    x, w, args = TRANSPOSED[name]
    arrays = conv_arrays(x, w, w[1] * args.get("group", 1))
    check(make_op("ConvTranspose", list(arrays), ["y"], **args), arrays, B16, images="x", narrow=("y", "x_grad"))


@pytest.mark.parametrize("wide_is_faster", [False, True])
def test_gradient_of_weights_on_the_type_that_was_measured_faster(wide_is_faster, monkeypatch):
    from netbuilder.engines.onednn import kernels_conv_gradient

    def fastest(key, candidates, n, *, flops):
        return "float32" if wide_is_faster else "bfloat16"

    monkeypatch.setenv("NETBUILDER_MEASURE", "1")
    monkeypatch.setattr(kernels_conv_gradient, "fastest", fastest)
    arrays = conv_arrays((4, 16, 12, 12), (32, 16, 3, 3), 32)
    op_def = make_op("Conv", list(arrays), ["y"], kernel=3, pad=1)
    bound = check(op_def, arrays, B16, images="x", narrow=("y", "x_grad"), threads=2)
    assert ("reorder" in bound.prepared.name) == wide_is_faster


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(64, 128, 96), (33, 300, 170), (130, 150, 90)])
@pytest.mark.parametrize("op_type", ["FC", "FCTransposed"])
def test_fc(op_type, shape, threads):
    rows, inner, columns = shape
    w = (columns, inner) if op_type == "FC" else (inner, columns)
    arrays = conv_arrays((rows, inner), w, columns)
    check(make_op(op_type, list(arrays), ["y"]), arrays, images="x", narrow=("y", "x_grad"), threads=threads)


def test_fc_takes_an_image_in_blocks():
    arrays = conv_arrays((32, 48, 2, 3), (96, 288), 96)
    check(make_op("FC", list(arrays), ["y"]), arrays, B16, images="x", narrow=("y", "x_grad"))


def test_small_products_are_left_in_float32():
    arrays = conv_arrays((32, 64), (10, 64), 10)
    check(make_op("FC", list(arrays), ["y"]), arrays, images="x")


def test_fused_fc_relu():
    arrays = conv_arrays((64, 128), (96, 128), 96)
    values = {"x": value_of(arrays["x"], PLAIN), "w": Value.of(arrays["w"]), "bias": Value.of(arrays["bias"])}
    op_def = make_op("FC", list(arrays), ["y"])
    want = interpret([op_def], {n: a.astype(np.float64) for n, a in arrays.items()})["y"]
    run(op_def, values, make=kernels_dense.fused_fc_relu)
    close(values["y"], np.maximum(want, 0), "y", True)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_matmul(trans_a, trans_b):
    """Its gradients are products, too, of which one may be a parameter's: they are float32."""
    a = exact(random(*((100, 80) if trans_a else (80, 100))))
    b = exact(random(*((90, 100) if trans_b else (100, 90)), seed=1))
    args = {"trans_a": trans_a, "trans_b": trans_b}
    check(make_op("MatMul", ["a", "b"], ["y"], **args), {"a": a, "b": b}, narrow="y")
    stacked = {"a": np.stack([a, 2 * a]), "b": np.stack([b, -b])}
    check(make_op("BatchMatMul", ["a", "b"], ["y"], **args), stacked, narrow="y")


NORMALIZED = [((4, 3, 5, 5), PLAIN), ((4, 17, 5, 5), B16), ((2, 32, 4, 3), B16), ((3, 20, 4), B16)]
TRAINED = ["y", "rm", "rv", "sm", "si"]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("shape, block", NORMALIZED)
def test_spatial_bn(shape, block, inplace):
    arrays = normalization(shape, shape[1])
    op_def = make_op("SpatialBN", list(arrays), TRAINED, is_test=0, epsilon=1e-3, momentum=0.7)
    check(op_def, arrays, block, images="x", narrow=("y", "x_grad"), inplace=inplace)


@pytest.mark.parametrize("shape, block", NORMALIZED)
def test_spatial_bn_in_test_mode(shape, block):
    arrays = normalization(shape, shape[1])
    op_def = make_op("SpatialBN", list(arrays), ["y"], is_test=1)
    check(op_def, arrays, block, images="x", narrow="y", gradient=False, inplace=True)


@pytest.mark.parametrize("shape", [(4, 17, 5, 5), (2, 32, 4, 3)])
def test_fused_bn_relu(shape):
    arrays = normalization(shape, shape[1])
    values = {n: value_of(x, B16) if n == "x" else Value.of(x) for n, x in arrays.items()}
    ops = [make_op("SpatialBN", list(arrays), TRAINED, is_test=0), make_op("Relu", ["y"], ["y"])]
    want = interpret(ops, {n: v.plain().astype(np.float64) for n, v in values.items()})
    run(ops[0], values, make=kernels_norm.fused_bn_relu)
    for name in TRAINED:
        close(values[name], want[name], name, name == "y")
    values["dy"] = value_of(exact(random(*shape, seed=9)), B16)
    backward = make_op("SpatialBNGradient", ["x", "s", "dy", "sm", "si"], ["dx", "ds", "db"], is_test=0)
    exactly = {n: v.plain().astype(np.float64) for n, v in values.items()}
    exactly["dy"] = exactly["dy"] * (exactly["y"] > 0)
    want = interpret([backward], exactly)
    run(backward, values, make=kernels_norm.fused_bn_relu_gradient)
    for name in backward.output:
        close(values[name], want[name], name, name == "dx")


@pytest.mark.parametrize("block", [PLAIN, B16])
@pytest.mark.parametrize("args", POOLS, ids=str)
@pytest.mark.parametrize("channels", [3, 17, 32])
def test_average_pool(channels, args, block):
    arrays = {"x": random(2, channels, 8, 9)}
    op_def = make_op("AveragePool", ["x"], ["y"], **args)
    check(op_def, arrays, block, narrow=("y", "x_grad"), slack=NARROW)  # windows that overlap are added up rounded


@pytest.mark.parametrize("args", POOLS, ids=str)
@pytest.mark.parametrize("channels", [3, 17, 32])
def test_max_pool_after_a_relu(channels, args):
    values = {"x": value_of(random(2, channels, 8, 9), B16)}
    ops = [make_op("Relu", ["x"], ["z"]), make_op("MaxPool", ["z"], ["y"], **args)]
    want = interpret(ops, {"x": values["x"].plain().astype(np.float64)})
    for op_def in ops:
        run(op_def, values)
    np.testing.assert_array_equal(values["y"].plain(), want["y"])
    pool, _ = operator_gradient(ops[1], {0: "dy"})
    relu = make_op("ReluGradient", ["z", pool[0].output[0]], ["dx"])
    values["dy"] = value_of(np.round(8 * random(*want["y"].shape, seed=9)), B16)  # sums of these are exact
    want = interpret([*pool, relu], {n: v.plain().astype(np.float64) for n, v in values.items()})
    for op_def in (*pool, relu):
        run(op_def, values)
    differ = values["dx"].plain() != want["dx"]  # rounding makes ties, of which the first gets the whole gradient
    assert np.mean(differ) < 0.02 and values["dx"].spec.rounds
    assert values["dx"].plain().sum() == want["dx"].sum() or differ.any()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape, block", [((7,), PLAIN), ((2, 17, 5, 5), B16), ((2, 3, 80, 70), PLAIN)])
@pytest.mark.parametrize("op_type, args", ACTIVATIONS)
def test_activation(op_type, args, shape, block, threads, inplace):
    x = exact(random(*shape, low=-3, high=3))
    x.flat[0] = 0  # the kink
    op_def = make_op(op_type, ["x"], ["y"], **args)
    check(op_def, {"x": x}, block, narrow=("y", "x_grad"), threads=threads, inplace=inplace)


@pytest.mark.parametrize("block", [PLAIN, B16])
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Sum"])
def test_two_operands(op_type, block):
    arrays = {"a": random(2, 17, 5, 5), "b": random(2, 17, 5, 5, seed=1)}
    op_def = make_op(op_type, ["a", "b"], ["y"])
    check(op_def, arrays, block, narrow="y", gradient=False, threads=2)
    check(op_def, arrays, block, images="b", gradient=False)  # with an operand in float32, so is the result


@pytest.mark.parametrize("block", [PLAIN, B16])
def test_sum_of_four(block):
    arrays = {name: random(2, 17, 3, 3, seed=i) for i, name in enumerate("abcd")}
    check(make_op("Sum", list(arrays), ["y"]), arrays, block, images="abcd", narrow="y", gradient=False)
    check(make_op("Sum", list(arrays), ["y"]), arrays, block, images="abc", gradient=False)


@pytest.mark.parametrize("block", [PLAIN, B16])
def test_lrn(block):
    op_def = make_op("LRN", ["x"], ["y"], size=5, alpha=0.1, beta=0.75, bias=2.0)
    arrays = {"x": random(2, 16, 5, 5)}
    check(op_def, arrays, block, narrow=("y", "x_grad"), slack=NARROW)  # the library rounds the denominators, too


@pytest.mark.parametrize("block", [PLAIN, B16])
def test_concat_and_split(block):
    arrays = {"a": random(2, 16, 3, 3), "b": random(2, 32, 3, 3, seed=1), "c": random(2, 17, 3, 3, seed=2)}
    values = {n: value_of(x, block) for n, x in arrays.items()}
    exactly = {n: v.plain() for n, v in values.items()}
    for op_def in (
        make_op("Concat", list(arrays), ["y", "info"]),
        make_op("Concat", ["c", "a"], ["y", "info"]),  # cuts a block
        make_op("Concat", ["a", "a"], ["y", "info"], axis=2),
        make_op("Split", ["b"], ["y", "z"], split=[16, 16]),
        make_op("Split", ["c"], ["y", "z"], split=[3, 14]),
        make_op("Split", ["b"], ["y", "z", "u"], axis=3),
    ):
        want = interpret([op_def], exactly)
        run(op_def, values)
        for name in op_def.output:
            np.testing.assert_array_equal(values[name].plain(), want[name], name)
            assert values[name].spec.rounds or name == "info"


def test_concat_of_matrices_and_of_images_with_channels_last():
    for shape, args in (((5, 7), {}), ((2, 3, 4, 16), {"order": "NHWC"})):
        arrays = {"a": random(*shape), "b": random(*shape, seed=1)}
        values = {n: value_of(x, B16, last=True) for n, x in arrays.items()}
        op_def = make_op("Concat", ["a", "b"], ["y", "info"], **args)
        want = np.concatenate([v.plain() for v in values.values()], axis=-1)
        run(op_def, values)
        assert values["y"].spec.rounds
        np.testing.assert_array_equal(values["y"].plain(), want)


def test_copies_keep_the_type_and_weighted_sums_do_not():
    x = random(2, 17, 3, 3)
    for op_type in ("Copy", "StopGradient"):
        check(make_op(op_type, ["x"], ["y"]), {"x": x}, B16, narrow="y", gradient=False)
    arrays = {"x": x, "u": np.full(1, 0.5, np.float32), "a": x, "v": np.full(1, -3, np.float32)}
    op_def = make_op("WeightedSum", list(arrays), ["y"])
    values = {n: value_of(a, B16) if n == "a" else Value.of(a) for n, a in arrays.items()}
    op = decode(find("WeightedSum"), op_def)
    bound = bind(elementwise, op, list(values.values()), precision="bfloat16")
    assert bound.prepared.inputs[0] == bound.prepared.inputs[2] == values["x"].spec  # machine code, in float32


@pytest.mark.parametrize("op_type", ["Conv", "FC", "BatchMatMul"])
def test_inputs_in_float32_are_rounded_once_each(op_type):
    """So the results are bit-identical for inputs that have been rounded before."""
    arrays, args = {
        "Conv": ({"x": random(2, 16, 9, 9), "w": random(32, 16, 3, 3, seed=1)}, {"kernel": 3}),
        "FC": ({"x": random(64, 128), "w": random(96, 128, seed=1), "b": random(96, seed=2)}, {}),
        "BatchMatMul": ({"x": random(2, 64, 80), "w": random(2, 80, 90, seed=1)}, {}),
    }[op_type]
    found = []
    for change in (exact, np.copy):
        values = {n: Value.of(a if n == "b" else change(a)) for n, a in arrays.items()}
        run(make_op(op_type, list(arrays), ["y"], **args), values)
        assert values["y"].spec.rounds
        found.append(values["y"].plain())
    np.testing.assert_array_equal(*found)


MEMORY_BOUND = {
    "Relu": (["x"], ["y"], {}),
    "Sum": (["x", "x"], ["y"], {}),
    "AveragePool": (["x"], ["y"], {"kernel": 2}),
    "LRN": (["x"], ["y"], {"size": 5, "beta": 0.75}),
    "Concat": (["x", "x"], ["y", "info"], {}),
    "SpatialBN": (["x", "s", "b", "rm", "rv"], TRAINED, {"is_test": 0}),
}


@pytest.mark.parametrize("op_type", MEMORY_BOUND)
def test_values_in_float32_stay_so_where_there_is_nothing_to_multiply(op_type):
    inputs, outputs, args = MEMORY_BOUND[op_type]
    values = {n: Value.of(a) for n, a in normalization((2, 32, 6, 6), 32).items()}
    blocked = channel_blocked(image_view((2, 32, 6, 6)), c.F32, 16)
    values["x"] = values["x"].to(values["x"].spec.with_layout(blocked))
    run(make_op(op_type, inputs, outputs, **args), values)
    assert not values["y"].spec.rounds


@pytest.mark.parametrize("op_type", [*MEMORY_BOUND, "Conv", "FC"])
def test_a_net_in_float32_may_read_values_in_bfloat16(op_type):
    if op_type in MEMORY_BOUND:
        inputs, outputs, args = MEMORY_BOUND[op_type]
        arrays = normalization((2, 32, 6, 6), 32)
    else:
        w = (32, 16, 3, 3) if op_type == "Conv" else (96, 16 * 36)
        arrays = conv_arrays((2 if op_type == "Conv" else 64, 16, 6, 6), w, w[0])
        inputs, outputs, args = list(arrays), ["y"], {"kernel": 3} if op_type == "Conv" else {}
    op_def = make_op(op_type, inputs, outputs, **args)
    values = {n: value_of(a, B16) if n == "x" else Value.of(a) for n, a in arrays.items()}
    want = interpret([op_def], {n: v.plain().astype(np.float64) for n, v in values.items()})
    run(op_def, values, precision="float32")
    close(values["y"], want["y"], "y", False)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("channels", [16, 17])
def test_fused_conv_in_inference(channels, relu):
    arrays = conv_arrays((2, 16, 6, 6), (channels, 16, 3, 3), channels)
    addend = value_of(random(2, channels, 4, 4, seed=3), B16)
    op_def = make_op("Conv", list(arrays), ["y"], kernel=3)

    def make(op, ctx, x, w, b, add):
        return kernels_conv.fused_conv(op, ctx, [x, w, b], relu=relu, add=add)

    values = [value_of(arrays["x"], B16), Value.of(arrays["w"]), Value.of(arrays["bias"]), addend]
    bound = bind(make, decode(find("Conv"), op_def), values, precision="bfloat16")
    bound.call()
    want = interpret([op_def], {n: a.astype(np.float64) for n, a in arrays.items()})["y"] + addend.plain()
    close(bound.outputs[0], np.maximum(want, 0) if relu else want, "y", True)


def test_nothing_is_measured_where_that_is_turned_off(monkeypatch):
    from netbuilder.engines.onednn import autotune as choices

    monkeypatch.setenv("NETBUILDER_MEASURE", "0")
    choices.take_open()
    arrays = conv_arrays((4, 16, 12, 12), (32, 16, 3, 3), 32)
    op_def = make_op("Conv", list(arrays), ["y"], kernel=3, pad=1)
    check(op_def, arrays, B16, images="x", narrow=("y", "x_grad"), threads=2)
    assert choices.take_open() == []


@pytest.mark.skipif(has_instructions("amx"), reason="for AMX the library has such a kernel")
def test_the_library_has_no_kernel_for_the_weights_of_groups_narrower_than_a_block():
    arrays = conv_arrays((2, 32, 12, 12), (32, 8, 3, 3), 32)
    op_def = make_op("Conv", list(arrays), ["y"], kernel=3, pad=1, group=4)
    bound = check(op_def, arrays, B16, images="x", narrow=("y", "x_grad"))
    assert "gemm" not in bound.prepared.name
    assert "reorder" in bound.prepared.name
