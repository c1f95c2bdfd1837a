"""Every kernel of the engine against the array kernels in float64: on a real GPU, or on cuDNN's double.

CUDA graphs of them have the same results; which graphs of cuDNN run is known of the double.
"""

import numpy as np
import pytest

from checks import interpret
from kernel_cases import CONVOLUTIONS, POOLS, TRANSPOSED, normalization, random
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.proto import PROTO_CUDA, NetDef, OperatorDef
from netbuilder.proto.arguments import make_argument, make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import LISTED, assert_same, with_cudnn

GPU = make_device_option(PROTO_CUDA, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*stored as float16 without a scale")]


def computed(ops, arrays, wanted, precision, engines):
    """Run operators on the GPU as a net; all values that are not wanted need not be observable.

    Returns:
        The wanted values, by name, which are the same when CUDA graphs are replayed; the names of all launches.
    """
    net = NetDef(name="net")
    net.op.extend(ops)
    net.device_option.CopyFrom(GPU)
    net.arg.extend([make_argument("activation_dtype", precision)])
    workspace = Workspace(engines=engines)

    def feed():
        for name, array in arrays.items():
            workspace.feed(name, array, GPU)

    with with_cudnn() as (machine, _):
        feed()
        workspace.create_net(net, observable=wanted)
        before = len(machine.launches)
        workspace.run_net("net")
        got = {name: workspace.fetch(name) for name in wanted}
        launched = [launch.name for launch in machine.launches[before:]]
        for _ in range(4):
            feed()
            workspace.run_net("net")
        (plan,) = workspace.net("net").plan_ahead()
        assert any(each.graph >= 0 for each in plan.captured()) or len(plan.steps) == 1
        for name, array in got.items():
            assert_same(workspace.fetch(name), array, 1e-3, err_msg=name)
    return got, launched


def check(ops, arrays, wanted=None, *, tolerance=2e-5, precision="float32", engines=("CUDNN",), own=()):
    """Compare with the array kernels in float64; return the operations of the graphs, and the kernels of ``own``."""
    exact = {n: x.astype(np.float64) if x.dtype in (np.float32, np.float16) else x for n, x in arrays.items()}
    want = interpret(ops, exact)
    wanted = wanted or [name for op in ops for name in op.output]
    got, launches = computed(ops, arrays, wanted, precision, engines)
    for name in wanted:
        scale = max(float(np.abs(want[name]).max(initial=0)), 1.0)
        np.testing.assert_allclose(got[name], want[name], rtol=tolerance, atol=tolerance * scale, err_msg=name)
    launched = [name.split() for name in launches]
    names = [kinds[1:] if kinds[0] == "cudnn" else [kinds[0][3:].rpartition("_")[0]] for kinds in launched]
    return [tuple(each) for kinds, each in zip(launched, names) if kinds[0] == "cudnn" or each[0] in own]


def check_with_gradient(op_def, arrays, **options):
    exact = {n: x.astype(np.float64) for n, x in arrays.items()}
    y = interpret([op_def], exact)[op_def.output[0]]
    gradients, _ = operator_gradient(op_def, {0: "dy"})
    return check([op_def, *gradients], {**arrays, "dy": random(*y.shape, seed=9)}, **options)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv(name, bias):
    x, w, args = CONVOLUTIONS[name]
    arrays = {"x": random(*x), "w": random(*w, seed=1)}
    if bias:
        arrays["bias"] = random(w[0], seed=2)
    ran = check_with_gradient(make_op("Conv", list(arrays), ["y"], **args), arrays)
    expected = [("conv_fprop", "bias") if bias else ("conv_fprop",), ("conv_wgrad",)]
    assert not LISTED or ran == [*expected, *([("reduction",)] if bias else []), ("conv_dgrad",)]


def test_conv_channels_last():
    arrays = {"x": random(2, 7, 6, 17), "w": random(20, 3, 3, 17, seed=1), "bias": random(20, seed=2)}
    check_with_gradient(make_op("Conv", list(arrays), ["y"], kernel=3, pad=1, order="NHWC"), arrays)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose(name, bias):
    x, w, args = TRANSPOSED[name]
    arrays = {"x": random(*x), "w": random(*w, seed=1)}
    if bias:
        arrays["bias"] = random(w[1] * args.get("group", 1), seed=2)
    ran = check_with_gradient(make_op("ConvTranspose", list(arrays), ["y"], **args), arrays)
    first = [("conv_dgrad",), ("add",)] if bias else [("conv_dgrad",)]
    assert not LISTED or ran == [*first, ("conv_wgrad",), *([("reduction",)] if bias else []), ("conv_fprop",)]


BN_OUTPUTS = ["y", "rm", "rv", "mean", "inverse"]


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(4, 8, 5, 3), (6, 4), (3, 12, 7), (2, 4, 2, 3, 2)])
def test_spatial_bn(shape, order):
    if order == "NHWC":
        shape = (shape[0], *shape[2:], shape[1])
    arrays = normalization(shape, shape[1 if order == "NCHW" else -1])
    op = make_op("SpatialBN", list(arrays), BN_OUTPUTS, epsilon=1e-3, momentum=0.8, order=order)
    ran = check_with_gradient(op, arrays, own=["running_statistics"])
    assert not LISTED or [kinds[0] for kinds in ran] == ["batchnorm", "batchnorm_backward", "running_statistics"]


