"""Sequences of kernels: layouts passed on, fused kernels, calls that allocate nothing."""

import tracemalloc

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines import onednn
from netbuilder.engines.llvm.elementwise import elementwise
from netbuilder.engines.onednn import kernels_conv, kernels_dense, kernels_norm
from netbuilder.engines.traced import ELEMENTWISE
from netbuilder.ops.core.extensions import KeptForGradient
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find, prepared_kernels
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.run_context import KernelContext
from prepared import Value, bind

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn.registration import kernel_table
from netbuilder.ops.core.contexts import NOT_NEGATIVE

TABLE = {**dict.fromkeys(ELEMENTWISE, elementwise), **kernel_table()}


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Chain:
    """Operators run by their kernels, one after another; counts the images that had to change their layout."""

    def __init__(self, **arrays):
        self.values = {name: Value.of(array) for name, array in arrays.items()}
        self.exact = {name: array.astype(np.float64) for name, array in arrays.items()}
        self.reordered = []

    def run(self, op_type, inputs, outputs, make=None, relu=False, **args):
        op_def = make_op(op_type, inputs, outputs, **args)
        values = [self.values[n] for n in inputs]
        bound = bind(make or TABLE[op_type], decode(find(op_type), op_def), values)
        assert bound is not None, f"{op_type} is not served"
        for value, wanted in zip(values, bound.prepared.inputs):
            if wanted is not None and wanted != value.spec and len(wanted.shape) > 3 and value.spec.layout is not None:
                self.reordered.append((op_type, value.spec, wanted))
        bound.call()
        self.values.update(zip(outputs, bound.outputs))
        self.exact = interpret([op_def], self.exact)
        if relu:
            self.exact = interpret([make_op("Relu", outputs[:1], outputs[:1])], self.exact)

    def check(self, *names, atol=1e-4):
        for name in names:
            want = self.exact[name]
            scale = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(self.values[name].plain(), want, atol=atol * scale, err_msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf, None])
def test_max_pool_of_many_elements_finds_what_is_not_finite(bad, threads):
    """The library's pool, which needs that."""
    x = np.abs(random(3, 16, 48, 32))
    if bad is not None:
        x[2, 15, 47, 31] = bad
    op_def = make_op("MaxPool", ["x"], ["y"], kernel=2, stride=2)
    context = KernelContext(op_def, None)
    pool, options = decode(find("MaxPool"), op_def), {"threads": threads, "context": context, "engines": ["ONEDNN"]}
    bound = bind(TABLE["MaxPool"], pool, [Value.of(x)], **options)
    bound.call()
    assert "matmul" in bound.prepared.name
    np.testing.assert_array_equal(bound.outputs[0].plain(), interpret([op_def], {"x": x})["y"])


def test_max_pool_keeps_positions_for_a_gradient_only():
    x = Value.of(np.abs(random(2, 16, 8, 8)))
    x.notes[NOT_NEGATIVE] = True
    op_def = make_op("MaxPool", ["x"], ["y"], kernel=2, stride=2)
    with_gradient, without = (
        bind(TABLE["MaxPool"], decode(find("MaxPool"), op_def), [x], trains=trains) for trains in (True, False)
    )
    assert with_gradient.prepared.get(KeptForGradient)
    assert not without.prepared.get(KeptForGradient)
    for bound in (with_gradient, without):
        bound.call()
    np.testing.assert_array_equal(with_gradient.outputs[0].plain(), without.outputs[0].plain())


@pytest.mark.parametrize("order, shape", [("NCHW", (2, 32, 6, 6)), ("NHWC", (2, 6, 6, 32))])
def test_two_convolutions_hand_over_without_a_reorder(order, shape):
    w = (48, 32, 3, 3) if order == "NCHW" else (48, 3, 3, 32)
    v = (16, 48, 1, 1) if order == "NCHW" else (16, 1, 1, 48)
    chain = Chain(x=random(*shape), w=random(*w, seed=1), v=random(*v, seed=2))
    chain.run("Conv", ["x", "w"], ["y"], kernel=3, pad=1, order=order)
    chain.run("Conv", ["y", "v"], ["z"], kernel=1, order=order)
    assert chain.values["y"].spec.layout is not None
    assert chain.reordered == []
    chain.check("y", "z")


