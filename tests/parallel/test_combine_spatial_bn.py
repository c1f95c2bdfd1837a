"""Batch normalization over all devices gives what one device gives that normalizes the whole batch."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.engines import onednn
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import NetError, ShapeError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.step_list import StepKind
from parallel_models import OPTIMIZERS, Task, distance, in_float64, no_input, parallelize, train
from switches import single
from toy_models import chain, mlp, scaled_loss

COUNTS = [2, 3, 4, 8]
COMBINED = {"combine_spatial_bn": True}


def convnet(model, loss_scale, *, is_test=False, order="NCHW"):
    """A residual block with normalization before Relu and before a sum: data (N, 3, 8, 8), label (N,) of 4 classes."""

    def conv(x, name, channels):
        x = brew.conv(model, x, name, channels, 16, kernel=3, pad=1, no_bias=1, order=order)
        return brew.spatial_bn(model, x, f"{name}_bn", 16, epsilon=1e-3, momentum=0.9, is_test=is_test, order=order)

    x = brew.relu(model, conv("data", "conv1", 3), "conv1_bn")
    x = brew.max_pool(model, x, "pool1", kernel=2, stride=2, order=order)
    y = brew.relu(model, conv(x, "conv2", 16), "conv2_bn")
    x = brew.relu(model, brew.sum(model, [x, conv(y, "conv3", 16)], "block"), "block")
    x = brew.average_pool(model, x, "pooled", kernel=4, order=order)
    return scaled_loss(model, brew.fc(model, x, "fc", 16, 4), loss_scale)


def all_values(record, workspace, replica=-1):
    names = (*record.parameters, *record.computed)
    return [workspace.fetch(record.devices.copies(name)[0 if record.shared and name in record.parameters else replica])
            for name in names]  # fmt: skip


def trained(devices, task, **more):
    _, record, workspace = train(devices, OPTIMIZERS["momentum"], task, **more)
    return all_values(record, workspace)


def task_of(**options):
    return Task(convnet, (24, 3, 8, 8), steps=3, options=options)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("devices", [*map(range, COUNTS), [3, 7], [11, 2, 30]], ids=str)
def test_equals_one_device(devices):
    want = trained([0], task_of())
    assert distance(trained(devices, task_of(**COMBINED)), want) < 1e-6
    assert distance(trained(devices, task_of()), want) > 1e-3  # each device alone differs


def test_channels_last():
    task = Task(lambda model, scale: convnet(model, scale, order="NHWC"), (24, 8, 8, 3), steps=3, options=COMBINED)
    assert distance(trained(range(3), task), trained([0], task)) < 1e-6


@pytest.mark.slow
def test_float64():
    want = trained([0], task_of(), prepare=in_float64, dtype=np.float64)
    for count in COUNTS:
        got = trained(range(count), task_of(**COMBINED), prepare=in_float64, dtype=np.float64)
        assert distance(got, want) < 1e-12, count


@pytest.mark.one_in(16)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"net_type": "simple"},
        {"net_type": "async_scheduling"},
        {"shared_model": True},
        {"reduce_update_broadcast": True},
        {"optimize_gradient_memory": True},
        {"dynamic_memory_management": True},
        {"broadcast_computed_params": False},
    ],
    ids=str,
)
def test_with_other_options(options, threads):
    """Running statistics are those of the whole batch on each device, also where they are not copied from the first."""
    got = trained(range(3), task_of(**COMBINED, **options), threads=threads)
    assert distance(got, trained([0], task_of())) < 1e-6


def test_all_replicas_have_the_same_to_the_bit():
    _, record, workspace = train(range(4), task=task_of(**COMBINED, broadcast_computed_params=False))
    first = all_values(record, workspace, 0)
    for replica in range(1, 4):
        assert all(np.array_equal(a, b) for a, b in zip(all_values(record, workspace, replica), first))


@pytest.mark.slow
def test_two_runs_are_equal_to_the_bit():
    first, second = (trained(range(3), task_of(**COMBINED)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second))


def fed(devices, sizes, forward=convnet, **options):
    """Train on batches of different sizes; return the values of the last replica."""
    model, record = parallelize(
        devices, forward, OPTIMIZERS["momentum"], weighted_shares=True, combine_spatial_bn=True, **options
    )
    workspace, rng = Workspace(threads=2), np.random.default_rng(0)
    batches = [
        {"data": rng.normal(size=(n, 3, 8, 8)).astype(np.float32), "label": rng.integers(0, 4, n).astype(np.int32)}
        for n in sizes
    ]
    for _ in parallel.feed_shares(model, batches[0], workspace=workspace):
        pass
    parallel.RunInitNet(model, workspace=workspace)
    for batch in batches:
        for _ in parallel.feed_shares(model, batch, workspace=workspace):
            parallel.RunNet(model, workspace=workspace)
    return all_values(record, workspace), workspace, model


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("options", [{}, {"shared_model": True}, {"accumulate_steps": 2}], ids=str)
@pytest.mark.one_in(20)
def test_shares_of_different_sizes_and_none(count, options):
    """The last batches have fewer samples than there are devices: some feed a placeholder, which must not count."""
    sizes = [24, 13, 4, 2]
    want, _, _ = fed([0], sizes, **options)
    got, _, _ = fed(range(count), sizes, **options)
    assert distance(got, want) < 1e-6


@pytest.mark.slow
@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
@pytest.mark.parametrize("count", [2, 4])
def test_bfloat16(count):
    """Rounding to 8 bits differs where sums differ by a bit, so the comparison is with the distance to float32."""
    sizes = [24, 24, 7]
    exact, one, got = (
        fed(range(n), sizes, **options)[0]
        for n, options in ((1, {}), (1, {"dtype": "bfloat16"}), (count, {"dtype": "bfloat16"}))
    )
    assert distance(got, exact) < 2 * max(distance(one, exact), 0.01)
    assert distance(got, one) < 0.03


@pytest.mark.one_in(2)
@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN, whose kernel computes a normalization again")
@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_under_a_memory_budget(net_type):
    """Activations are computed again from the statistics of the whole batch, equal to the bit."""
    options = {"net_type": net_type, "dynamic_memory_management": True}
    (want, _, _), (got, workspace, model) = (
        fed(range(2), [48, 48], chain(4, 32), **options, **more) for more in ({}, {"memory_budget": 0.8})
    )
    assert all(np.array_equal(a, b) for a, b in zip(got, want))
    plans = workspace.net(model.net.Name()).plans
    again = [step for step in plans[-1].steps if step.kind is StepKind.RECOMPUTE]
    assert any(part.op_def.type == "SpatialBN" for step in again for part in step.node.parts)


@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
def test_kernels_are_fused_around_the_exchange():
    task = Task(convnet, (8, 3, 8, 8), steps=1, options={**COMBINED, "dynamic_memory_management": True})
    model, _, workspace = train(range(2), task=task)
    plans = workspace.net(model.net.Name()).plans
    steps = [("+".join(part.op_def.type for part in step.node.parts), step.prepared.name) for step in plans[-1].steps
             if not step.moves]  # fmt: skip
    names = [name for name, _ in steps]
    assert names.count("SpatialBN+Relu") == 4 and names.count("SpatialBN") == 2 and names.count("Sum+Relu") == 2
    assert names.count("ChannelBackpropStats+ReluGradient") == 4 and names.count("ChannelBackpropStats") == 2
    assert names.count("ReluGradient") == 2  # after the sum
    for name, kernel in steps:
        if "Channel" in name or "SpatialBN" in name:
            assert "onednn" in kernel, (name, kernel)


@pytest.mark.one_in(6)
@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
@pytest.mark.parametrize("observable", ["outputs", "all"])
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"weighted_shares": True}], ids=str)
def test_the_fused_gradient_changes_nothing_but_rounding(options, observable):
    """Also where all gradients can be fetched: that of the Relu's input is the same to the bit in the first step."""
    found = []
    for without in ((), single("relu_gradient_stats")):
        model, record = parallelize(range(2), chain(4, 32), OPTIMIZERS["momentum"], **COMBINED, **options)
        workspace, rng = Workspace(threads=2), np.random.default_rng(0)
        for scope in record.devices.scopes:
            workspace.feed(scope + "data", rng.normal(size=(4, 3, 8, 8)).astype(np.float32))
            workspace.feed(scope + "label", rng.integers(0, 4, 4).astype(np.int32))
        workspace.run_net_once(model.param_init_net)
        workspace.create_net(model.net, observable=observable, without=without)
        workspace.run_net(model.net)
        gradient = workspace.fetch("cpu_1/bn3_grad") if observable == "all" else None
        workspace.run_net(model.net, 2)
        found.append((all_values(record, workspace), gradient))
    assert distance(found[0][0], found[1][0]) < (1e-2 if "dtype" in options else 1e-6)
    if observable == "all":
        np.testing.assert_array_equal(found[0][1], found[1][1])


