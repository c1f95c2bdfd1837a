"""Training steps of narrow nets of the zoo: the kernels that run, CUDA graphs, and the numbers of the CPU."""

from collections import Counter

import numpy as np
import pytest

from cudnn_double import cudnn_double
from netbuilder.engines.choices import CACHE_VARIABLE, SWITCH_VARIABLE
from netbuilder.engines.cudnn import plans
from netbuilder.graph import DeviceScope, Net
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan import kernel_choice
from netbuilder.runtime.plan.capturable import why_not_captured
from netbuilder.zoo import alexnet, resnet, shufflenet, shufflenet_v2, squeezenet, vgg
from on_gpu import LISTED, assert_same, gpus, with_cudnn
from switches import single
from zoo_models import create_small_inception

pytestmark = pytest.mark.gpu

GPU = make_device_option(PROTO_CUDA, 0)
CLASSES = 10
MOST_LAUNCHES = 281
SHORT = (resnet, "RESNET_STAGES", dict.fromkeys((18, 50), (2, 1, 1, 1)))

# Name -> builder, its arguments, the extent of the images, and what makes the net narrow and short.
NETS = {
    "alexnet": (alexnet.create_alexnet, {"dropout": 0.0, "hidden": 16, "image_size": 63}, 63,
                [(alexnet, "_FILTERS", {2: (8, 16, 8, 8, 16)})]),
    "inception": (create_small_inception, {"dropout": 0.0}, 16, []),
    "resnet-18": (resnet.create_resnet, {"num_layers": 18}, 32, [(resnet, "BASE_FILTERS", 8), SHORT]),
    "resnet-50": (resnet.create_resnet, {"num_layers": 50}, 32, [(resnet, "BASE_FILTERS", 8), SHORT]),
    "shufflenet": (shufflenet.create_shufflenet, {"groups": 3}, 32,
                   [(shufflenet, "_CHANNELS", {3: 48}), (shufflenet, "_UNITS", (2, 1, 1))]),
    "shufflenet-v2": (shufflenet_v2.create_shufflenet_v2, {"image_size": 32}, 32,
                      [(shufflenet_v2, "_CHANNELS", {"1.0x": (16, 32, 64, 32)}),
                       (shufflenet_v2, "_REPEATS", (1, 1, 1))]),
    "squeezenet": (squeezenet.create_squeezenet, {"dropout": 0.0, "image_size": 31}, 31,
                   [(squeezenet, "_SQUEEZED", dict.fromkeys(range(2, 10), 4))]),
    "vgg": (vgg.create_vgg, {"num_layers": 11, "dropout": 0.0, "hidden": 16, "image_size": 32}, 32,
            [(vgg, "_FILTERS", (8, 8, 16, 16, 16))]),
}  # fmt: skip


def training(create, arguments, extent, changes):
    """A model with its gradients and updates, all on a GPU; its batch, its parameters, and its loss."""
    model = ModelHelper("zoo")
    with DeviceScope(GPU), pytest.MonkeyPatch.context() as patch:
        for change in changes:
            patch.setattr(*change)
        _, loss = create(model, "data", 3, CLASSES, label="label", **arguments)
        model.AddGradientOperators([loss])
        build_sgd(model, base_learning_rate=0.01, momentum=0.9)
    rng = np.random.default_rng(0)
    feeds = {"data": rng.standard_normal((4, 3, extent, extent)).astype(np.float32)}
    feeds["label"] = rng.integers(0, CLASSES, 4).astype(np.int32)
    return model, feeds, [*map(str, model.params)], str(loss)


def on_host(net):
    made = NetDef()
    made.CopyFrom(net.Proto())
    made.ClearField("device_option")
    for op in made.op:
        op.ClearField("device_option")
    return made


def started(model, feeds):
    """All blobs before the first step, made on the host."""
    workspace = Workspace(engines=())
    init = on_host(model.param_init_net)
    workspace.run_net_once(init)
    return {**{name: workspace.fetch(name) for op in init.op for name in op.output}, **feeds}


def feed(workspace, blobs, device=None):
    """Feed blobs; the counter of iterations stays on the host."""
    for name, value in blobs.items():
        workspace.feed(name, value, None if name == "optimizer_iteration" else device)


