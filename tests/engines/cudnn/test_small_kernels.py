"""Copies of parameters and running statistics, each one kernel for all layers: when they are made, and the numbers."""

from collections import Counter

import numpy as np
import pytest

from checks import interpret
from kernel_cases import normalization, random
from netbuilder.graph import DeviceScope
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import add_weight_decay, build_sgd
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_argument, make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.input.prefetch import Prefetch
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.roofline import Limits
from on_gpu import LISTED, assert_same, with_cudnn
from switches import single
from toy_models import softmax_loss

pytestmark = pytest.mark.gpu

GPU = make_device_option(PROTO_CUDA, 0)
NORMALIZED = ["x", "s", "b", "rm", "rv"]
OUTPUTS = ["rm", "rv", "mean", "inverse"]
LIMITS = {"GPU": Limits(1e15, "a guess", 1e12, 0)}
ROUNDING = 2e-2  # of bfloat16


def net_of(ops, precision="float32", name="net"):
    net = NetDef(name=name, op=ops)
    net.device_option.CopyFrom(GPU)
    net.arg.extend([make_argument("activation_dtype", precision)])
    return net


def kernels(machine, *titles):
    """How often our own kernels were launched, by title."""
    found = Counter(launch.name.removeprefix("nb_").rpartition("_")[0] for launch in machine.launches)
    return [found[title] for title in titles]


def run(workspace, name, machine):
    machine.launches.clear()
    workspace.run_net(name)