# The net.


def test_the_exchange_is_of_ordinary_operators():
    model, _ = parallelize([2, 5], convnet, combine_spatial_bn=True)
    ops = list(model.net.Proto().op)
    types = [op.type for op in ops]
    start = types.index("ChannelStats")
    assert (
        types[start - 2 : start + 8]
        == ["Conv"] * 2 + ["ChannelStats"] * 2 + ["Sum"] * 2 + ["SpatialBN"] * 2 + ["Relu"] * 2
    )
    assert [list(op.input) for op in ops[start + 2 : start + 4]] == [
        ["cpu_2/conv1_sums", "cpu_5/conv1_sums"],
        ["cpu_2/conv1_sumsq", "cpu_5/conv1_sumsq"],
    ]
    for op in ops:
        if op.type in ("SpatialBN", "SpatialBNGradient"):
            assert arguments(op)["num_batches"] == 2
    assert [op.device_option.device_id for op in ops if op.type == "ChannelStats"] == [2, 5] * 3
    assert "batch normalization" not in ops[start].debug_info and "SpatialBN of 'conv1'" in ops[start].debug_info


def test_shares_of_different_sizes_bring_their_counts():
    model, _ = parallelize([0, 1], convnet, combine_spatial_bn=True, weighted_shares=True)
    ops = {op.output[0]: op for op in model.net.Proto().op}
    assert list(ops["cpu_1/conv1_sums"].input) == ["cpu_1/conv1", "cpu_1/share_weight"]
    assert (
        list(ops["cpu_1/conv1_bn"].input[5:])
        == ["cpu_0/conv1_sums_combined", "cpu_0/conv1_sumsq_combined", "cpu_0/conv1_bn_sm_count"]
        or ops["cpu_1/conv1_bn"].type == "Relu"
    )
    gradient = next(op for op in model.net.Proto().op if op.type == "SpatialBNGradient" and "cpu_1/" in op.output[0])
    assert list(gradient.input[7:]) == ["cpu_0/conv3_bn_sm_count", "cpu_1/share_weight"]


