"""The promise: same data, total batch and seed give the same parameters on 1, 2, 3, 4 and 8 devices."""

import numpy as np
import pytest

from netbuilder import optimizers, parallel
from netbuilder.engines.arrays import gpu_count
from netbuilder.graph import DeviceScope, GradientSlice, NameScope
from netbuilder.model import ModelHelper, brew
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, Task, distance, in_float64, no_input, parallelize, train
from toy_models import convnet, dropped, mlp, scaled_loss, softmax_loss

COUNTS = [2, 3, 4, 8]
FLOAT32, FLOAT64 = 1e-5, 1e-10


def values(record, workspace, replica=0):
    return [workspace.fetch(record.blobs(name)[replica]) for name in (*record.parameters, *record.computed)]


def trained(devices, *args, **kwargs):
    _, record, workspace = train(devices, *args, **kwargs)
    return values(record, workspace)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer):
    one = trained([0], OPTIMIZERS[optimizer])
    for count in COUNTS:
        assert distance(trained(range(count), OPTIMIZERS[optimizer]), one) < FLOAT32, count


@pytest.mark.one_in(2)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_convnet(optimizer):
    task = Task(convnet, (24, 3, 8, 8), steps=3)
    one = trained([0], OPTIMIZERS[optimizer], task)
    for count in COUNTS:
        assert distance(trained(range(count), OPTIMIZERS[optimizer], task), one) < FLOAT32, count


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", [[0, 2, 4], [-1, 8], [0, -1], [0, -1, 2], [-1, 2, 4]], ids=str)
def test_reshapes_with_an_open_batch(shape):
    def reshaped(model, loss_scale):
        x = brew.reshape(model, brew.fc(model, "data", "fc1", 6, 8), "parts", shape=shape)
        x = brew.reshape(model, x, "rows", shape=[-1, 8])
        return scaled_loss(model, brew.fc(model, x, "fc2", 8, 4), loss_scale)

    one = trained([0], task=Task(reshaped))
    for count in COUNTS:
        assert distance(trained(range(count), task=Task(reshaped)), one) < FLOAT32, count


@pytest.mark.one_in(2)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_float64(optimizer):
    """The loss scale over 3 devices is a float32 argument, and 1/3 for a loss of float64."""
    one = trained([0], OPTIMIZERS[optimizer], prepare=in_float64, dtype=np.float64)
    assert all(value.dtype == np.float64 for value in one)
    for count in COUNTS:
        got = trained(range(count), OPTIMIZERS[optimizer], prepare=in_float64, dtype=np.float64)
        assert distance(got, one) < FLOAT64, count


def looks_up(model, loss_scale):
    """Looks up rows of a table, some of them several times, so that its gradient is sparse."""
    indices = model.net.Cast(model.net.Mod("label", "row", divisor=3), "index", to="int32")
    table = model.param_init_net.XavierFill([], "table", shape=[3, 6])
    model.AddParameter(table)
    x = model.net.Add(["data", model.net.Gather([table, indices], "rows")], "joined")
    return scaled_loss(model, brew.fc(model, x, "fc", 6, 4), loss_scale)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("forward", [mlp, looks_up])
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("options", [{}, {"accumulate_steps": 2}, {"weighted_shares": True}], ids=str)
def test_weight_decay_and_clipping_are_the_same(name, forward, options):
    def build(model, bound=0.1):
        if forward is mlp:
            optimizers.add_weight_decay(model, 0.01)
        builder, rate = (optimizers.build_adam, 0.01) if name == "adam" else (optimizers.build_sgd, 0.5)
        return builder(model, rate, max_gradient_norm=bound)

    task = Task(forward, steps=8, options=options)
    one = trained([0], build, task)
    assert distance(one, trained([0], lambda model: build(model, None), task)) > 1e-4  # clipping does something
    for count in (3,) if options else (2, 3):
        assert distance(trained(range(count), build, task), one) < 3 * FLOAT32, count


@pytest.mark.parametrize("devices", [[3, 7], [11, 2, 30]], ids=str)
def test_device_ids_do_not_matter(devices):
    assert distance(trained(devices), trained(range(len(devices)))) == 0.0


def test_shared_model():
    shared = Task(mlp, options={"shared_model": True})
    for optimizer in ("momentum", "adam"):
        plain = trained([0, 1], OPTIMIZERS[optimizer])
        assert distance(trained([0, 1], OPTIMIZERS[optimizer], shared), plain) < FLOAT32


@pytest.mark.one_in(2)
@pytest.mark.parametrize("net_type", ["simple", "dag", "async_scheduling"])
def test_executors(net_type):
    task = Task(mlp, options={"net_type": net_type})
    assert distance(trained([0, 1, 2], task=task), trained([0, 1, 2])) == 0.0