@pytest.mark.parametrize("relu", [None, ("Relu", {}), ("ReluN", {"n": 0.5})], ids=str)
def test_spatial_bn_in_test_mode(relu):
    arrays = normalization((2, 6, 3, 3), 6)
    ops = [make_op("SpatialBN", list(arrays), ["n"], is_test=1)]
    if relu:
        ops.append(make_op(relu[0], ["n"], ["n"], **relu[1]))
    ran = check(ops, arrays)
    assert not LISTED or len(ran) == 1


@pytest.mark.parametrize("relu, limit", [("Relu", {}), ("ReluN", {"n": 0.5})])
def test_spatial_bn_with_relu_and_its_gradient(relu, limit):
    """One graph forward, one backward."""
    arrays = {**normalization((2, 8, 4, 4), 8), "dy": random(2, 8, 4, 4, seed=9)}
    ops = [
        make_op("SpatialBN", ["x", "s", "b", "rm", "rv"], BN_OUTPUTS),
        make_op(relu, ["y"], ["y"], **limit),
        make_op(f"{relu}Gradient", ["y", "dy"], ["dr"], **limit),
        make_op("SpatialBNGradient", ["x", "s", "dr", "mean", "inverse"], ["dx", "ds", "db"]),
    ]
    ran = check(ops, arrays, [*BN_OUTPUTS, "dx", "ds", "db"])
    assert not LISTED or [kinds[:2] for kinds in ran] == [("batchnorm", "relu"), ("cmp_gt", "mul")]


@pytest.mark.parametrize("type", ["FC", "FCTransposed"])
@pytest.mark.parametrize("shape", [(3, 10), (2, 2, 5)])
def test_fc(type, shape):
    columns = 7
    arrays = {
        "x": random(*shape), "w": random(*((columns, 10) if type == "FC" else (10, columns)), seed=1),
        "b": random(columns, seed=2),
    }  # fmt: skip
    ran = check_with_gradient(make_op(type, list(arrays), ["y"]), arrays)
    assert not LISTED or ran == [("add",), ("reduction",)]  # cuBLAS multiplies