def test_after_a_convolution_in_narrow_groups_nothing_runs_on_reference_code():
    """Four channels to a group make blocks of four, which batch normalization and pooling have no fast code for."""
    chain = Chain(x=random(1, 64, 8, 8), w=random(64, 4, 3, 3, seed=1))
    chain.run("Conv", ["x", "w"], ["y"], kernel=3, group=16)
    statistics = [Value.of(np.ones(64, np.float32)) for _ in range(4)]
    names = ["y", "s", "b", "m", "v"]
    norm = decode(find("SpatialBN"), make_op("SpatialBN", names, ["z", "m", "v", "sm", "si"]))
    made = [bind(TABLE["SpatialBN"], norm, [chain.values["y"], *statistics])]
    for op_type in ("MaxPool", "AveragePool"):
        op = decode(find(op_type), make_op(op_type, ["y"], ["p"], kernel=2))
        made.append(bind(TABLE[op_type], op, [chain.values["y"]]))
    for bound in made:
        assert "ref" not in bound.prepared.name


def residual_arrays(fed):
    arrays = {"x": fed, "w1": random(64, 3, 7, 7, seed=1) / 10, "w2": random(64, 64, 3, 3, seed=2) / 20}
    for k in (1, 2):
        arrays |= {f"s{k}": np.ones(64, np.float32), f"b{k}": np.zeros(64, np.float32)}
        arrays |= {f"rm{k}": np.zeros(64, np.float32), f"rv{k}": np.ones(64, np.float32)}
    return arrays


@pytest.mark.parametrize("fused", [False, True])
def test_a_residual_block_changes_no_layout_forward_or_backward(fused):
    chain = Chain(**residual_arrays(random(4, 3, 32, 32)), dy=random(4, 64, 4, 4, seed=5))
    bn1 = ["s1", "b1", "rm1", "rv1"], ["rm1", "rv1", "sm1", "si1"]
    bn2 = ["s2", "b2", "rm2", "rv2"], ["rm2", "rv2", "sm2", "si2"]
    chain.run("Conv", ["x", "w1"], ["c1"], kernel=7, stride=2, pad=3)
    if fused:
        chain.run("SpatialBN", ["c1", *bn1[0]], ["r1", *bn1[1]], make=kernels_norm.fused_bn_relu, relu=True)
    else:
        chain.run("SpatialBN", ["c1", *bn1[0]], ["n1", *bn1[1]])
        chain.run("Relu", ["n1"], ["r1"])
    chain.run("MaxPool", ["r1"], ["p"], kernel=3, stride=2, pad=1)
    chain.run("Conv", ["p", "w2"], ["c2"], kernel=3, pad=1)
    chain.run("SpatialBN", ["c2", *bn2[0]], ["n2", *bn2[1]])
    chain.run("Sum", ["n2", "p"], ["sum"])
    chain.run("Relu", ["sum"], ["r2"])
    chain.run("AveragePool", ["r2"], ["a"], kernel=2, stride=2)
    chain.check("r1", "p", "r2", "a", "rm1", "rv1", "sm1", "si1")

    chain.run("AveragePoolGradient", ["r2", "a", "dy"], ["dr2"], kernel=2, stride=2)
    chain.run("ReluGradient", ["r2", "dr2"], ["dsum"])
    chain.run("SpatialBNGradient", ["c2", "s2", "dsum", "sm2", "si2"], ["dc2", "ds2", "db2"])
    chain.run("ConvGradient", ["p", "w2", "dc2"], ["dw2", "dp"], kernel=3, pad=1, no_bias=1)
    chain.run("Sum", ["dp", "dsum"], ["dp2"])
    chain.run("MaxPoolGradient", ["r1", "p", "dp2"], ["dr1"], kernel=3, stride=2, pad=1)
    if fused:
        chain.exact = interpret([make_op("ReluGradient", ["r1", "dr1"], ["dr1"])], chain.exact)
        chain.run(
            "SpatialBNGradient", ["c1", "s1", "dr1", "sm1", "si1"], ["dc1", "ds1", "db1"],
            make=kernels_norm.fused_bn_relu_gradient,
        )  # fmt: skip
    else:
        chain.run("ReluGradient", ["r1", "dr1"], ["dn1"])
        chain.run("SpatialBNGradient", ["c1", "s1", "dn1", "sm1", "si1"], ["dc1", "ds1", "db1"])
    chain.run("ConvGradient", ["x", "w1", "dc1"], ["dw1"], kernel=7, stride=2, pad=3, no_bias=1)
    chain.check("dw1", "dw2", "ds1", "db1", "ds2", "db2")
    assert chain.reordered == []