@pytest.mark.parametrize("net_type", ["dag", "async_scheduling"])
def test_executors_agree_to_the_bit_where_a_lane_has_as_many_threads(net_type):
    """How many threads a kernel has is the order of its sums; here one, in one lane and in two."""

    def convolved(net_type, threads):
        task = Task(convnet, (8, 3, 8, 8), steps=3, options={"net_type": net_type})
        return trained([0, 1], OPTIMIZERS["momentum"], task, threads=threads)

    one = convolved("simple", 1)
    assert all(np.array_equal(a, b) for a, b in zip(convolved(net_type, 2), one))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_two_runs_are_equal_bit_for_bit(count):
    task = Task(convnet, (8, 3, 8, 8), steps=3)
    first, second = (trained(range(count), OPTIMIZERS["momentum"], task) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second))


def test_all_replicas_hold_the_same():
    _, record, workspace = train(range(4), OPTIMIZERS["adam"])
    first = values(record, workspace)
    for replica in range(1, 4):
        assert all(np.array_equal(a, b) for a, b in zip(values(record, workspace, replica), first))


def test_gradients_are_summed_once_and_equal_everywhere():
    """What each device has after a step is the mean over the whole batch, not a multiple of it."""
    task = Task(mlp, steps=1)
    _, record, workspace = train([0], OPTIMIZERS["sgd"], task)
    whole = {group.values: workspace.fetch("cpu_0/" + group.values) for group in record.gradients}
    assert len(whole) == 4
    for count in COUNTS:
        _, record, workspace = train(range(count), OPTIMIZERS["sgd"], task)
        for name, want in whole.items():
            found = [workspace.fetch(blob) for blob in record.devices.copies(name)]
            assert distance(found[:1], [want]) < FLOAT32
            assert all(np.array_equal(found[0], other) for other in found[1:])


def test_dropout_draws_by_the_sample_not_by_the_device():
    task = Task(dropped)
    one = trained([0], task=task)
    for count in COUNTS:
        assert distance(trained(range(count), task=task), one) < FLOAT32, count
    assert distance(trained([0], task=task, seed=5), one) > 1e-3


def test_several_losses_and_outputs():
    def forward(model, loss_scale):
        h = brew.relu(model, brew.fc(model, "data", "fc1", 6, 8), "h")
        losses = []
        for k, weight in enumerate((1.0, 0.3)):
            scores = brew.fc(model, h, f"scores{k}", 8, 4)
            _, loss = model.net.SoftmaxWithLoss([scores, "label"], [f"softmax{k}", f"loss{k}"])
            losses.append(model.Scale(loss, f"scaled{k}", scale=loss_scale * weight))
        return losses

    task = Task(forward)
    one = trained([0], task=task)
    for count in COUNTS:
        assert distance(trained(range(count), task=task), one) < FLOAT32, count