STATISTICS = {
    "one after another": (
        [
            make_op("SpatialBN", NORMALIZED, ["y", *OUTPUTS]),
            make_op("SpatialBN", ["y", *NORMALIZED[1:]], ["z", *OUTPUTS]),
        ],
        2,
    ),
    "of two layers": (
        [
            make_op("SpatialBN", NORMALIZED, ["y", *OUTPUTS], momentum=0.3),
            make_op("SpatialBN", ["y", "s", "b", "rm2", "rv2"], ["z", "rm2", "rv2", "mean2", "inverse2"]),
        ],
        1,
    ),
    "read by a later operator": (
        [
            make_op("SpatialBN", NORMALIZED, ["y", *OUTPUTS]),
            make_op("Scale", ["rv"], ["scaled"], scale=3.0),
            make_op("SpatialBN", ["y", "s", "b", "rm2", "rv2"], ["z", "rm2", "rv2", "mean2", "inverse2"]),
        ],
        2,
    ),
    "of statistics that are overwritten": (
        [make_op("SpatialBN", NORMALIZED, ["y", *OUTPUTS]), make_op("Scale", ["mean"], ["mean"], scale=3.0)],
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("name", STATISTICS)
def test_running_statistics(name, joined):
    """They are computed before they, or what they are computed from, are read or overwritten."""
    ops, count = STATISTICS[name]
    arrays = {**normalization((4, 8, 5, 3), 8), "rm2": random(8, seed=5), "rv2": np.abs(random(8, seed=6))}
    want = interpret(ops, {n: x.astype(np.float64) for n, x in arrays.items()})
    with with_cudnn() as (machine, _):
        workspace = Workspace(without=[] if joined else single("joined_small_kernels"))
        for blob, array in arrays.items():
            workspace.feed(blob, array, GPU)
        workspace.create_net(net_of(ops))
        run(workspace, "net", machine)
        layers = sum(op.type == "SpatialBN" for op in ops)
        assert not LISTED or kernels(machine, "running_statistics") == [count if joined else layers]
        for blob in dict.fromkeys(output for op in ops for output in op.output):
            np.testing.assert_allclose(workspace.fetch(blob), want[blob], rtol=2e-5, atol=2e-5, err_msg=blob)


def layers():
    """Two convolutions with normalizations, and a dense layer, with gradients and updates."""
    model = ModelHelper("layers")
    with DeviceScope(GPU):
        x, channels = "data", 8
        for k in range(2):
            x = brew.conv(model, x, f"conv{k}", channels, 8, kernel=3, pad=1, no_bias=1)
            x = brew.relu(model, brew.spatial_bn(model, x, f"bn{k}", 8, is_test=False), f"bn{k}")
        x = brew.fc(model, x, "fc", 8 * 6 * 6, 4)
        model.AddGradientOperators([softmax_loss(model, x)])
        add_weight_decay(model, 0.01)
        build_sgd(model, base_learning_rate=0.1, momentum=0.9)
    return model


def trained(machine=None, *, steps=3, **options):
    """The parameters and statistics after some steps, and our kernels of the last one."""
    model = layers()
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    workspace.feed("data", random(4, 8, 6, 6), GPU)
    workspace.feed("label", np.int32([0, 1, 2, 3]), GPU)
    workspace.create_net(model.net, **options)
    for step in range(steps):
        if machine is not None and step == steps - 1:
            machine.launches.clear()
        workspace.run_net(model.net.Proto().name)
    launched = [] if machine is None else kernels(machine, "copies", "running_statistics", "updates")
    names = [str(name) for name in (*model.params, *model.GetComputedParams())]
    return {name: workspace.fetch(name) for name in names}, launched


@pytest.mark.parametrize("observable", ["all", "outputs"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_of_a_step(dtype, observable):
    """In bfloat16: one copy of the input and all filters; updates read gradients of 16 bits as they are stored."""
    options = {"dtype": dtype, "observable": observable}
    with with_cudnn() as (machine, _):
        _, few = trained(machine, **options)
        _, many = trained(machine, **options, without=single("joined_small_kernels"))
    assert not LISTED or few == [3, 1, 1]  # of the input with all parameters; before and after the dense layer
    assert not LISTED or many == [6 if dtype == "bfloat16" else 3, 2, 1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training(dtype):
    """Also in CUDA graphs, which replace the calls after two steps."""
    with with_cudnn() as (machine, _):
        joined, launched = trained(machine, steps=5, dtype=dtype)
        alone, _ = trained(steps=5, dtype=dtype, without=single("joined_small_kernels", "cuda_graphs"))
        exact, _ = trained(steps=5)
    assert not LISTED or launched == [0, 0, 0]
    for name in joined:
        assert_same(joined[name], alone[name], 0.05, err_msg=name)
        np.testing.assert_allclose(joined[name], exact[name], rtol=0.3, atol=0.05, err_msg=name)


def test_profiles_say_what_is_joined():
    ops = [
        make_op("Conv", ["x", "w"], ["c"]),
        make_op("SpatialBN", ["c", *NORMALIZED[1:]], ["y", *OUTPUTS]),
        make_op("SpatialBN", ["y", "s", "b", "rm2", "rv2"], ["z", "rm2", "rv2", "mean2", "inverse2"]),
    ]
    arrays = {**normalization((4, 8, 5, 3), 8), "rm2": random(8, seed=5), "rv2": np.abs(random(8, seed=6))}
    with with_cudnn():
        workspace = Workspace(threads=1)
        for name, array in {**arrays, "w": random(8, 8, 1, 1)}.items():
            workspace.feed(name, array, GPU)
        workspace.create_net(net_of(ops, "bfloat16"))
        calls = profile(workspace, "net", runs=2, limits=LIMITS).calls
    assert [call.kind for call in calls] == ["reorder", "Conv", "SpatialBN", "SpatialBN", "rest of SpatialBN x2"]
    assert calls[0].reason.endswith("with 1 other copy") and "one kernel for all" in calls[-1].reason
    assert calls[-1].flops == 0 and calls[-1].nbytes == 12 * 8 * 4


def test_copies_have_the_present_values():
    """Of parameters that are fed between two steps, that another net writes, and that the net has updated."""
    arrays = {"x": random(2, 8, 4, 4), "w": random(8, 8, 1, 1, seed=1), "v": random(8, 8, 1, 1, seed=2)}
    ops = [
        make_op("Conv", ["x", "w"], ["y"]),
        make_op("Conv", ["y", "v"], ["z"]),
        make_op("Scale", ["w"], ["w"], scale=-2.0),
        make_op("Conv", ["x", "w"], ["u"]),
    ]
    other = net_of([make_op("Scale", ["v"], ["v"], scale=0.5)], name="other")
    with with_cudnn() as (machine, _):
        workspace = Workspace(without=single("cuda_graphs"))  # whose launches are not noted
        for name, array in arrays.items():
            workspace.feed(name, array, GPU)
        workspace.create_net(net_of(ops, "bfloat16"), observable=["z", "u"])
        workspace.create_net(other)
        for step in range(4):
            if step == 2:
                arrays["w"] = random(8, 8, 1, 1, seed=7)
                workspace.feed("w", arrays["w"], GPU)
            if step == 3:
                run(workspace, "other", machine)
                arrays["v"] = arrays["v"] / 2
            run(workspace, "net", machine)
            want = interpret(ops, {n: x.astype(np.float64) for n, x in arrays.items()})
            arrays["w"] = arrays["w"] * -2
            for name in ("z", "u"):
                scale = float(np.abs(want[name]).max())
                np.testing.assert_allclose(workspace.fetch(name), want[name], rtol=ROUNDING, atol=ROUNDING * scale)
        run(workspace, "net", machine)
        assert not LISTED or kernels(machine, "copies") == [2]  # x, w and v; then the new w


def test_input_that_is_prefetched_is_copied_with_the_parameters():
    """The ring has several buffers, so the joined copy is bound once for each."""
    batches = [{"x": random(2, 8, 4, 4, seed=k)} for k in range(6)]
    w = random(8, 8, 1, 1, seed=9)
    with with_cudnn() as (machine, _):
        workspace = Workspace()
        workspace.feed("w", w, GPU)
        workspace.feed("x", batches[0]["x"], GPU)
        workspace.create_net(net_of([make_op("Conv", ["x", "w"], ["y"])], "bfloat16"))
        with Prefetch(workspace, iter(batches), blobs={"x": ["x"]}, devices=[GPU], look=False) as input:
            for batch, _ in zip(batches, input):
                run(workspace, "net", machine)
                want = np.einsum("nchw,mc->nmhw", batch["x"], w[:, :, 0, 0])
                np.testing.assert_allclose(workspace.fetch("y"), want, rtol=ROUNDING, atol=ROUNDING * 5)