def workspace_with(blobs, net, device=None, *, without=(), engines=None, **options):
    workspace = Workspace(engines=engines, without=without)
    feed(workspace, blobs, device)
    workspace.create_net(net, observable="outputs", **options)
    return workspace


ON_GPU = {"device": GPU, "engines": ("CUDNN", "CUDA")}


def distance(some, others, names):
    return sum(float(np.square(some[name] - others[name]).sum()) for name in names) ** 0.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NETS)
def test_steps(name, dtype):
    """After one step, parameters are those of the CPU. A graph, which nothing divides, computes the same bits."""
    model, feeds, parameters, loss = training(*NETS[name])
    blobs, net = started(model, feeds), model.net.Proto().name
    cpu = workspace_with(blobs, on_host(model.net), without=single("kept_maxima"))
    cpu.run_net(net)
    with with_cudnn() as (machine, _):
        workspace = workspace_with(blobs, model.net, dtype=dtype, **ON_GPU)
        workspace.run_net(net)
        eager = {blob: workspace.fetch(blob) for blob in (*parameters, loss)}
        workspace.run_net(net, 3)
        for _ in range(3):
            feed(workspace, blobs, GPU)
            machine.launches.clear()
            workspace.run_net(net)
        assert not LISTED or [launch.name for launch in machine.launches] == ["graph"]
        (plan,) = workspace.net(net).plan_ahead()
        assert {step.prepared.name for step in plan.steps if why_not_captured(step)} <= {
            "number on the host",
            "numpy",
            "numpy.copyto",
        }
        for blob, value in eager.items():
            assert_same(workspace.fetch(blob), value, 1e-3, err_msg=blob)
    if dtype == "float32":
        want = {blob: cpu.fetch(blob) for blob in eager}
        np.testing.assert_allclose(eager[loss], want[loss], rtol=1e-5)
        moved = distance(want, blobs, parameters)
        assert distance(eager, want, parameters) <= 1e-4 * moved


def create_chain(model, data, channels, classes, *, label):
    """Three convolutions, each with a normalization and a Relu; all search for the fastest kernels."""
    options = {"cudnn_exhaustive_search": True}
    for i in range(3):
        data = brew.conv(model, data, f"conv{i}", channels, 8, 3, pad=1, **options)
        data = brew.relu(model, brew.spatial_bn(model, data, f"bn{i}", 8, **options), f"relu{i}")
        channels = 8
    pooled = brew.average_pool(model, data, "pooled", global_pooling=True)
    _, loss = model.SoftmaxWithLoss([brew.fc(model, pooled, "fc", 8, classes), label], ["softmax", "loss"])
    return pooled, loss