def test_fc_with_relu():
    arrays = {"x": random(3, 10), "w": random(7, 10, seed=1), "b": random(7, seed=2)}
    ops = [make_op("FC", list(arrays), ["y"]), make_op("Relu", ["y"], ["y"])]
    ran = check(ops, arrays)
    assert not LISTED or ran == [("add", "relu")]


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_matmul(trans_a, trans_b):
    a, b = random(*((4, 6) if trans_a else (6, 4))), random(*((5, 4) if trans_b else (4, 5)), seed=1)
    check_with_gradient(make_op("MatMul", ["a", "b"], ["y"], trans_a=trans_a, trans_b=trans_b), {"a": a, "b": b})
    stacks = {"a": np.stack([a, 2 * a, -a]), "b": np.stack([b, b, 3 * b])}
    check_with_gradient(make_op("BatchMatMul", ["a", "b"], ["y"], trans_a=trans_a, trans_b=trans_b), stacks)


NARROW = pytest.mark.parametrize(
    "narrow", [{"precision": "bfloat16", "tolerance": 2e-2}, {"precision": "float16", "tolerance": 2e-3}],
    ids=["bfloat16", "float16"],
)  # fmt: skip


@NARROW
@pytest.mark.parametrize("name", ["7x7", "stride", "groups", "1-D"])
def test_conv_in_16_bits(name, narrow):
    """Products of 16 bits: x, w and dy are copied at once, results when they are fetched."""
    x, w, args = CONVOLUTIONS[name]
    arrays = {"x": random(*x), "w": random(*w, seed=1)}
    ran = check_with_gradient(make_op("Conv", ["x", "w"], ["y"], **args), arrays, **narrow, own=["copies"])
    assert not LISTED or [kinds[0] for kinds in ran] == [
        "copies",
        "conv_fprop",
        "conv_wgrad",
        "conv_dgrad",
        *["copies"] * 3,
    ]


def test_sums_of_gradients_of_filters_are_not_rounded():
    """Each product of 16 bits is; their sum, for a filter that is used twice, is stored in float32."""
    arrays = {"x": random(2, 8, 5, 5), "w": random(8, 8, 3, 3, seed=1)}
    arrays |= {"d": random(2, 8, 5, 5, seed=2), "e": random(2, 8, 5, 5, seed=3)}
    gradients = [make_op("ConvGradient", ["x", "w", d], [f"w{d}"], kernel=3, pad=1, no_bias=1) for d in "de"]
    ops = [*gradients, make_op("Sum", ["wd", "we"], ["total"])]
    got, _ = computed(ops, arrays, ["wd", "we", "total"], "bfloat16", ("CUDNN", "CUDA"))
    np.testing.assert_array_equal(got["total"], got["wd"] + got["we"])
    assert not (got["wd"].view(np.uint32) & 0xFFFF).any() and (got["total"].view(np.uint32) & 0xFFFF).any()


@NARROW
def test_16_bits_between_operators(narrow):
    """Images stay in 16 bits from kernel to kernel: they are copied once, together with the filters."""
    arrays = {"x": random(2, 8, 6, 6), "w": random(8, 8, 1, 1, seed=1), **normalization((2, 8, 6, 6), 8)}
    ops = [
        make_op("Conv", ["x", "w"], ["c"]),
        make_op("SpatialBN", ["c", "s", "b", "rm", "rv"], BN_OUTPUTS),
        make_op("Relu", ["y"], ["z"]),
        make_op("Conv", ["z", "w"], ["out"]),
    ]
    wanted, own = ["out", "rm", "rv", "mean", "inverse"], ["copies", "running_statistics"]
    ran = check(ops, arrays, wanted, **narrow, own=own)
    assert not LISTED or [kinds[:2] for kinds in ran] == [
        ("copies",), ("conv_fprop",), ("batchnorm", "relu"), ("conv_fprop",), ("running_statistics",), ("copies",)
    ]  # fmt: skip


@NARROW
def test_fc_in_16_bits(narrow):
    arrays = {"x": random(3, 10), "w": random(8, 10, seed=1), "b": random(8, seed=2)}
    ran = check_with_gradient(make_op("FC", list(arrays), ["y"]), arrays, **narrow)
    assert not LISTED or (("matmul", "add") in ran and ran.count(("matmul",)) == 2)