def test_the_fused_gradient_needs_the_fused_forward_operator():
    values = [Value.of(random(*s)) for s in ((2, 16, 4, 4), (16,), (2, 16, 4, 4), (16,), (16,))]
    op_def = make_op("SpatialBNGradient", ["x", "s", "dy", "sm", "si"], ["dx", "ds", "db"])
    op = decode(find("SpatialBNGradient"), op_def)
    assert bind(kernels_norm.fused_bn_relu_gradient, op, values) is None


PARTS = [((4, 32, 5, 4), "NCHW"), ((3, 17, 4, 4), "NCHW"), ((3, 5, 4, 32), "NHWC"), ((4, 16, 7), "NCHW")]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("weight", [None, 0.0])
@pytest.mark.parametrize("shape, order", PARTS)
def test_the_gradient_of_a_relu_and_the_sums_of_a_part_in_one_pass(shape, order, weight, inplace):
    """In float64: of a part of a batch, after the normalization with the Relu; the gradient of the Relu is exact."""
    channels = shape[1 if order == "NCHW" else -1]
    s, b, rm, rv = (random(channels, seed=i) for i in range(1, 5))
    part = random(*shape, seed=9)
    with_weight = {} if weight is None else {"w": np.float32([weight])}
    chain = Chain(x=part + 2, s=s, b=b, rm=rm, rv=np.abs(rv), dy=random(*shape, seed=6), **with_weight)
    chain.exact = interpret([make_op("ChannelStats", ["x"], ["sums", "squares"], order=order)], chain.exact)
    chain.values.update((name, Value.of(chain.exact[name].astype(np.float32))) for name in ("sums", "squares"))
    names = ["x", "s", "b", "rm", "rv", "sums", "squares"]
    outputs = ["y", "rm", "rv", "sm", "si"]
    args = {"num_batches": 2, "order": order}
    chain.run("SpatialBN", names, outputs, make=kernels_norm.fused_bn_relu, relu=True, **args)
    stats = make_op("ChannelBackpropStats", ["x", "sm", "si", "dz"], ["ds", "db"], order=order)
    values = [chain.values[name] for name in ("x", "sm", "si", "dy")]
    op, y = decode(find(stats.type), stats), chain.values["y"].plain()
    bound = bind(kernels_norm.fused_relu_gradient_stats, op, values, inplace=inplace)
    assert "ref" not in bound.prepared.name
    bound.call()
    dz = bound.outputs[0].plain()
    np.testing.assert_array_equal(dz, np.where(y > 0, chain.values["dy"].plain(), 0))
    chain.values.update(zip(("dz", "ds", "db"), bound.outputs))
    chain.exact = interpret([make_op("ReluGradient", ["y", "dy"], ["dz"]), stats], chain.exact)
    more = [] if weight is None else ["n", "w"]
    if more:
        chain.values["n"] = Value.of(np.float32([7]))
        chain.exact["n"] = np.float64([7])
    chain.run("SpatialBNGradient", ["x", "s", "dz", "sm", "si", "ds", "db", *more], ["dx", "dsx", "dbx"], **args)
    chain.check("y", "dz", "ds", "db", "dx")


