"""Products by cuBLAS, called without CuPy: numbers, and that CUDA graphs contain them."""

import threading

import numpy as np
import pytest

from cudnn_double import cudnn_on_emulated_gpus
from cupy_double import gpus
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.engines.cuda import cublas
from netbuilder.ops.engines.cuda.capture import CaptureError, capture
from netbuilder.ops.engines.gpu import gpu
from netbuilder.optimizers import build_sgd
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, graphs

RNG = np.random.default_rng(9)


def factors(stack, rows, columns, inner, of_a=False, of_b=False):
    """Return random factors, exact in float32, and their arrays on the GPU, stored transposed where that is said."""
    a, b = (RNG.integers(-8, 9, (stack, *shape)).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
    stored = [np.ascontiguousarray(x.swapaxes(1, 2)) if moved else x for x, moved in ((a, of_a), (b, of_b))]
    with gpu(0) as here:
        return a @ b, (here.xp.asarray(stored[0]), of_a), (here.xp.asarray(stored[1]), of_b)


def empty(*shape):
    with gpu(0) as here:
        return here.xp.full(shape, np.nan, np.float32)


@pytest.mark.parametrize("of_b", [False, True])
@pytest.mark.parametrize("of_a", [False, True])
@pytest.mark.parametrize("extents", [(1, 3, 5, 7), (1, 1, 1, 1), (1, 6, 1, 4), (4, 3, 5, 7), (2, 1, 9, 2)])
def test_products(one_gpu, extents, of_a, of_b):
    expected, a, b = factors(*extents, of_a, of_b)
    y = empty(*expected.shape)
    call = cublas.product(a, b, y)
    with gpu(0):
        call()
        np.testing.assert_array_equal(y.get(), expected)


def test_a_graph_contains_products(one_gpu):
    """They read what is in memory when the graph is launched; the thread's handle is there before the capture."""
    expected, a, b = factors(1, 3, 4, 4)
    y, z = empty(1, 3, 4), empty(1, 3, 4)
    calls = [cublas.product(a, b, y), cublas.product((y, False), b, z)]
    with gpu(0):
        for call in calls:
            call()
    graph = capture(0, calls)
    with gpu(0):
        a[0][...] *= 2
        graph.launch()
        np.testing.assert_array_equal(y.get(), 2 * expected)
        np.testing.assert_array_equal(z.get(), 2 * expected @ b[0].get())
        calls[0]()  # on the GPU's own stream again
        np.testing.assert_array_equal(y.get(), 2 * expected)


@pytest.mark.emulated
def test_a_handle_that_a_capture_would_have_to_make_is_an_error(one_gpu):
    _, a, b = factors(1, 3, 4, 4)
    call, errors = cublas.product(a, b, empty(1, 3, 4)), []

    def in_a_thread():
        with pytest.raises(CaptureError, match="cublasCreate_v2 returned the status") as caught:
            capture(0, [call])
        errors.append(caught.value.index)

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert errors == [0]


def test_two_threads_have_handles_of_their_own(one_gpu):
    found = []

    def multiply():
        for stack in range(1, 20):
            expected, a, b = factors(stack, 3, 4, 5)
            y = empty(*expected.shape)
            call = cublas.product(a, b, y)
            with gpu(0):
                call()
                found.append((y.get() == expected).all())

    threads = [threading.Thread(target=multiply) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 38


def test_the_double_of_cupy_has_none():
    with gpus(1):
        assert not cublas.serves(3)


def test_large_extents_are_left_to_cupy(one_gpu):
    assert cublas.serves(2**31 - 1, 1)
    assert not cublas.serves(2**31, 1)


@pytest.mark.emulated
def test_products_of_a_net_are_captured(one_gpu):
    ops = [make_op("MatMul", ["x", "w"], ["y"]), make_op("BatchMatMul", ["s", "s"], ["z"], trans_b=1),
           make_op("MatMul", ["y", "w"], ["u"], trans_b=1)]  # fmt: skip
    net = NetDef(name="net", op=ops, device_option=ON_GPU)
    x, w, s = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((3, 4), (4, 4), (2, 3, 5)))
    with cudnn_on_emulated_gpus():
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


@pytest.mark.emulated
def test_a_step_of_dense_layers_in_float32_is_one_graph(one_gpu):
    """Forward, backward and update; equal to the bit to the steps without a graph."""

    def trained(**options):
        model = ModelHelper("dense")
        model.net.Proto().device_option.CopyFrom(ON_GPU)
        model.param_init_net.Proto().device_option.CopyFrom(ON_GPU)
        x = brew.relu(model, brew.fc(model, "x", "fc1", 6, 8), "fc1")
        x = brew.fc(model, x, "fc2", 8, 3)
        _, loss = model.net.SoftmaxWithLoss([x, "label"], ["softmax", "loss"])
        model.AddGradientOperators([loss])
        build_sgd(model, 0.1)
        rng, workspace = np.random.default_rng(2), Workspace(**options)
        workspace.feed("x", rng.standard_normal((5, 6)).astype(np.float32), ON_GPU)
        workspace.feed("label", rng.integers(0, 3, 5).astype(np.int32), ON_GPU)
        workspace.run_net_once(model.param_init_net)
        for name, shape in {"fc1_w": (8, 6), "fc2_w": (3, 8)}.items():
            workspace.feed(name, rng.standard_normal(shape).astype(np.float32), ON_GPU)
        workspace.create_net(model.net)
        workspace.run_net(model.net, 6)
        (plan,) = workspace.net(model.net.Name()).plan_ahead()
        why = {each.why for each in plan.captured() if each.graph < 0}
        return [workspace.fetch(name) for name in ("fc1_w", "fc2_w", "fc2_b", "loss")], why

    with cudnn_on_emulated_gpus():
        replayed, why = trained()
        eager, _ = trained(without=["cuda_graphs"])
    assert why <= {"it runs on the host"}
    for a, b in zip(replayed, eager, strict=True):
        np.testing.assert_array_equal(a, b)
