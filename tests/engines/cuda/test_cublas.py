"""Products by cuBLAS, called without CuPy: numbers, and that CUDA graphs contain them."""

import threading
from itertools import product

import numpy as np
import pytest

from cudnn_double import cudnn_double
from emulated_gpu import machine
from netbuilder.engines.captures import CaptureError
from netbuilder.engines.cuda import cublas
from netbuilder.engines.cuda.capture import capture
from netbuilder.engines.cuda.code import BFLOAT16
from netbuilder.engines.gpu import gpu
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.capturable import why_not_captured
from on_gpu import ON_GPU, gpus, graphs, launched, run_net
from switches import single
from toy_models import softmax_loss

RNG = np.random.default_rng(9)
PAIRS = [("float32", "float32"), ("float64", "float64"), ("float16", "float16"), ("float16", "float32"),
         (BFLOAT16, BFLOAT16), (BFLOAT16, "float32")]  # fmt: skip
"""Types of factors and of results."""


def bits(values, elements):
    """Small integers as a GPU stores them, which is exact in every type."""
    if elements == BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(elements)


def value(stored, elements):
    if elements == BFLOAT16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored


def factors(stack, rows, columns, inner, of_a=False, of_b=False, elements="float32"):
    """Return random factors, and their arrays on the GPU, stored transposed where that is said; first the product."""
    a, b = (RNG.integers(-4, 5, (stack, *shape)).astype(np.float64) for shape in ((rows, inner), (inner, columns)))
    stored = [np.ascontiguousarray(x.swapaxes(1, 2)) if moved else x for x, moved in ((a, of_a), (b, of_b))]
    with gpu(0) as here:
        return a @ b, *(here.xp.asarray(bits(each, elements)) for each in stored)


def empty(*shape, elements="float32"):
    with gpu(0) as here:
        return here.xp.asarray(bits(np.full(shape, np.nan), elements))