def test_a_nan_in_a_part_stays_in_its_channel():
    """The statistics of the channel are NaN, so that all of it is, as with separate kernels; others are exact."""
    x = random(2, 16, 4, 4)
    x[1, 3, 2, 2] = np.nan
    chain = Chain(x=x, **{n: np.ones(16, np.float32) for n in ("s", "b", "rm", "rv")}, dy=random(2, 16, 4, 4))
    chain.run("ChannelStats", ["x"], ["p", "q"])
    names = ["x", "s", "b", "rm", "rv", "p", "q"]
    outputs = ["y", "rm", "rv", "sm", "si"]
    chain.run("SpatialBN", names, outputs, make=kernels_norm.fused_bn_relu, relu=True, num_batches=2)
    stats = make_op("ChannelBackpropStats", ["x", "sm", "si", "dz"], ["ds", "db"])
    values = [chain.values[n] for n in ("x", "sm", "si", "dy")]
    bound = bind(kernels_norm.fused_relu_gradient_stats, decode(find(stats.type), stats), values)
    bound.call()
    chain.values.update(zip(("dz", "ds", "db"), bound.outputs))
    chain.exact = interpret([make_op("ReluGradient", ["y", "dy"], ["dz"]), stats], chain.exact)
    chain.run("SpatialBNGradient", ["x", "s", "dz", "sm", "si", "ds", "db"], ["dx", "dsx", "dbx"], num_batches=2)
    assert np.isnan(chain.exact["dx"]).any(axis=(0, 2, 3)).nonzero()[0].tolist() == [3]
    for name in ("y", "ds", "dx"):
        np.testing.assert_array_equal(np.isnan(chain.values[name].plain()), np.isnan(chain.exact[name]), name)


def test_the_fused_sums_need_the_fused_forward_operator():
    values = [Value.of(random(*s)) for s in ((2, 16, 4, 4), (16,), (16,), (2, 16, 4, 4))]
    op = decode(find("ChannelBackpropStats"), make_op("ChannelBackpropStats", ["x", "sm", "si", "dy"], ["ds", "db"]))
    assert bind(kernels_norm.fused_relu_gradient_stats, op, values) is None


@pytest.mark.parametrize("shape", [(32, 64, 64), (5, 3, 7)])
def test_fused_fc_relu(shape):
    rows, inner, columns = shape
    chain = Chain(x=random(rows, inner), w=random(columns, inner, seed=1), b=random(columns, seed=2))
    chain.run("FC", ["x", "w", "b"], ["y"], make=kernels_dense.fused_fc_relu, relu=True)
    assert (chain.values["y"].plain() == 0).any()
    chain.check("y")


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("channels", [16, 17])
def test_fused_conv(channels, relu, inplace):
    arrays = {"x": random(2, 16, 6, 6), "w": random(channels, 16, 3, 3, seed=1), "b": random(channels, seed=2)}
    addend = random(2, channels, 4, 4, seed=3)
    op_def = make_op("Conv", list(arrays), ["y"], kernel=3)
    values = [*map(Value.of, arrays.values()), Value.of(addend)]

    def make(op, ctx, x, w, b, add):
        return kernels_conv.fused_conv(op, ctx, [x, w, b], relu=relu, add=add)

    bound = bind(make, decode(find("Conv"), op_def), values, inplace=inplace)
    bound.call()
    want = interpret([op_def], {n: a.astype(np.float64) for n, a in arrays.items()})["y"] + addend
    np.testing.assert_allclose(bound.outputs[0].plain(), np.maximum(want, 0) if relu else want, atol=1e-4)
    if not inplace:
        bound.call()  # the addend is still there
        np.testing.assert_allclose(bound.outputs[0].plain(), np.maximum(want, 0) if relu else want, atol=1e-4)


@pytest.mark.parametrize("op_type", ["Conv", "FC"])
def test_a_fused_relu_changes_no_positive_normal_number(op_type):
    limits = np.finfo(np.float32)
    kept = np.float32([limits.tiny, 1.5 * limits.tiny, 1e-30, 0.1, 1, 1e30, limits.max, np.inf, np.nan])
    zeros = np.float32([0, -0.0, -limits.tiny, -1, limits.min, -limits.smallest_subnormal])
    x, image = np.concatenate([kept, zeros]), (1, 1) if op_type == "Conv" else ()
    values = [Value.of(a) for a in (x.reshape(-1, 1, *image), np.ones((16, 1, *image), np.float32), np.zeros(16, "f"))]
    op_def = make_op(op_type, ["x", "w", "b"], ["y"], **({"kernel": 1} if image else {}))

    def make(op, ctx, *specs):
        fused = kernels_dense.fused_fc_relu
        return kernels_conv.fused_conv(op, ctx, specs, relu=True) if image else fused(op, ctx, *specs)

    bound = bind(make, decode(find(op_type), op_def), values)
    bound.call()
    y = bound.outputs[0].plain().reshape(len(x), 16)
    np.testing.assert_array_equal(y, np.broadcast_to(np.append(kept, np.zeros_like(zeros))[:, None], y.shape))
    assert not np.signbit(y[len(kept) :]).any()


