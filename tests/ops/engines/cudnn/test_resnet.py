"""A step of ResNets: on doubles, which kernels run and what is converted; on emulated GPUs, the numbers."""

from collections import Counter

import numpy as np
import pytest

from cudnn_double import cudnn_double, cudnn_on_emulated_gpus
from cupy_double import CupyDouble, draw_nothing
from netbuilder.graph import DeviceScope
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_sgd
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from netbuilder.zoo import create_resnet

GPU = make_device_option(PROTO_CUDA, 0)
CLASSES = 10
MOST_LAUNCHES = 305


def training(layers):
    """A model with its gradients and updates, all on a GPU."""
    model = ModelHelper("resnet")
    with DeviceScope(GPU):
        _, loss = create_resnet(model, "data", 3, CLASSES, layers, label="label")
        model.AddGradientOperators([loss])
        build_sgd(model, base_learning_rate=0.01, momentum=0.9)
    return model, [str(parameter) for parameter in model.params], str(loss)


def on_host(net):
    made = NetDef()
    made.CopyFrom(net.Proto())
    made.ClearField("device_option")
    for op in made.op:
        op.ClearField("device_option")
    return made


def batch(images, extent):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((images, 3, extent, extent)).astype(np.float32)
    return {"data": data, "label": rng.integers(0, CLASSES, images).astype(np.int32)}


def started(model, feeds):
    """All blobs before the first step, made on the host."""
    workspace = Workspace(engines=())
    init = on_host(model.param_init_net)
    workspace.run_net_once(init)
    return {**{name: workspace.fetch(name) for op in init.op for name in op.output}, **feeds}


def workspace_with(blobs, net, engines=None, **options):
    workspace = Workspace(engines=engines)
    for name, value in blobs.items():
        workspace.feed(name, value)
    workspace.create_net(net, observable="outputs", **options)
    return workspace


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_of_resnet50(monkeypatch, dtype):
    """53 convolutions and normalizations, forward and backward: each is one graph, with Sum and Relu. Few copies."""
    model, _, _ = training(50)
    draw_nothing(monkeypatch)
    blobs, cupy = started(model, batch(2, 32)), CupyDouble(1)
    with cudnn_double(cupy) as cudnn:
        workspace = workspace_with(blobs, model.net, engines=("CUDNN", "CUDA"), dtype=dtype)
        for _ in range(3):  # then parameters have their layouts
            cudnn.ran_graphs.clear()
            cupy.machine.launches.clear()
            workspace.run_net(model.net.Proto().name)
        graphs = Counter(" ".join(kinds[:2]) for kinds in cudnn.ran_graphs)
        launched = Counter(launch.name for launch in cupy.machine.launches)
    dense = {"add": 1} if dtype == "float32" else {"matmul": 2, "matmul add": 1}  # exact products are cuBLAS's
    assert graphs == {
        "conv_fprop": 53, "conv_wgrad": 53, "conv_dgrad": 52,
        "batchnorm relu": 33, "batchnorm": 4, "batchnorm add": 16,
        "cmp_gt mul": 34, "add cmp_gt": 15, "batchnorm_backward": 4,
        "reduction": 1, **dense,  # the dense layer
    }  # fmt: skip
    assert launched["gemm"] == (3 if dtype == "float32" else 0)
    assert launched["setitem"] == 0

    def ours(title):
        return sum(count for name, count in launched.items() if name.startswith(f"nb_{title}"))

    assert ours("copies") == (1 if dtype == "float32" else 2), "the input; all filters"
    assert ours("running_statistics") == 1 and ours("max_pool") == ours("average_pool") == 2
    assert sum(launched.values()) <= MOST_LAUNCHES


@pytest.mark.emulated
def test_numbers_of_resnet18():
    """Parameters after a step, with the loss, are those of the CPU."""
    model, parameters, loss = training(18)
    blobs = started(model, batch(4, 64))
    name = model.net.Proto().name
    cpu = workspace_with(blobs, on_host(model.net))
    cpu.run_net(name)
    with cudnn_on_emulated_gpus():
        gpu = workspace_with(blobs, model.net, engines=("CUDNN", "CUDA"))
        gpu.run_net(name)
        np.testing.assert_allclose(gpu.fetch(loss), cpu.fetch(loss), rtol=1e-4)
        got, want = ([each.fetch(p) for p in parameters] for each in (gpu, cpu))
    apart = sum(float(np.square(a - b).sum()) for a, b in zip(got, want))
    moved = sum(float(np.square(b - blobs[p]).sum()) for b, p in zip(want, parameters))
    assert apart <= (1e-2) ** 2 * moved