@NARROW
def test_cublas_multiplies_rows_of_16_bits_that_no_graph_reads(narrow):
    """The sum of product and bias is rounded once, by our own kernel."""
    arrays = {"x": random(3, 7), "w": random(8, 7, seed=1), "b": random(8, seed=2)}
    ran = check_with_gradient(make_op("FC", list(arrays), ["y"]), arrays, **narrow, own=["bias"])
    assert not LISTED or ran == [("bias",), ("reduction",)]


@NARROW
def test_elementwise_operators_keep_the_layout(narrow):
    """Between convolutions nothing is converted: chains of our own kernels read and write channels last in 16 bits."""
    arrays = {"x": random(2, 8, 6, 6), "w": random(8, 8, 3, 3, seed=1), "v": random(8, 8, 1, 1, seed=2)}
    ops = [
        make_op("Conv", ["x", "w"], ["a"], kernel=3, pad=1),
        make_op("Conv", ["x", "v"], ["b"]),
        make_op("Sum", ["a", "b"], ["c"]),
        make_op("Relu", ["c"], ["d"]),
        make_op("Mul", ["d", "a"], ["e"]),
        make_op("Conv", ["e", "v"], ["y"]),
    ]
    with_cuda = {"engines": ("CUDNN", "CUDA")}
    ran = check(ops, arrays, ["y"], **with_cuda)
    assert not LISTED or ran == [("conv_fprop",)] * 3
    ran = check(ops, arrays, ["y"], **with_cuda, **narrow, own=["copies"])
    assert not LISTED or [kinds[0] for kinds in ran] == ["copies", *["conv_fprop"] * 3, "copies"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("args", [*POOLS, {"kernel": 3, "stride": 2, "pad": 1, "count_include_pad": 1}])
@pytest.mark.parametrize("kind", ["Max", "Average"])
def test_pool(kind, args, order, precision):
    """Over images that a convolution has stored with channels last; values of a window are often equal."""
    if kind == "Max" and "count_include_pad" in args:
        return
    arrays = {"x": np.round(2 * random(2, 4, 7, 8)), "w": np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)}
    if order == "NHWC":
        arrays = {name: np.moveaxis(array, 1, -1).copy() for name, array in arrays.items()}
    conv = make_op("Conv", ["x", "w"], ["c"], order=order)
    pool = make_op(f"{kind}Pool", ["c"], ["y"], order=order, **args)
    y = interpret([conv, pool], {n: a.astype(np.float64) for n, a in arrays.items()})["y"]
    gradient = make_op(f"{kind}PoolGradient", ["c", "y", "dy"], ["dc"], order=order, **args)
    dy = np.round(4 * random(*y.shape, seed=9))
    launched = check([conv, pool, gradient], {**arrays, "dy": dy}, ["y", "dc"], precision=precision,
                     tolerance=1e-6 if precision == "float32" else 1e-2)  # fmt: skip
    assert not LISTED or launched.count(("conv_fprop",)) == 1


@pytest.mark.parametrize("kind", ["Max", "Average"])
@pytest.mark.parametrize("shape", [(2, 3, 9), (1, 2, 5, 4, 6)])
def test_pool_over_other_numbers_of_axes(kind, shape):
    axes = len(shape) - 2
    pool = make_op(f"{kind}Pool", ["x"], ["y"], kernels=[3] * axes, strides=[2] * axes, pads=[1] * axes + [0] * axes)
    check_with_gradient(pool, {"x": random(*shape)})


def test_the_maximum_of_nan_is_nan():
    x = np.float32([[[[np.nan, 1], [2, 3]]], [[[-np.inf, -np.inf], [-np.inf, -np.inf]]]])
    check([make_op("MaxPool", ["x"], ["y"], kernel=2)], {"x": x}, tolerance=1e-7)