CALLS = {
    "Conv": ([(2, 17, 6, 6), (5, 17, 3, 3), (5,)], 1, {"kernel": 3}),
    "ConvGradient": ([(2, 17, 6, 6), (5, 17, 3, 3), (2, 5, 4, 4)], 3, {"kernel": 3}),
    "FC": ([(32, 64), (64, 64), (64,)], 1, {}),
    "FCGradient": ([(32, 64), (64, 64), (32, 64)], 3, {}),
    "SpatialBN": ([(4, 17, 5, 5), (17,), (17,), (17,), (17,)], 5, {}),
    "Relu": ([(64, 64)], 1, {}),
    "Sum": ([(64, 64)] * 3, 1, {}),
    "AveragePool": ([(2, 17, 6, 6)], 1, {"kernel": 2}),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op_type", CALLS)
def test_calls_allocate_no_arrays(op_type, threads):
    shapes, n_out, args = CALLS[op_type]
    names = [f"i{k}" for k in range(len(shapes))]
    outputs = ["y", "i3", "i4", "sm", "si"] if op_type == "SpatialBN" else [f"o{k}" for k in range(n_out)]
    op = decode(find(op_type), make_op(op_type, names, outputs, **args))
    values = [Value.of(np.abs(random(*shape, seed=k))) for k, shape in enumerate(shapes)]
    bound = bind(TABLE[op_type], op, values, threads=threads)
    bound.call()
    # NumPy before 2.3 takes a buffer of 8 kB, no array, to add up along an axis.
    limit = 4096 if np.lib.NumpyVersion(np.__version__) >= "2.3.0" else 12288
    for _ in range(20):  # other threads of the test's process allocate now and then
        tracemalloc.start()
        for _ in range(10):
            bound.call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak < limit:
            break
    assert peak < limit, f"{peak} bytes at a time"


@pytest.mark.parametrize(
    "update",
    [
        ("MomentumSGDUpdate", ["w_grad", "m", "lr", "w"], ["w_grad", "m", "w"], {"momentum": 0.9}),
        ("Adam", ["w", "m", "m2", "w_grad", "lr", "it"], ["w", "m", "m2"], {}),
        ("Adagrad", ["w", "m2", "w_grad", "lr"], ["w", "m2"], {}),
        ("WeightedSum", ["w", "one", "w_grad", "lr"], ["w"], {}),
    ],
    ids=lambda u: u[0],
)
def test_padding_of_weights_stays_zero_through_updates(update):
    op_type, inputs, outputs, args = update
    ops = [
        make_op("Conv", ["x", "w"], ["y"], kernel=3),
        make_op("ConvGradient", ["x", "w", "y"], ["w_grad", "x_grad"], kernel=3, no_bias=1),
        make_op(op_type, inputs, outputs, **args),
    ]
    found = []
    for engines in ((), None):
        ws = Workspace(engines=engines)
        ws.feed("x", random(2, 5, 6, 6))
        ws.feed("w", random(17, 5, 3, 3, seed=1) / 10)
        for name in ("m", "m2"):
            ws.feed(name, np.zeros((17, 5, 3, 3), np.float32))
        ws.feed("lr", np.array([0.01], np.float32))
        ws.feed("one", np.ones(1, np.float32))
        ws.feed("it", np.zeros(1, np.int64))
        ws.create_net(NetDef(name="net", op=ops))
        for _ in range(3):
            ws.run_net("net")
        found.append(ws.fetch("w"))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-4)
    held = ws.get("w")
    assert held.spec.layout is not None, "the weights are kept in the layout of their gradient"
    assert held.spec.nbytes > found[1].nbytes, "and that one is padded"
    raw = np.abs(held.buffer.view(np.float32)).sum(dtype=np.float64)
    np.testing.assert_allclose(raw, np.abs(found[1]).sum(dtype=np.float64), rtol=1e-9)


def test_every_kernel_is_registered_once():
    onednn.register_kernels()
    onednn.register_kernels()
    for op_type in kernel_table():
        engines = [row.engine for row in prepared_kernels(op_type, 0)]
        assert engines.count("ONEDNN") == 1, op_type