def in_place(model, loss_scale):
    hidden = brew.relu(model, brew.fc(model, "data", "fc1", 6, 8), "fc1")
    loss = softmax_loss(model, brew.fc(model, hidden, "fc2", 8, 4))
    return [model.net.Scale(loss, "loss", scale=loss_scale)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_scaled_in_place(count):
    assert distance(trained(range(count), task=Task(in_place)), trained([0])) < FLOAT32


def test_a_loss_that_another_is_computed_from():
    def scaled(model, factor):
        loss = softmax_loss(model, brew.fc(model, "data", "fc", 6, 4))
        return model.Scale(loss, "scaled", scale=factor)

    def forward(model, loss_scale):
        loss = scaled(model, loss_scale)
        return [loss, model.Scale(loss, "more", scale=0.5)]

    want = trained([0], task=Task(lambda model, loss_scale: [scaled(model, 1.5 * loss_scale)]))
    for count in (1, 2):
        assert distance(trained(range(count), task=Task(forward)), want) < FLOAT32, count


# Batch normalization: each device normalizes its own slice.


def normalized(model, loss_scale, suffix=""):
    """A layer with batch normalization; ``suffix`` names a slice of the batch and its statistics."""
    x = model.net.FC(["data" + suffix, "fc1_w", "fc1_b"], "fc1" + suffix)
    x = model.net.ExpandDims(x, "planes" + suffix, dims=[2, 3])
    state = ["bn_rm" + suffix, "bn_riv" + suffix]
    names = ["bn" + suffix, *state, "sm" + suffix, "siv" + suffix]
    x = model.net.SpatialBN([x, "bn_s", "bn_b", *state], names, is_test=0, epsilon=1e-3, momentum=0.8)[0]
    x = model.net.FC([model.net.Flatten(x, "flat" + suffix), "fc2_w", "fc2_b"], "fc2" + suffix)
    _, loss = model.net.SoftmaxWithLoss([x, "label" + suffix], ["softmax" + suffix, "loss" + suffix])
    return model.net.Scale(loss, "scaled" + suffix, scale=loss_scale)


def add_parameters(model, slices=("",)):
    init = model.param_init_net
    for name, shape in (("fc1", (5, 6)), ("fc2", (4, 5))):
        model.AddParameter(init.XavierFill([], name + "_w", shape=shape), "WEIGHT")
        model.AddParameter(init.ConstantFill([], name + "_b", shape=shape[:1], value=0.1), "BIAS")
    model.AddParameter(init.ConstantFill([], "bn_s", shape=[5], value=1.0))
    model.AddParameter(init.ConstantFill([], "bn_b", shape=[5], value=0.0))
    for suffix in slices:
        model.AddParameter(init.ConstantFill([], "bn_rm" + suffix, shape=[5], value=0.0), "COMPUTED_PARAM")
        model.AddParameter(init.ConstantFill([], "bn_riv" + suffix, shape=[5], value=1.0), "COMPUTED_PARAM")


def normalized_on_one_device(count, task):
    """The same training without Parallelize: a branch for each slice of the batch, the parameters shared."""
    slices = [f"_{k}" for k in range(count)]
    model = ModelHelper("reference")
    add_parameters(model, slices)
    model.AddGradientOperators([normalized(model, 1.0 / count, suffix) for suffix in slices])
    OPTIMIZERS["momentum"](model)
    workspace = Workspace(threads=1)
    for number, batch in enumerate(task.batches()):
        for name, whole in batch.items():
            for suffix, part in zip(slices, np.split(whole, count)):
                workspace.feed(name + suffix, part)
        if number == 0:
            workspace.run_net_once(model.param_init_net)
            workspace.create_net(model.net)
        workspace.run_net(model.net.Name())
    return workspace


def forward_normalized(model, loss_scale):
    add_parameters(model)
    return [normalized(model, loss_scale)]


PARAMETERS = ["fc1_w", "bn_s", "bn_b", "fc2_w", "fc2_b"]  # fc1_b has no gradient but rounding, under the normalization


@pytest.mark.one_in(4)
@pytest.mark.parametrize("count", [1, *COUNTS])
def test_batch_normalization_equals_one_that_normalizes_each_slice(count):
    task = Task(forward_normalized)
    _, record, workspace = train(range(count), OPTIMIZERS["momentum"], task)
    assert record.computed == ("bn_rm", "bn_riv")
    reference = normalized_on_one_device(count, task)
    for name in PARAMETERS:
        got = [workspace.fetch("cpu_0/" + name)]
        assert distance(got, [reference.fetch(name)]) < FLOAT32, name
    for name in record.computed:  # those of the first slice, on all devices
        for blob in record.blobs(name):
            assert distance([workspace.fetch(blob)], [reference.fetch(name + "_0")]) < FLOAT32


def test_without_their_broadcast_the_statistics_are_each_devices_own():
    task = Task(forward_normalized, options={"broadcast_computed_params": False})
    model, record, workspace = train([0, 1], OPTIMIZERS["momentum"], task)
    reference = normalized_on_one_device(2, task)
    for name in record.computed:
        for replica, blob in enumerate(record.blobs(name)):
            assert distance([workspace.fetch(blob)], [reference.fetch(f"{name}_{replica}")]) < FLOAT32
    assert {"cpu_0/bn_rm", "cpu_0/bn_riv"} <= {str(blob) for blob in parallel.GetCheckpointParams(model)}


# A table outside the replicas.

ROWS, COLUMNS, READ = 9, 3, 4


def with_table(count, build_update, dense=False):
    """Train a table that all replicas read, with repeated indices; return its values and the layer's."""
    model = ModelHelper("tables")
    with NameScope("cpu"), DeviceScope(make_device_option(0, 0)):
        table = model.param_init_net.XavierFill([], "table", shape=[ROWS, COLUMNS])
        model.AddParameter(table)

    def forward(model, loss_scale):
        if dense:
            rows = model.net.MatMul(["one_hot", table], "rows")
        else:
            rows = model.net.Gather([table, "indices"], "rows")
        x, _ = model.net.Reshape(rows, ["flat", "old_shape"], shape=[-1, READ * COLUMNS])
        x = brew.fc(model, x, "fc", READ * COLUMNS, 4)
        return scaled_loss(model, x, loss_scale)

    record = parallel.Parallelize_CPU(
        model, no_input, forward, optimizer_builder_fun=build_update, devices=list(range(count))
    )
    assert record.outside == ("cpu/table",)
    workspace, rng = Workspace(threads=2), np.random.default_rng(3)
    for step in range(3):
        indices = rng.integers(0, ROWS, (24, READ)).astype(np.int32)
        label = rng.integers(0, 4, 24).astype(np.int32)
        for scope, of_replica, labels in zip(record.devices.scopes, np.split(indices, count), np.split(label, count)):
            flat = of_replica.reshape(-1)
            workspace.feed(scope + "indices", flat)
            workspace.feed(scope + "one_hot", np.eye(ROWS, dtype=np.float32)[flat])
            workspace.feed(scope + "label", labels)
        if step == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    return [workspace.fetch("cpu/table")], [workspace.fetch("cpu_0/fc_w"), workspace.fetch("cpu_0/fc_b")], model


@pytest.mark.one_in(2)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad_deduplicated"])
def test_a_table_outside_gets_the_update_of_a_dense_gradient(optimizer):
    """Repeated indices, within a device and over devices, count as often as they occur."""
    build = {
        "sgd": OPTIMIZERS["sgd"],
        "adagrad_deduplicated": lambda model: optimizers.build_adagrad(model, 0.05, sparse_dedup_aggregator="sum"),
    }[optimizer]
    table, layer, _ = with_table(1, build, dense=True)
    for count in [1, *COUNTS]:
        got_table, got_layer, model = with_table(count, build)
        assert distance(got_table, table) < FLOAT32, count
        assert distance(got_layer, layer) < FLOAT32, count
        assert isinstance(model.param_to_grad[model.params[0]], GradientSlice)
        updates = [op for op in model.net.Proto().op if "cpu/table" in op.output]
        assert len(updates) == 1
        assert [op.type for op in model.param_init_net.Proto().op if "cpu/table" in op.output] == ["XavierFill"]


def test_a_frozen_table_outside_is_left_alone():
    model = ModelHelper("frozen")
    with NameScope("cpu"):
        table = model.param_init_net.XavierFill([], "table", shape=[ROWS, 6])
        model.AddParameter(table)

    def forward(model, loss_scale):
        model.net.StopGradient(model.net.Gather([table, "indices"], "data"), "data")
        return mlp(model, loss_scale)

    record = parallel.Parallelize_CPU(model, no_input, forward, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0, 1])
    assert record.outside == ("cpu/table",)
    assert not [op for op in model.net.Proto().op if "cpu/table" in op.output]


