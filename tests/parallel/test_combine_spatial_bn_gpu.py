"""Batch normalization over all GPUs gives what replicas on the CPU give; what a step of it launches and copies."""

from collections import Counter

import numpy as np
import pytest

from cudnn_double import cudnn_double
from netbuilder import parallel
from netbuilder.engines import nccl
from netbuilder.model import ModelHelper, brew
from netbuilder.runtime import Workspace
from on_gpu import CLOSE, gpus, with_cudnn
from parallel_models import OPTIMIZERS, distance, no_input
from switches import single
from toy_models import scaled_loss

CHANNELS, SIDE = 8, 4
COMBINED = {"combine_spatial_bn": True}


def convnet(model, loss_scale, order="NCHW"):
    """Normalizations before a Relu, and at both ends of a residual block."""

    def conv(x, name, channels, relu=False, **more):
        x = brew.conv(model, x, name, channels, CHANNELS, no_bias=1, order=order, **more)
        x = brew.spatial_bn(model, x, f"{name}_bn", CHANNELS, epsilon=1e-3, is_test=False, order=order)
        return brew.relu(model, x, f"{name}_bn") if relu else x

    x = conv("data", "conv1", 3, relu=True, kernel=3, pad=1)
    y = conv(conv(x, "conv2", CHANNELS, relu=True, kernel=3, pad=1), "conv3", CHANNELS, kernel=3, pad=1)
    x = brew.relu(model, brew.sum(model, [y, conv(x, "shortcut", CHANNELS, kernel=1)], "block"), "block")
    x = brew.average_pool(model, x, "pooled", kernel=SIDE, order=order)
    return scaled_loss(model, brew.fc(model, x, "fc", CHANNELS, 4), loss_scale)


NORMS = 4


def batches(sizes, order):
    rng = np.random.default_rng(3)
    for size in sizes:
        data = rng.normal(size=(size, 3, SIDE, SIDE) if order == "NCHW" else (size, SIDE, SIDE, 3)).astype(np.float32)
        yield {"data": data, "label": rng.integers(0, 4, size).astype(np.int32)}


def train(kind, count, sizes=(12, 12, 12), *, order="NCHW", engines=None, without=(), **options):
    """Train; return what each replica has, the model and the workspace."""
    model = ModelHelper("net")
    make = parallel.Parallelize_GPU if kind == "gpu" else parallel.Parallelize_CPU
    record = make(
        model, no_input, lambda model, scale: convnet(model, scale, order),
        optimizer_builder_fun=OPTIMIZERS["momentum"], devices=list(range(count)), **options,
    )  # fmt: skip
    workspace = Workspace(threads=2, without=without, **({} if engines is None else {"engines": engines}))
    for number, batch in enumerate(batches(sizes, order)):
        if options.get("weighted_shares"):
            for _ in parallel.feed_shares(model, batch, workspace=workspace):
                pass
        else:
            for name, whole in batch.items():
                parts = zip(record.devices.copies(name), np.split(whole, count), record.devices.options)
                for blob, part, place in parts:
                    workspace.feed(blob, part, place)
        if number == 0:
            workspace.run_net_once(model.param_init_net)
            workspace.create_net(model.net, observable="outputs")
        workspace.run_net(model.net)
    names = (*record.parameters, *record.computed)
    held = [[workspace.fetch(record.devices.copies(name)[i]) for name in names] for i in range(count)]
    return held, model, workspace


@pytest.mark.one_in(2)
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("options", [{}, {"use_nccl": True}], ids=["through the host", "nccl"])
def test_two_gpus_equal_one_replica_on_the_cpu(two_gpus, options, order):
    (want,), *_ = train("cpu", 1, order=order)
    replicas, model, _ = train("gpu", 2, order=order, **COMBINED, **options)
    for replica in replicas:
        assert distance(replica, want) < CLOSE
        assert all(np.array_equal(a, b) for a, b in zip(replica, replicas[0]))
    types = Counter(op.type for op in model.net.Proto().op)
    assert types["CopyGPUToCPU"] == (0 if options else 2 * 2 * 2 * NORMS)


@pytest.mark.parametrize("options", [{}, {"use_nccl": True}], ids=["through the host", "nccl"])
def test_shares_of_different_sizes_and_none(two_gpus, options):
    """In the last batch the second GPU has no sample."""
    sizes = (12, 7, 1)
    (want,), *_ = train("cpu", 1, sizes, weighted_shares=True)
    for replica in train("gpu", 2, sizes, weighted_shares=True, **COMBINED, **options)[0]:
        assert distance(replica, want) < CLOSE