def test_values_with_a_layout_that_the_host_reads():
    """An update on the CPU, of a filter whose gradient a GPU writes with channels last."""
    cpu, arrays = make_device_option(), {"x": random(2, 4, 5, 5), "w": random(6, 4, 3, 3, seed=1)}
    arrays |= {"dy": random(2, 6, 3, 3, seed=2), "m": random(6, 4, 3, 3, seed=3), "lr": np.float32([0.5])}
    arrays |= {"n": random(2, 4, 5, 5, seed=4), "z": random(2, 4, 5, 5, seed=5)}
    net = NetDef(name="net")
    net.op.extend([
        make_op("ConvGradient", ["x", "w", "dy"], ["dw", "dx"], kernel=3, no_bias=1, device_option=GPU),
        make_op("MomentumSGDUpdate", ["dw", "m", "lr", "w"], ["dw", "m", "w"], momentum=0.9, device_option=cpu),
        make_op("MomentumSGDUpdate", ["dx", "n", "lr", "z"], ["dx", "n", "z"], momentum=0.9, device_option=cpu),
    ])  # fmt: skip
    on_host = [OperatorDef.FromString(op.SerializeToString()) for op in net.op]
    for op in on_host:
        op.ClearField("device_option")
    want = interpret(on_host, {name: array.astype(np.float64) for name, array in arrays.items()})
    with with_cudnn():
        workspace = Workspace()
        for name, array in arrays.items():
            workspace.feed(name, array)
        workspace.create_net(net)
        workspace.run_net("net")
        for name in ("w", "m", "n", "z"):
            np.testing.assert_allclose(workspace.fetch(name), want[name], rtol=1e-4, atol=1e-5)


RESIDUAL = [
    make_op("SpatialBN", ["x", "s", "b", "rm", "rv"], BN_OUTPUTS),
    make_op("Sum", ["z", "y"], ["t"]),
    make_op("Relu", ["t"], ["t"]),
    make_op("Sum", ["dy", "dw"], ["dt"]),
    make_op("ReluGradient", ["t", "dt"], ["dt"]),
    make_op("SpatialBNGradient", ["x", "s", "dt", "mean", "inverse"], ["dx", "ds", "db"]),
    make_op("Scale", ["dt"], ["dz"], scale=2.0),
]


def residual(**changed):
    """The operators of a block's end, some of them with other inputs or outputs, after those that make z and dy."""
    made = [make_op("Scale", [f"{name}0"], [name]) for name in ("z", "dy", "dw")]
    return [*made, *(changed.get(f"_{i}", op) for i, op in enumerate(RESIDUAL))]


def residual_arrays():
    shape = (2, 8, 4, 4)
    names = {f"{name}0": random(*shape, seed=i) for i, name in enumerate(("z", "dy", "dw"), 7)}
    return {**normalization(shape, 8), **names}


FUSED_SUM, FUSED_GRADIENT = ("batchnorm", "add", "relu"), ("add", "cmp_gt", "mul", "batchnorm_backward")


@pytest.mark.parametrize("precision, tolerance", [("float32", 2e-5), ("bfloat16", 3e-2), ("float16", 4e-3)])
def test_the_end_of_a_residual_block(precision, tolerance):
    """Normalization, Sum and Relu are one graph; backward, too, with the sum of two gradients."""
    wanted = ["t", "rm", "rv", "dx", "ds", "db", "dz"]
    ran = check(residual(), residual_arrays(), wanted, precision=precision, tolerance=tolerance)
    assert not LISTED or (ran.count(FUSED_SUM) == 1 and ran.count(FUSED_GRADIENT) == 1)
    assert not LISTED or (sum("batchnorm" in kinds or "batchnorm_backward" in kinds for kinds in ran) == 2)