def test_a_builder_of_updates_that_omits_some_is_warned_of():
    def of_the_replica(model):
        rate = model.net.ConstantFill([], "rate", shape=[1], value=-0.1)
        one = model.net.ConstantFill([], "one", shape=[1], value=1.0)
        for param in model.GetParams():
            model.net.WeightedSum([param, one, model.param_to_grad[param], rate], param)

    for count in (1, 2):
        model = ModelHelper("left_out")
        weight = model.param_init_net.XavierFill([], "outside_w", shape=[6, 6])
        model.AddParameter(weight)

        def forward(model, loss_scale, weight=weight):
            model.net.MatMul(["raw", weight], "data")
            return mlp(model, loss_scale)

        with pytest.warns(
            UserWarning, match=r"parameters \['outside_w'\].*does not update them.*optimizer_builder_fun"
        ):
            parallel.Parallelize_CPU(
                model, no_input, forward, param_update_builder_fun=of_the_replica, devices=list(range(count))
            )
        assert not [op for op in model.net.Proto().op if "outside_w" in op.output]


def test_parameters_without_a_gradient_are_neither_reduced_nor_updated():
    def forward(model, loss_scale):
        brew.fc(model, "data", "unused", 6, 3)
        frozen = model.net.StopGradient(brew.fc(model, "data", "frozen", 6, 6), "stopped")
        model.net.Sum(["data", frozen], "data_and_more")
        x = brew.fc(model, "data_and_more", "fc", 6, 4)
        return scaled_loss(model, x, loss_scale)

    model, record = parallelize([0, 1], forward)
    assert [group.parameter for group in record.gradients] == ["fc_w", "fc_b"]
    written = {blob for op in model.net.Proto().op for blob in op.output}
    assert not {"cpu_0/unused_w", "cpu_1/frozen_w", "cpu_0/frozen_b"} & written
    assert "frozen_w" in record.parameters and "unused_w" in record.parameters


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_gpus_equal_the_cpu(optimizer):
    task = Task(convnet, (8 * gpu_count(), 3, 8, 8), steps=3)
    want = trained([0], OPTIMIZERS[optimizer], task)
    model = ModelHelper("on_gpus")
    record = parallel.Parallelize_GPU(
        model, no_input, convnet, optimizer_builder_fun=OPTIMIZERS[optimizer], devices=list(range(gpu_count()))
    )
    workspace = Workspace()
    for number, batch in enumerate(task.batches()):
        for name, whole in batch.items():
            for blob, part, device in zip(
                record.devices.copies(name), np.split(whole, len(record)), record.devices.options
            ):
                workspace.feed(blob, part, device)
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    assert distance(values(record, workspace), want) < 1e-4