def test_four_gpus_by_nccl(four_gpus):
    (want,), *_ = train("cpu", 1)
    for replica in train("gpu", 4, **COMBINED, use_nccl=True)[0]:
        assert distance(replica, want) < CLOSE


ENGINES = ("CUDNN", "CUDA")


@pytest.mark.multi_gpu
def test_bfloat16_with_channels_last():
    """Two GPUs with cuDNN differ from one as much as rounding to 8 bits makes them."""
    (exact,), *_ = train("cpu", 1)
    with with_cudnn(2):
        (one,), *_ = train("gpu", 1, engines=ENGINES, dtype="bfloat16")
        two, *_ = train("gpu", 2, engines=ENGINES, dtype="bfloat16", use_nccl=True, **COMBINED)
    for replica in two:
        assert distance(replica, exact) < 2 * max(distance(one, exact), 0.01)
        assert distance(replica, one) < 0.03


@pytest.mark.multi_gpu
def test_channels_last_in_float32():
    (want,), *_ = train("cpu", 1)
    with with_cudnn(2):
        for options in ({}, {"use_nccl": True}):
            replicas, model, workspace = train("gpu", 2, engines=ENGINES, **COMBINED, **options)
            assert all(distance(replica, want) < CLOSE for replica in replicas)
    (plan,) = workspace.net(model.net.Name()).plan_ahead()
    graphs = {(step.what in ("nccl", "wait"), found.graph) for step, found in zip(plan.steps, plan.captured())}
    assert (True, -1) in graphs and len(graphs) > 4 * NORMS and {graph for nccl, graph in graphs if nccl} == {-1}


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_has_two_launches_for_a_normalization_each_way(dtype):
    """The sums, and what follows from them, with Relu and Sum; with NCCL nothing goes through the host."""
    with gpus(2) as machine, cudnn_double():
        options = {"dtype": dtype, "use_nccl": True, "without": single("cuda_graphs"), **COMBINED}
        _, model, workspace = train("gpu", 2, engines=ENGINES, **options)
        launches, moved = step(machine, model, workspace)
        launched = Counter(launch.name.rpartition("_")[0] for launch in launches)
    ours = {name: n for name, n in launched.items() if "channel" in name or "normalize" in name}
    assert ours == {
        "nb_channel_stats": 2 * NORMS,
        "nb_normalize_part": 2 * NORMS,
        "nb_relu_channel_backprop_stats": 2 * (NORMS - 1),  # the shortcut reads what is written for the block
        "nb_channel_backprop_stats": 2,
        "nb_normalize_part_gradient": 2 * NORMS,
    }
    others = [name for name in launched if "relu" in name and "channel" not in name]
    assert others == [], "all Relus are part of another kernel"
    assert {(t.source, t.nbytes) for t in moved} <= {(0, 16), (1, 16)}, "what the checks noted"
    sums = [group for group in nccl_groups(workspace, model) if any("_sums" in name for name in group)]
    assert [len(group) for group in sums] == [2] * NORMS, "the sums and those of the squares together"
    assert "nccl.broadcast" not in {launch.name for launch in launches}, "all GPUs have the same running statistics"


def step(machine, model, workspace):
    """Run a step; return the launches and the copies between devices and the host."""
    machine.launches.clear()
    machine.transfers.clear()
    workspace.run_net(model.net)
    return list(machine.launches), list(machine.transfers)


def nccl_groups(workspace, model):
    """The blobs of the first GPU of each call of NCCL in a step."""
    plans = workspace.net(model.net.Name()).plans
    return [
        [part.outputs[0] for part in step.node.parts]
        for plan in plans
        for step in plan.steps
        if step.what == "nccl" and step.node.first.op_def.type == "NCCLAllreduce"
    ]


@pytest.mark.emulated
def test_updates_are_joined_on_all_gpus_alike():
    """Operators wait for the gradients of the first GPU by control inputs, which keep the order of NCCL's calls."""
    with gpus(2) as machine:
        _, model, workspace = train("gpu", 2, use_nccl=True)
        launches, _ = step(machine, model, workspace)
        updates = Counter(launch.device for launch in launches if "update" in launch.name)
        assert updates == {0: 1, 1: 1}
        assert len(nccl.nccl().groups) > 0
