"""Nets with float16 values, as Caffe2's scripts for GPUs have them: on cuDNN's kernels, near the numbers of float64."""

from collections import Counter

import numpy as np
import pytest

from checks import interpret
from kernel_cases import CONVOLUTIONS, normalization, random
from netbuilder import optimizers, parallel
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.model import ModelHelper, brew
from netbuilder.model.initializers import PseudoFP16Initializer
from netbuilder.parallel import GradientScaling
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import LISTED, assert_same, with_cudnn
from parallel_models import Task, no_input
from switches import single
from toy_models import scaled_loss

pytestmark = pytest.mark.gpu

GPU = make_device_option(PROTO_CUDA, 0)
BOUND = 2e-3  # two roundings to 11 bits
BN_OUTPUTS = ["y", "rm", "rv", "mean", "inverse"]
STATISTICS = ("s", "b", "rm", "rv")


def halves(arrays):
    """Arrays in float16, but for the statistics of a normalization."""
    return {n: x if n in STATISTICS else x.astype(np.float16) for n, x in arrays.items()}


def computed(ops, arrays, wanted):
    net = NetDef(name="net")
    net.op.extend(ops)
    net.device_option.CopyFrom(GPU)
    workspace = Workspace(engines=("CUDNN", "CUDA"), without=single("cuda_graphs"))
    for name, array in arrays.items():
        workspace.feed(name, array)
    workspace.create_net(net, observable=wanted)
    workspace.run_net("net")
    return {name: workspace.fetch(name) for name in wanted}


def check(ops, arrays):
    """Compare all results with those of float64; return the operations of each graph, and our kernels but copies."""
    want = interpret(ops, {name: array.astype(np.float64) for name, array in arrays.items()})
    wanted = [name for op in ops for name in op.output]
    with with_cudnn() as (machine, cudnn):
        got = computed(ops, arrays, wanted)
    for name in wanted:
        scale = max(float(np.abs(want[name]).max()), 1.0)
        np.testing.assert_allclose(got[name], want[name], rtol=BOUND, atol=BOUND * scale, err_msg=name)
    names = [launch.name.rpartition("_")[0] for launch in machine.launches]
    return [] if cudnn is None else cudnn.ran_graphs, [
        name for name in names if name.startswith("nb_") and name != "nb_copies"
    ]


def check_with_gradient(op_def, arrays):
    exact = {name: array.astype(np.float64) for name, array in arrays.items()}
    y = interpret([op_def], exact)[op_def.output[0]]
    gradients, _ = operator_gradient(op_def, {0: "dy"})
    return check([op_def, *gradients], {**arrays, "dy": random(*y.shape, seed=9).astype(np.float16)})


def convolution(name):
    x, w, arguments = CONVOLUTIONS[name]
    arrays = halves({"x": random(*x), "w": random(*w, seed=1), "bias": random(w[0], seed=2)})
    ran, own = check_with_gradient(make_op("Conv", [*arrays], ["y"], **arguments), arrays)
    assert not LISTED or (ran == [("conv_fprop", "bias"), ("conv_wgrad",), ("reduction",), ("conv_dgrad",)] and not own)


def normalized():
    arrays = halves(normalization((4, 8, 5, 3), 8))
    ops = [
        make_op("SpatialBN", [*arrays], BN_OUTPUTS),
        make_op("Relu", ["y"], ["y"]),
        make_op("ReluGradient", ["y", "dy"], ["dr"]),
        make_op("SpatialBNGradient", ["x", "s", "dr", "mean", "inverse"], ["dx", "ds", "db"]),
    ]
    ran, own = check(ops, {**arrays, "dy": random(4, 8, 5, 3, seed=9).astype(np.float16)})
    assert not LISTED or [kinds[0] for kinds in ran] == ["batchnorm", "cmp_gt"]
    assert not LISTED or set(own) <= {"nb_relu_gradient", "nb_running_statistics"}


def dense():
    arrays = halves({"x": random(6, 16), "w": random(8, 16, seed=1), "bias": random(8, seed=2)})
    ran, own = check_with_gradient(make_op("FC", [*arrays], ["y"]), arrays)
    assert not LISTED or (ran == [("matmul", "add"), ("matmul",), ("reduction",), ("matmul",)] and not own)