def test_one_device_exchanges_nothing():
    (one, _), (plain, _) = (parallelize([0], convnet, name="net", **options) for options in (COMBINED, {}))
    assert [op.type for op in one.net.Proto().op] == [op.type for op in plain.net.Proto().op]


def test_evaluation_uses_the_running_statistics_and_no_exchange():
    """In a net for evaluation, and for a normalization in test mode inside of a net for training."""
    model = ModelHelper("evaluation", init_params=False)
    parallel.Parallelize_CPU(model, no_input, lambda m, s: convnet(m, s, is_test=True), devices=[0, 1])
    frozen, _ = parallelize([0, 1], lambda m, s: convnet(m, s, is_test=True), name="frozen", combine_spatial_bn=True)
    for net in (model.net.Proto(), frozen.net.Proto()):
        assert any(op.type == "SpatialBN" for op in net.op)
        assert not any(op.type.startswith("Channel") for op in net.op)


@pytest.mark.slow
def test_a_trained_model_is_evaluated_alike_on_one_device_and_on_several():
    _, _, workspace = train(range(2), OPTIMIZERS["momentum"], task_of(**COMBINED))
    data = np.random.default_rng(5).normal(size=(6, 3, 8, 8)).astype(np.float32)
    found = {}
    for devices in ([0], [0, 1]):
        model = ModelHelper(f"evaluation_{len(devices)}", init_params=False)
        record = parallel.Parallelize_CPU(model, no_input, lambda m, s: convnet(m, s, is_test=True), devices=devices)
        for blob, part in zip(record.devices.copies("data"), np.split(data, len(devices))):
            workspace.feed(blob, part)
            workspace.feed(blob.replace("data", "label"), np.zeros(len(part), np.int32))
        workspace.run_net(workspace.create_net(model.net))
        found[len(devices)] = np.concatenate([workspace.fetch(blob) for blob in record.devices.copies("softmax")])
    np.testing.assert_allclose(found[1], found[2], rtol=1e-5)