@pytest.mark.emulated
def test_a_chain_stores_no_results_of_relus_between_convolutions(monkeypatch, tmp_path):
    """Parameters are those of the CPU, up to factors in TF32; a CUDA graph computes the same bits."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)
    monkeypatch.setattr(plans, "machine", lambda: f"a GPU of {tmp_path}; cuDNN 9.28.0")
    model, feeds, parameters, loss = training(create_chain, {}, 8, [])
    blobs, net = started(model, feeds), model.net.Proto().name
    cpu = workspace_with(blobs, on_host(model.net))
    cpu.run_net(net)
    with with_cudnn() as (machine, cudnn):

        def seconds(call):
            """Less for graphs that do more."""
            before = len(cudnn.ran_graphs)
            call()
            return 1 / (1 + sum(map(len, cudnn.ran_graphs[before:])))

        monkeypatch.setattr(plans, "seconds", seconds)
        workspace = workspace_with(blobs, model.net, allow_tf32=True, **ON_GPU)
        workspace.net(net).plan_ahead()
        cudnn.ran_graphs.clear()
        workspace.run_net(net)
        normalizing = ("sub", "mul", "mul", "add", "relu", "conv_fprop")
        assert sum(kinds[:6] == normalizing for kinds in cudnn.ran_graphs) == 2
        eager = {blob: workspace.fetch(blob) for blob in (*parameters, loss)}
        workspace.run_net(net, 3)
        feed(workspace, blobs, GPU)
        workspace.run_net(net)
        for blob, value in eager.items():
            assert_same(workspace.fetch(blob), value, 1e-3, err_msg=blob)
    want = {blob: cpu.fetch(blob) for blob in eager}
    assert distance(eager, want, parameters) <= 0.01 * distance(want, blobs, parameters)


@pytest.mark.one_in(2)
@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_of_a_step_of_resnet50(dtype):
    """53 convolutions and normalizations, forward and backward: each is one graph, with Sum and Relu. Few copies."""
    create, arguments, extent, (narrow, _) = NETS["resnet-50"]
    model, feeds, *_ = training(create, arguments, extent, [narrow])
    blobs = started(model, feeds)
    with gpus(1) as machine, cudnn_double() as cudnn:
        workspace = workspace_with(blobs, model.net, dtype=dtype, without=single("cuda_graphs"), **ON_GPU)
        for _ in range(3):  # then parameters have their layouts
            cudnn.ran_graphs.clear()
            machine.launches.clear()
            before = machine.counts
            workspace.run_net(model.net)
        called = machine.counts - before  # without those that are 0
        graphs = Counter(" ".join(kinds[:2]) for kinds in cudnn.ran_graphs)
        launched = Counter(launch.name.split()[0] for launch in machine.launches)
    dense = {"add": 1} if dtype == "float32" else {"matmul": 2, "matmul add": 1}  # exact products are cuBLAS's
    assert graphs == {
        "conv_fprop": 53, "conv_wgrad": 53, "conv_dgrad": 52,
        "batchnorm relu": 33, "batchnorm": 4, "batchnorm add": 16,
        "cmp_gt mul": 34, "add cmp_gt": 15, "batchnorm_backward": 4,
        "reduction": 1, **dense,  # the dense layer
    }  # fmt: skip
    assert launched["cublas"] == (3 if dtype == "float32" else 0)

    def ours(title):
        return sum(count for name, count in launched.items() if name.startswith(f"nb_{title}"))

    assert ours("copies") == 1  # of the input, and in bfloat16 with all filters
    assert ours("running_statistics") == 1 and ours("max_pool") == ours("average_pool") == 2
    assert called["launches"] <= MOST_LAUNCHES
    assert called.keys() == {"launches", "synchronizations", "copies", "reads"}
    assert called["copies"] == 1  # what is noted of wrong labels


def searching_net():
    net = Net("searching")
    with DeviceScope(GPU):
        net.Conv(["x", "w"], "y", kernel=3, pad=1, engine="CUDNN", exhaustive_search=1)
    return net


def run_searching(net, without):
    rng = np.random.default_rng(0)
    blobs = {"x": rng.standard_normal((2, 4, 6, 5)), "w": rng.standard_normal((8, 4, 3, 3))}
    blobs = {name: value.astype(np.float32) for name, value in blobs.items()}
    workspace = workspace_with(blobs, net, without=without, **ON_GPU)
    workspace.run_net(net)
    return workspace.fetch("y"), blobs


@pytest.mark.parametrize("without", [(), single("atomic_sums")])
def test_a_search_stays_with_cudnn(without, monkeypatch, tmp_path):
    """Though some plans are refused, in exact float32 most of them."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)
    net = searching_net()
    with with_cudnn() as (_, cudnn):
        found, blobs = run_searching(net, without)
        assert cudnn is None or set(cudnn.ran_graphs) == {("conv_fprop",)}
    cpu = workspace_with(blobs, on_host(net))
    cpu.run_net(net.Name())
    np.testing.assert_allclose(found, cpu.fetch("y"), rtol=1e-5, atol=1e-5)
    assert [*tmp_path.iterdir()], "the choice is kept"


@pytest.mark.emulated
def test_a_convolution_that_leaves_cudnn_is_said(monkeypatch):
    monkeypatch.setattr(kernel_choice, "said", set())
    with gpus(1), cudnn_double() as cudnn:
        cudnn.unsupported.add("conv_fprop")
        with pytest.warns(RuntimeWarning, match="Conv with output 'y' asks for .*CUDNN', which has no"):
            run_searching(searching_net(), ())
        assert not cudnn.ran_graphs