CHANGES = {
    "the sum overwrites the other summand, so there are only parts": (
        {"_1": make_op("Sum", ["z", "y"], ["z"]), "_2": make_op("Relu", ["z"], ["t"])}, 0, 1,
    ),
    "the normalized values are read twice": ({"_6": make_op("Sum", ["dt", "y"], ["dz"])}, 0, 1),
    "the sum of the gradients is read twice": (
        {"_4": make_op("ReluGradient", ["t", "dt"], ["du"]),
         "_5": make_op("SpatialBNGradient", ["x", "s", "du", "mean", "inverse"], ["dx", "ds", "db"])}, 1, 0,
    ),
    "no Relu": ({"_2": make_op("Copy", ["t"], ["u"])}, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_residual_blocks_of_other_forms(name):
    changed, forward, backward = CHANGES[name]
    ran = check(residual(**changed), residual_arrays(), ["t", "rm", "dx", "ds", "db", "dz"])
    assert not LISTED or (ran.count(FUSED_SUM), ran.count(FUSED_GRADIENT)) == (forward, backward)


def test_a_residual_block_in_test_mode():
    arrays = residual_arrays()
    ops = [*residual()[:3], make_op("SpatialBN", ["x", "s", "b", "rm", "rv"], ["y"], is_test=1), *RESIDUAL[1:3]]
    ran = check(ops, arrays, ["t"])
    assert not LISTED or ran[0][-3:] == ("add", "add", "relu")


@pytest.mark.parametrize("precision, tolerance", [("float32", 2e-5), ("bfloat16", 3e-2), ("float16", 4e-3)])
def test_a_block_in_inference(precision, tolerance):
    """Convolution, bias, Sum and Relu are one graph, whose addend and result stay in 16 bits."""
    arrays = {"x": random(2, 8, 6, 6), "w": random(8, 8, 3, 3, seed=1), "b": random(8, seed=2)}
    ops = [
        make_op("Conv", ["x", "w", "b"], ["y"], kernel=3, pad=1),
        make_op("Relu", ["y"], ["y"]),
        make_op("Conv", ["y", "w", "b"], ["t"], kernel=3, pad=1),
        make_op("Conv", ["t", "w", "b"], ["z"], kernel=3, pad=1),
        make_op("Sum", ["z", "y"], ["s"]),
        make_op("Relu", ["s"], ["s"]),
    ]
    ran = check(ops, arrays, ["s"], precision=precision, tolerance=tolerance, own=["copies"])
    copies = [("copies",)] * 2  # of images with filters, and of the result when it is fetched
    graphs = [("conv_fprop", "bias", *after) for after in (["relu"], [], ["add", "relu"])]
    assert not LISTED or sorted(ran) == sorted([*copies, *graphs])


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_losses_read_scores_as_they_are_stored(precision):
    """With 16 bits, with channels last, and both; the gradient is stored as the scores are."""
    arrays = {"x": random(6, 16), "w": random(8, 16, seed=1), "b": random(8, seed=2), "l": np.int32([0, 7, 2, 3, 3, 5])}
    arrays["d"] = np.float32(1)
    given, bounds = ["scores", "l"], {"float32": 2e-5, "bfloat16": 2e-2, "float16": 2e-3}
    dense = [
        make_op("FC", ["x", "w", "b"], ["scores"]),
        make_op("SoftmaxWithLoss", given, ["p", "loss"]),
        make_op("SoftmaxWithLossGradient", [*given, "p", "d"], ["dscores"]),
        make_op("FCGradient", ["x", "w", "dscores"], ["dw", "db", "dx"]),
    ]
    options = {"precision": precision, "engines": ("CUDNN", "CUDA"), "tolerance": bounds[precision]}
    check(dense, arrays, ["loss", "dw", "db", "dx"], **options)
    arrays |= {"x": random(2, 16, 5, 4), "w": random(8, 16, 3, 3, seed=1)}
    arrays["l"] = np.random.default_rng(0).integers(-1, 8, (2, 5, 4)).astype(np.int32)
    images = [
        make_op("Conv", ["x", "w", "b"], ["scores"], kernel=3, pad=1),
        make_op("SpatialSoftmaxWithLoss", given, ["p", "loss"]),
        make_op("SpatialSoftmaxWithLossGradient", [*given, "p", "d"], ["dscores"]),
        make_op("ConvGradient", ["x", "w", "dscores"], ["dw", "db", "dx"], kernel=3, pad=1),
    ]
    check(images, arrays, ["loss", "dw", "db", "dx"], **options)