def pooled(kind):
    arrays = halves({"x": np.round(4 * random(2, 8, 7, 6))})
    pool = make_op(f"{kind}Pool", ["x"], ["y"], kernel=3, stride=2, pad=1)
    ran, own = check_with_gradient(pool, arrays)
    title = f"nb_{kind.lower()}_pool"
    assert not LISTED or (not ran and own == [title, f"{title}_gradient"])


CASES = {
    **{f"Conv {name}": lambda name=name: convolution(name) for name in ("7x7", "stride", "groups", "1-D")},
    "SpatialBN and Relu": normalized,
    "FC": dense,
    "MaxPool": lambda: pooled("Max"),
    "AveragePool": lambda: pooled("Average"),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    CASES[name]()


HALF = {"WeightInitializer": PseudoFP16Initializer, "BiasInitializer": PseudoFP16Initializer}


def forward(model, loss_scale):
    """Convolutions, a normalization, a sum, both pools and a dense layer in float16; scores and losses in float32."""
    x = model.net.FloatToHalf("data", "data_half")
    x = brew.relu(model, brew.conv(model, x, "conv1", 8, 8, kernel=3, pad=1, **HALF), "conv1")
    y = brew.spatial_bn(model, brew.conv(model, x, "conv2", 8, 8, kernel=3, pad=1, **HALF), "bn", 8, is_test=False)
    x = brew.relu(model, brew.sum(model, [y, x], "block"), "block")
    x = brew.average_pool(model, brew.max_pool(model, x, "largest", kernel=2, stride=2), "pooled", kernel=4)
    x = model.net.HalfToFloat(brew.fc(model, x, "fc", 8, 4, **HALF), "scores")
    return scaled_loss(model, x, loss_scale)


def losses_of_a_script(machine, cudnn, **options):
    """Train on one batch; return the losses. What the GPU was given is that of the last step."""
    model = ModelHelper("net")
    record = parallel.Parallelize_GPU(
        model, no_input, forward, devices=[0], gradient_scaling=GradientScaling(initial=1024.0),
        optimizer_builder_fun=lambda model: optimizers.build_multi_precision_sgd(
            model, 0.05, momentum=0.9, policy="fixed"
        ),
    )  # fmt: skip
    workspace = Workspace(engines=("CUDNN", "CUDA"), **options)
    losses = []
    for number, batch in enumerate([*Task(shape=(8, 8, 8, 8), steps=1).batches()] * 8):
        for name, value in batch.items():
            workspace.feed("gpu_0/" + name, value, record.devices.options[0])
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
        if cudnn is not None:
            cudnn.ran_graphs.clear()
        machine.launches.clear()
        parallel.RunNet(model, workspace=workspace)
        losses.append(workspace.fetch("gpu_0/loss").item())
    return losses


def test_a_net_of_a_script():
    """Each operator has its kernel, with channels last; masters, too, so that no filter is transposed in a step."""
    with with_cudnn() as (machine, cudnn):
        losses = losses_of_a_script(machine, cudnn, without=single("cuda_graphs"))
    assert losses[-1] < 0.7 * losses[0]
    ran = Counter(kinds[0] for kinds in cudnn.ran_graphs) if LISTED else {}
    assert not LISTED or ran == {
        "conv_fprop": 2, "conv_wgrad": 2, "conv_dgrad": 2, "batchnorm": 1, "cmp_gt": 1, "matmul": 3, "reduction": 3,
    }  # fmt: skip
    launched = Counter(launch.name for launch in machine.launches)
    own = Counter(name.rpartition("_")[0] for name in launched.elements() if name.startswith("nb_"))
    assert not LISTED or (
        own["nb_updates"] == 1 and own["nb_half_to_float"] + own["nb_float_to_half"] == 3
    )  # data, scores, gradient
    assert not LISTED or own["nb_copies"] <= 1, "of the images"
    assert {name for name in launched if not name.startswith(("nb_", "cudnn "))} == set()


def test_graphs_of_a_script_compute_the_same_bits():
    with with_cudnn() as (machine, cudnn):
        replayed = losses_of_a_script(machine, cudnn)
        assert not LISTED or [launch.name for launch in machine.launches] == ["graph"]
        eager = losses_of_a_script(machine, cudnn, without=single("cuda_graphs"))
    assert_same(replayed, eager, 0.02)