def bound(expected, a, b, y, **options):
    stack, rows, columns = expected.shape
    return cublas.Product(stack, rows, columns, a.size // (stack * rows), **options).bind(a, b, y)


EXTENTS = [(1, 3, 5, 7), (1, 1, 1, 1), (1, 6, 1, 4), (4, 3, 5, 7), (2, 1, 9, 2)]
MOVED = [*product((False, True), repeat=2)]


@pytest.mark.parametrize("elements, result", PAIRS)
@pytest.mark.parametrize("moved", MOVED)
@pytest.mark.parametrize("extents", EXTENTS)
def test_products(one_gpu, extents, moved, elements, result):
    expected, a, b = factors(*extents, *moved, elements)
    y = empty(*expected.shape, elements=result)
    call = bound(expected, a, b, y, transposed=moved, elements=elements, result=result)
    with gpu(0):
        call()
        np.testing.assert_array_equal(value(y.get(), result), expected)


@pytest.mark.parametrize("elements", ["float32", "float64", "float16", BFLOAT16])
def test_parts_of_stacks_that_are_added(one_gpu, elements):
    """A stack of which b is one matrix, added to what y has, from the second matrix of y on."""
    expected, a, b = factors(1, 6, 5, 7, elements=elements)
    y = empty(4, 2, 5, elements=elements)
    with gpu(0) as here:
        y[...] = here.xp.asarray(bits(np.full(y.shape, 3.0), elements))
        part = cublas.Product(3, 2, 5, 7, elements=elements, result=elements, same=(False, True), adds=True)
        part.bind(a, b, y, (0, 0, 1))()
        got = value(y.get(), elements)
    np.testing.assert_array_equal(got[1:], expected.reshape(3, 2, 5) + 3)
    np.testing.assert_array_equal(got[0], np.full((2, 5), 3))


@pytest.mark.parametrize("elements", ["float16", BFLOAT16])
def test_products_of_16_bits_are_added_in_float32(one_gpu, elements):
    """The sum of 4096 and many ones, each too small to be added to it in 16 bits."""
    a, b = np.ones((1, 4097)), np.ones((4097, 1))
    a[0, 0] = 4096
    with gpu(0) as here:
        given = [here.xp.asarray(bits(x, elements)) for x in (a, b)]
        y = empty(1, 1, 1)
        cublas.Product(1, 1, 1, 4097, elements=elements, result="float32").bind(*given, y)()
        assert y.get().item() == 8192


@pytest.mark.emulated
def test_products_are_exact_unless_tf32_is_asked_for():
    """The handle's mode, 16, forbids TF32 and sums in 16 bits; a product with TF32 says so."""
    with gpus(1) as machine:
        expected, a, b = factors(1, 3, 4, 5)
        y, z = empty(1, 3, 4), empty(1, 3, 4)
        with gpu(0):
            a[...] = 1 + 2.0**-12  # it is 1 in TF32
            machine.launches.clear()
            bound(expected, a, b, y)()
            bound(expected, a, b, z, tf32=True)()
            np.testing.assert_array_equal(y.get(), a.get() @ b.get())
            np.testing.assert_array_equal(z.get(), np.ones((1, 3, 5)) @ b.get())
        assert [launch.name for launch in machine.launches] == [
            f"cublas gemm m=4 n=3 k=5 nn f32 f32 compute={how} mode=16 count=1 beta=0" for how in (68, 77)
        ]


def test_a_graph_contains_products(one_gpu):
    """They read what is in memory when the graph is launched; the thread's handle is there before the capture."""
    expected, a, b = factors(1, 3, 4, 4)
    y, z = empty(1, 3, 4), empty(1, 3, 4)
    calls = [bound(expected, a, b, y), bound(expected, y, b, z)]
    with gpu(0):
        for call in calls:
            call()
    graph = capture(0, calls)
    with gpu(0):
        a[...] *= 2
        graph.launch()
        np.testing.assert_array_equal(y.get(), 2 * expected)
        np.testing.assert_array_equal(z.get(), 2 * expected @ b.get())
        calls[0]()  # on the GPU's own stream again
        np.testing.assert_array_equal(y.get(), 2 * expected)


@pytest.mark.emulated
def test_two_streams_cannot_multiply_at_the_same_time():
    """They would share the scratch memory."""
    expected, a, b = factors(1, 3, 4, 5)
    calls = [bound(expected, a, b, empty(1, 3, 4)) for _ in range(2)]
    with gpu(0) as here:
        here.synchronize()
        other = here.xp.cuda.Stream(non_blocking=True)
        calls[0]()
        with other:
            calls[1]()
        here.xp.cuda.Device().synchronize()
    (fault,) = machine.faults()
    assert "writes byte 0 of an array of 33554432 bytes on GPU 0 without waiting for cublas" in fault


@pytest.mark.emulated
def test_a_handle_that_a_capture_would_have_to_make_is_an_error(one_gpu):
    expected, a, b = factors(1, 3, 4, 4)
    call, errors = bound(expected, a, b, empty(1, 3, 4)), []

    def in_a_thread():
        with pytest.raises(CaptureError, match="cublasCreate_v2 returned the status") as caught:
            capture(0, [call])
        errors.append(caught.value.index)

    in_thread(in_a_thread)
    assert errors == [0]


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_two_threads_have_handles_of_their_own(one_gpu):
    found = []

    def multiply():
        for stack in range(1, 20):
            expected, a, b = factors(stack, 3, 4, 5)
            y = empty(*expected.shape)
            call = bound(expected, a, b, y)
            with gpu(0):
                call()
                found.append((y.get() == expected).all())

    threads = [threading.Thread(target=multiply) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 38


def test_what_is_left_to_cupy(one_gpu, monkeypatch):
    """Large extents, bfloat16 before Ampere, and all if the library cannot be called."""
    assert cublas.serves(0, "float32", 2**31 - 1, 1)
    assert not cublas.serves(0, "float32", 2**31, 1)
    monkeypatch.setattr(cublas, "has_tf32", lambda device: False)
    assert not cublas.serves(0, BFLOAT16, 3)
    monkeypatch.setattr(cublas, "library_of", lambda xp: None)
    assert not cublas.serves(0, "float32", 3)
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_allclose(run_net([make_op("MatMul", ["x", "x"], ["y"], trans_b=1)], {"x": x}, "y")["y"],
                               x @ x.T, rtol=1e-5, atol=1e-6)  # fmt: skip


# Operators.

STACKS = {
    "stack": ((2, 3, 4, 5), (2, 3, 5, 6)),
    "one matrix": ((4, 5), (5, 6)),
    "a for all": ((4, 5), (2, 3, 5, 6)),
    "b for all": ((2, 3, 4, 5), (5, 6)),
    "crosswise": ((3, 1, 4, 5), (1, 2, 5, 6)),
    "between": ((3, 1, 2, 4, 5), (3, 4, 1, 5, 6)),
    "row": ((5,), (3, 5, 6)),
    "column": ((3, 4, 5), (5,)),
    "vectors": ((5,), (5,)),
}


@pytest.mark.parametrize("moved", MOVED)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", STACKS)
def test_batch_matmul(one_gpu, name, dtype, moved):
    """Broadcasting and vectors, too: cuBLAS is called for all of them."""
    a, b = (RNG.integers(-4, 5, shape).astype(dtype) for shape in STACKS[name])
    stored = [np.ascontiguousarray(x.swapaxes(-1, -2)) if each and x.ndim > 1 else x for x, each in zip((a, b), moved)]
    options = {"broadcast": 1, "trans_a": int(moved[0]), "trans_b": int(moved[1])}
    ops = [make_op("BatchMatMul", ["a", "b"], [y], **options) for y in "yz"]
    feeds, expected = dict(zip("ab", stored)), np.matmul(a, b).reshape(1) if a.ndim == b.ndim == 1 else np.matmul(a, b)
    workspace = Workspace(engines=("CUDA",))
    for blob, x in feeds.items():
        workspace.feed(blob, x, ON_GPU)
    workspace.create_net(NetDef(name="net", op=ops, device_option=ON_GPU))
    workspace.run_net("net", 3)
    assert graphs(workspace) == [0, 0]
    for name in "yz":
        assert workspace.fetch(name).dtype == dtype
        np.testing.assert_array_equal(workspace.fetch(name), expected)


def test_stacks_that_need_many_calls_are_left_to_cupy(one_gpu):
    """More than 32 of cuBLAS."""
    a, b = np.ones((40, 1, 2, 3), np.float32), np.ones((1, 2, 3, 2), np.float32)
    op = make_op("BatchMatMul", ["a", "b"], ["y"], broadcast=1)
    np.testing.assert_array_equal(run_net([op], {"a": a, "b": b}, "y")["y"], np.full((40, 2, 2, 2), 3))


@pytest.mark.emulated
def test_products_of_a_net_are_captured(one_gpu):
    ops = [make_op("MatMul", ["x", "w"], ["y"]), make_op("BatchMatMul", ["s", "s"], ["z"], trans_b=1),
           make_op("MatMul", ["y", "w"], ["u"], trans_b=1)]  # fmt: skip
    net = NetDef(name="net", op=ops, device_option=ON_GPU)
    x, w, s = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((3, 4), (4, 4), (2, 3, 5)))
    with cudnn_double():
        workspace = Workspace()
        for name, value in {"x": x, "w": w, "s": s}.items():
            workspace.feed(name, value, ON_GPU)
        workspace.create_net(net)
        workspace.run_net("net", 3)
        workspace.feed("x", -x)
        workspace.run_net("net")
        assert graphs(workspace) == [0, 0, 0]
        np.testing.assert_array_equal(workspace.fetch("u"), -x @ w @ w.T)
        np.testing.assert_array_equal(workspace.fetch("z"), s @ s.swapaxes(1, 2))


CLOSE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3}


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("transposed", [False, True])
def test_dense_layers(one_gpu, dtype, transposed):
    """FC with the Relu and its gradient against NumPy in float64: our own kernels after cuBLAS's products."""
    x, w, b, dy = (RNG.standard_normal(shape) for shape in ((6, 7), (7, 5) if transposed else (5, 7), (5,), (6, 5)))
    kind = "FCTransposed" if transposed else "FC"
    ops = [make_op(kind, ["x", "w", "b"], ["y"]), make_op("Relu", ["y"], ["y"]),
           make_op(f"{kind}Gradient", ["x", "w", "dy"], ["dw", "db", "dx"])]  # fmt: skip
    feeds = {name: each.astype(dtype) for name, each in {"x": x, "w": w, "b": b, "dy": dy}.items()}
    x, w, b, dy = (feeds[name].astype(np.float64) for name in feeds)
    factor = w if transposed else w.T
    dw = x.T @ dy
    want = {"y": np.maximum(x @ factor + b, 0), "dw": dw if transposed else dw.T, "db": dy.sum(0), "dx": dy @ factor.T}
    with launched() as titles:
        got = run_net(ops, feeds, want, engines=("CUDA",))
    for name, each in want.items():
        assert got[name].dtype == dtype
        np.testing.assert_allclose(got[name], each, rtol=CLOSE[dtype], atol=CLOSE[dtype] * np.abs(each).max())
    assert ("bias" if transposed else "bias_relu") in titles