# Errors.


def refused(match, forward, **options):
    model = ModelHelper("net")
    options = {"optimizer_builder_fun": OPTIMIZERS["sgd"], "devices": [3, 1], **COMBINED, **options}
    with pytest.raises(NetError, match=match):
        parallel.Parallelize_CPU(model, no_input, forward, **options)
    assert not model.net.Proto().op


@pytest.mark.parametrize("devices", [[0], [0, 1]])
def test_a_model_for_evaluation_is_refused(devices):
    refused("combine_spatial_bn=True is for training: without", convnet, optimizer_builder_fun=None, devices=devices)


def test_replicas_with_different_operators_are_refused():
    calls = []

    def uneven(model, loss_scale):
        calls.append(model)
        if len(calls) == 2:
            model.net.Copy("data", "extra")
        return convnet(model, loss_scale)

    refused(r"reach each exchange together; there are 31 operators on device 3, 32 operators on device 1", uneven)

    def exchanged(model, loss_scale):
        losses = convnet(model, loss_scale)
        calls.append(model)
        (model.net.Copy if len(calls) % 2 else model.net.Alias)("data", "extra")
        return losses

    refused(r"number \d+ is Copy on device 3, Alias on device 1", exchanged)


def test_a_normalization_over_parts_already_is_refused():
    def forward(model, loss_scale):
        losses = convnet(model, loss_scale)
        next(op for op in reversed(model.net.Proto().op) if op.type == "SpatialBN").input.extend(["sums", "sumsq"])
        return losses

    refused("has num_batches=1 and 7 inputs: so it is over several parts of a batch already", forward)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("options", [{}, {"shared_model": True}, {"net_type": "simple"}], ids=str)
@pytest.mark.parametrize("sizes", [(3, 2), (4, 4, 3)], ids=str)
def test_shares_of_different_sizes_without_weights_are_refused(sizes, options):
    """At the first run with such shares, whether or not the net has run with equal ones before."""
    numbers = [3, 0, 5][: len(sizes)]
    model, record = parallelize(numbers, convnet, **COMBINED, **options)
    workspace, rng = Workspace(threads=2), np.random.default_rng(0)

    def feed(sizes):
        for scope, size in zip(record.devices.scopes, sizes):
            workspace.feed(scope + "data", rng.normal(size=(size, 3, 8, 8)).astype(np.float32))
            workspace.feed(scope + "label", rng.integers(0, 4, size).astype(np.int32))

    feed(sizes)
    parallel.RunInitNet(model, workspace=workspace)
    counts = ", ".join(f"{n} samples of shape .16, 8, 8. on CPU {device}" for n, device in zip(sizes, numbers))
    match = f"SpatialBN .*normalizes over {len(sizes)} shares .* the same size, got {counts}; .*weighted_shares=True"
    for _ in range(2):
        with pytest.raises(ShapeError, match=match):
            parallel.RunNet(model, workspace=workspace)
        feed([2] * len(sizes))
        parallel.RunNet(model, workspace=workspace)
        feed(sizes)


def test_shares_of_different_sizes_on_gpus_are_refused(two_gpus):
    """The sums are copied to the CPU, added there and copied back."""
    model = ModelHelper("net")
    options = {"optimizer_builder_fun": OPTIMIZERS["sgd"], "devices": [0, 1], **COMBINED}
    record = parallel.Parallelize_GPU(model, no_input, convnet, **options)
    workspace = Workspace()
    for scope, size in zip(record.devices.scopes, (3, 2)):
        workspace.feed(scope + "data", np.ones((size, 3, 8, 8), np.float32))
        workspace.feed(scope + "label", np.zeros(size, np.int32))
    parallel.RunInitNet(model, workspace=workspace)
    with pytest.raises(ShapeError, match="got 3 samples of shape .16, 8, 8. on GPU 0, 2 samples .* on GPU 1"):
        parallel.RunNet(model, workspace=workspace)


def test_a_model_without_normalization_is_not_changed():
    (one, _), (plain, _) = (parallelize([0, 1], mlp, name="net", **options) for options in (COMBINED, {}))
    assert [op.type for op in one.net.Proto().op] == [op.type for op in plain.net.Proto().op]