def test_a_sum_with_a_bias_is_rounded_once(one_gpu):
    """2048 + 1 is 2048 in float16, and 2048 + 1 + 1 is not."""
    x, w = np.array([[2048, 1]], np.float16), np.ones((1, 2), np.float16)
    op = make_op("FC", ["x", "w", "b"], ["y"])
    got = run_net([op], {"x": x, "w": w, "b": np.ones(1, np.float16)}, "y", engines=("CUDA",))["y"]
    assert got.tolist() == [[2050]]


# Steps of training.


def dense_net(dtype="float32"):
    """The net of a training step: two dense layers, forward, backward, update; and what it is fed."""
    model = ModelHelper("dense")
    model.net.Proto().device_option.CopyFrom(ON_GPU)
    model.param_init_net.Proto().device_option.CopyFrom(ON_GPU)
    x = brew.relu(model, brew.fc(model, "x", "fc1", 6, 8), "fc1")
    x = brew.fc(model, x, "fc2", 8, 3)
    if dtype == "float32":
        loss = softmax_loss(model, x)
    else:
        loss = model.net.AveragedLoss([model.net.SquaredL2Distance([x, "target"], "distance")], "loss")
    model.AddGradientOperators([loss])
    build_sgd(model, 0.1)
    rng = np.random.default_rng(2)
    shapes = {"x": (5, 6), "target": (5, 3), "fc1_w": (8, 6), "fc2_w": (3, 8), "fc1_b": (8,), "fc2_b": (3,)}
    feeds = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    return model, {**feeds, "label": rng.integers(0, 3, 5).astype(np.int32)}


def started(workspace, model, feeds):
    workspace.run_net_once(model.param_init_net)
    for name, each in feeds.items():
        workspace.feed(name, each, ON_GPU)
    workspace.create_net(model.net)


def trained(dtype="float32", **options):
    """Parameters after some steps, and why some are not in the graph."""
    (model, feeds), workspace = dense_net(dtype), Workspace(**options)
    started(workspace, model, feeds)
    workspace.run_net(model.net, 6)
    (plan,) = workspace.net(model.net.Name()).plan_ahead()
    captured = plan.captured()
    assert len({each.graph for each in captured if each.graph >= 0}) <= 1
    why = {each.why for each in captured if each.graph < 0}
    return [workspace.fetch(name) for name in ("fc1_w", "fc2_w", "fc2_b", "loss")], why


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_without_cudnn_is_one_graph(one_gpu, dtype):
    """Equal to the bit to the steps without a graph; and near to plain kernels."""
    replayed, why = trained(dtype, engines=("CUDA",))
    eager, _ = trained(dtype, engines=("CUDA",), without=single("cuda_graphs"))
    plain, _ = trained(dtype, engines=())
    assert why <= {"it runs on the host"}
    for a, b, c in zip(replayed, eager, plain, strict=True):
        assert a.dtype == dtype
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engines", [("CUDA",), ("CUDA", "CUDNN")])
def test_nothing_divides_a_step_of_dense_layers(engines, dtype):
    """One segment, after the counter of iterations; equal to the bit to the steps without a graph."""
    with gpus(1) as machine, cudnn_double():
        (model, feeds), workspace = dense_net(dtype), Workspace(engines=engines)
        started(workspace, model, feeds)
        workspace.run_net(model.net, 3)
        (plan,) = workspace.net(model.net.Name()).plan_ahead()
        alone = [bool(why_not_captured(step)) for step in plan.steps]
        machine.launches.clear()
        workspace.run_net(model.net, 3)
        assert {launch.name for launch in machine.launches} == {"graph"}
        assert len(machine.launches) == 3
        replayed, _ = trained(dtype, engines=engines)
        eager, _ = trained(dtype, engines=engines, without=single("cuda_graphs"))
        products = {launch.name.split()[6] for launch in machine.launches if launch.name.startswith("cublas")}
    first = alone.index(False)
    assert not any(alone[first:]) and len(alone) - first > 5
    assert products == {"f64" if dtype == "float64" else "f32"}
    for a, b in zip(replayed, eager, strict=True):
        np.testing.assert_array_equal(a, b)
