"""Data parallelism over GPUs gives what it gives over replicas on the CPU."""

import re

import numpy as np
import pytest

import golden_data
from netbuilder import optimizers, parallel
from netbuilder.engines.arrays import gpu_count
from netbuilder.engines.layouts import HOST
from netbuilder.exchange import load_predictor, save_predictor
from netbuilder.graph import DeviceScope, GradientSlice, NameScope
from netbuilder.model import ModelHelper, brew
from netbuilder.passes import extract_predictor
from netbuilder.proto import PROTO_CUDA, DeviceError, ShapeError
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from on_gpu import CLOSE, gpus
from parallel_models import OPTIMIZERS, Task, distance, no_input
from toy_models import convnet, dropped, max_pooled, mlp, scaled_loss


def build(device_type, devices, forward, optimizer, name="net", **options):
    model = ModelHelper(name)
    make = parallel.Parallelize_GPU if device_type == "gpu" else parallel.Parallelize_CPU
    record = make(model, no_input, forward, optimizer_builder_fun=optimizer, devices=list(devices), **options)
    return model, record


def train(device_type, devices, forward=mlp, optimizer=OPTIMIZERS["sgd"], task=None, *, on_device=True, **options):
    """Train a task; return what all replicas hold of the parameters, and the workspace."""
    task = task or Task(forward)
    model, record = build(device_type, devices, forward, optimizer, **options)
    workspace = Workspace(threads=4, engines=())
    for number, batch in enumerate(task.batches()):
        for name, whole in batch.items():
            places = record.devices.options if on_device else [None] * len(record)
            for blob, part, option in zip(record.devices.copies(name), np.split(whole, len(record)), places):
                workspace.feed(blob, part, option)
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    names = (*record.parameters, *record.computed)
    held = [[workspace.fetch(record.blobs(name)[replica]) for name in names] for replica in range(len(record))]
    return held, workspace


# The promise.


def check_equality(count, forward, optimizer, shape, **options):
    task = Task(forward, shape, steps=3)
    (want, *_), _ = train("cpu", range(count), forward, OPTIMIZERS[optimizer], task)
    got, _ = train("gpu", range(count), forward, OPTIMIZERS[optimizer], task, **options)
    for replica in got:
        assert distance(replica, want) < CLOSE
        assert all(np.array_equal(a, b) for a, b in zip(replica, got[0]))


NETS = {"mlp": (mlp, (24, 6)), "convnet": (convnet, (8, 3, 8, 8)), "normalized": (max_pooled, (8, 3, 8, 8))}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NETS)
def test_two_gpus_equal_two_replicas_on_the_cpu(two_gpus, name, optimizer):
    forward, shape = NETS[name]
    check_equality(2, forward, optimizer, shape)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("net_type", ["simple", "dag", "async_scheduling"])
@pytest.mark.parametrize("name", NETS)
def test_four_gpus_equal_four_replicas_on_the_cpu(four_gpus, name, net_type):
    forward, shape = NETS[name]
    check_equality(4, forward, "momentum", shape, net_type=net_type)


@pytest.mark.parametrize("name", NETS)
def test_one_gpu_equals_the_cpu(one_gpu, name):
    forward, shape = NETS[name]
    check_equality(1, forward, "adam", shape)


def test_three_gpus_that_are_not_the_first(four_gpus):
    task = Task(mlp)
    want = train("cpu", range(3), mlp, OPTIMIZERS["sgd"], task)[0][0]
    for got in train("gpu", [3, 1, 2], mlp, OPTIMIZERS["sgd"], task)[0]:
        assert distance(got, want) < CLOSE


@pytest.mark.multi_gpu
@pytest.mark.parametrize("count", [5, 8])
def test_one_sum_of_five_gpus_and_a_tree_of_eight(count):
    if gpu_count() < count:
        pytest.skip(f"needs {count} GPUs")
    check_equality(count, mlp, "sgd", (2 * count, 6))


def test_without_access_to_each_other(four_gpus):
    check_equality(4, convnet, "sgd", (8, 3, 8, 8), peer_access=lambda reader, owner: False)


@pytest.mark.parametrize("name", NETS)
def test_exchange_by_nccl_between_two(two_gpus, name):
    forward, shape = NETS[name]
    check_equality(2, forward, "momentum", shape, use_nccl=True)


@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_exchange_by_nccl_between_four(four_gpus, net_type):
    check_equality(4, max_pooled, "momentum", (8, 3, 8, 8), use_nccl=True, net_type=net_type)


@pytest.mark.emulated
@pytest.mark.parametrize("by_nccl", [False, True])
def test_streams_and_events_are_made_once(by_nccl):
    """None in a step after the third, in which CUDA graphs are captured."""
    with gpus(2) as machine:
        model, record = build("gpu", range(2), mlp, OPTIMIZERS["momentum"], use_nccl=by_nccl, net_type="dag")
        workspace = Workspace(threads=4)
        for number, batch in enumerate(Task(mlp, steps=5).batches()):
            made = machine.counts
            for name, whole in batch.items():
                for blob, part, place in zip(record.devices.copies(name), np.split(whole, 2), record.devices.options):
                    workspace.feed(blob, part, place)
            if number == 0:
                parallel.RunInitNet(model, workspace=workspace)
            parallel.RunNet(model, workspace=workspace)
            workspace.fetch(record.blobs("loss")[1])
            made = machine.counts - made
            assert (made["streams"] + made["events"] > 0) == (number in (0, 2)), (number, made)
        assert made["replays"] and made["records"] and made["waits"], made


def test_batches_fed_to_the_host(two_gpus):
    check_equality(2, mlp, "sgd", (24, 6), on_device=False)


def test_dropout_draws_the_same_on_gpus(two_gpus):
    check_equality(2, dropped, "sgd", (24, 6))


def test_every_replica_keeps_its_blobs(two_gpus):
    _, workspace = train("gpu", [0, 1], convnet, OPTIMIZERS["momentum"], Task(convnet, (8, 3, 8, 8), steps=2))
    for name in workspace.blobs():
        if name.startswith("gpu_") and not workspace.get(name).hidden_by:
            assert workspace.get(name).location == (PROTO_CUDA, int(name[4])), name


# Operators on the host inside of a GPU's replica, and tables outside.


def on_host():
    return DeviceScope(make_device_option(0, 0))


def with_tanh_on_the_host(copies):
    def forward(model, loss_scale):
        h = brew.relu(model, brew.fc(model, "data", "fc1", 6, 8), "h")
        if copies and "gpu" in str(h):
            h = model.net.CopyGPUToCPU(h, "h_host")
        with on_host():
            t = model.net.Tanh(h, "t")
        if copies and "gpu" in str(h):
            t = model.net.CopyCPUToGPU(t, "t_gpu")
        return scaled_loss(model, brew.fc(model, t, "fc2", 8, 4), loss_scale)

    return forward


@pytest.mark.parametrize("copies", [True, False], ids=["copied by operators", "copied by the plan"])
def test_operators_of_the_cpu_inside_a_replica(two_gpus, copies):
    forward = with_tanh_on_the_host(copies)
    check_equality(2, forward, "momentum", (24, 6))
    _, workspace = train("gpu", [0, 1], forward)
    for number in (0, 1):
        assert workspace.get(f"gpu_{number}/t").location == HOST
        assert workspace.get(f"gpu_{number}/fc2").location == (PROTO_CUDA, number)


ROWS, COLUMNS, READ = 9, 4, 3


def train_table(device_type, count, *, copies=True, layer=True, steps=3):
    """Train a table on the host that all replicas read; return it, and the model."""
    model = ModelHelper("tables")
    with NameScope("cpu"), on_host():
        table = model.param_init_net.XavierFill([], "table", shape=[ROWS, READ * COLUMNS // READ])
        model.AddParameter(table)

    def forward(model, loss_scale):
        with on_host():
            rows = model.net.Gather([table, "indices"], "rows")
        if copies and device_type == "gpu":
            rows = model.net.CopyCPUToGPU(rows, "rows_here")
        x, _ = model.net.Reshape(rows, ["flat", "old_shape"], shape=[-1, READ * COLUMNS])
        if layer:
            x = brew.fc(model, x, "fc", READ * COLUMNS, 12)
        return scaled_loss(model, x, loss_scale)

    make = parallel.Parallelize_GPU if device_type == "gpu" else parallel.Parallelize_CPU
    record = make(model, no_input, forward, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=list(range(count)))
    assert record.outside == ("cpu/table",)
    workspace, rng = Workspace(threads=3, engines=()), np.random.default_rng(3)
    for step in range(steps):
        indices, label = rng.integers(0, ROWS, (24, READ)), rng.integers(0, 12, 24)
        for scope, rows, labels in zip(record.devices.scopes, np.split(indices, count), np.split(label, count)):
            workspace.feed(scope + "indices", rows.reshape(-1).astype(np.int32))
            workspace.feed(scope + "label", labels.astype(np.int32))
        if step == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    assert workspace.get("cpu/table").location == HOST
    return workspace.fetch("cpu/table"), model


@pytest.mark.parametrize(
    "layer", [True, False], ids=["with a layer on the GPU", "no gradient on the GPU is a parameter's"]
)
@pytest.mark.parametrize("copies", [True, False], ids=["copied by operators", "copied by the plan"])
def test_a_table_on_the_host_learns_from_losses_on_gpus(two_gpus, copies, layer):
    want, _ = train_table("cpu", 1, layer=layer)
    got, model = train_table("gpu", 2, copies=copies, layer=layer)
    assert distance([got], [want]) < CLOSE
    assert isinstance(model.param_to_grad[model.params[0]], GradientSlice)


# Golden nets for GPUs, as Caffe2 stored them; their numbers are those of the same operators on the CPU.


def wrong_blobs(golden, numbers, workspace, instead=("", "")):
    """Run a golden net; return what differs from the numbers, which may be another golden net's under other names."""

    def named(arrays):
        return {re.sub(r"\b" + instead[0], instead[1], name) if instead[0] else name: v for name, v in arrays.items()}

    for name, value in named(numbers.inputs(1)).items():
        workspace.feed(name, value)
    workspace.run_net_once(golden.init)
    for name, value in named(numbers.start_values()).items():
        workspace.feed(name, value)
    workspace.create_net(golden.main)
    wrong = {}
    for iteration in numbers.iterations():
        for name, value in named(numbers.inputs(iteration)).items():
            workspace.feed(name, value)
        workspace.run_net(golden.main.name)
        for name, value in named(numbers.expected(iteration)).items():
            said = golden_data.mismatch(workspace.fetch(name), value, "close", numbers.rtol, numbers.atol)
            if said:
                wrong[iteration, name] = said
    return wrong


STORED = [name for name in golden_data.nets() if name.startswith("gpu_structure_")]
RUNNABLE = [name for name in STORED if golden_data.net(name).runnable]
BORROWED = {  # those that were stored without numbers, and the net that has them
    "gpu_structure_convnet_2_nccl": ("gpu_structure_convnet_2", ("", "")),
    "gpu_structure_convnet_2_combine_bn": ("dp_convnet_2_combine_bn", ("cpu_", "gpu_")),
}


def test_every_stored_net_for_gpus_runs():
    assert {*RUNNABLE, *BORROWED} == set(STORED)


def check_golden(name, threads):
    golden = golden_data.net(name)
    source, instead = BORROWED.get(name, (name, ("", "")))
    assert wrong_blobs(golden, golden_data.net(source), Workspace(threads=threads), instead) == {}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("name", [name for name in STORED if "_4" not in name])
def test_stored_nets_for_one_gpu_or_two(two_gpus, name, threads):
    check_golden(name, threads)


@pytest.mark.parametrize("name", [name for name in STORED if "_4" in name])
def test_stored_nets_for_four_gpus(four_gpus, name):
    check_golden(name, threads=4)


# A checkpoint, and errors.


def test_a_checkpoint_is_taken_up_by_all_gpus(two_gpus):
    task = Task(mlp)
    held, workspace = train("gpu", [0, 1], task=task)
    model, record = build("gpu", [0, 1], mlp, OPTIMIZERS["sgd"])
    kept = {str(name): workspace.fetch(str(name)) for name in parallel.GetCheckpointParams(model)}
    other = Workspace(threads=2)
    for name, value in next(iter(task.batches())).items():
        for blob, part, option in zip(record.devices.copies(name), np.split(value, 2), record.devices.options):
            other.feed(blob, part, option)
    parallel.RunInitNet(model, workspace=other)
    for name, value in kept.items():
        other.feed(name, value)
    parallel.FinalizeAfterCheckpoint(model, workspace=other)
    for name, value in zip(record.parameters, held[0]):
        for number, blob in enumerate(record.blobs(name)):
            np.testing.assert_array_equal(other.fetch(blob), value)
            assert other.get(blob).location == (PROTO_CUDA, number)


@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
def test_gpus_that_are_missing_are_named_with_those_that_are_there(two_gpus):
    absent, present = gpu_count() + 5, list(range(gpu_count()))
    model, _ = build("gpu", [0, absent], mlp, OPTIMIZERS["sgd"])
    want = re.escape(f"needs the GPUs [0, {absent}], but this machine has {present}; missing: [{absent}]")
    with pytest.raises(DeviceError, match=want):
        parallel.RunInitNet(model, workspace=Workspace())
    with pytest.raises(DeviceError, match=rf"on GPU {absent}, made at .*: there is no GPU {absent}; this machine has"):
        Workspace().run_net_once(model.param_init_net)


def test_an_error_in_a_replica_names_its_gpu(two_gpus):
    model, record = build("gpu", [0, 1], mlp, OPTIMIZERS["sgd"])
    workspace = Workspace(threads=2)
    for scope, option in zip(record.devices.scopes, record.devices.options):
        workspace.feed(scope + "data", np.ones((4, 6), np.float32), option)
        workspace.feed(scope + "label", np.int32([0, 1, 2, 3]), option)
    parallel.RunInitNet(model, workspace=workspace)
    workspace.feed("gpu_1/label", np.int32([0, 1, 2, 4]))
    with pytest.raises(
        ShapeError, match=r"SoftmaxWithLoss \['gpu_1/fc2', 'gpu_1/label'\] .* on GPU 1, made at .*labels"
    ):
        parallel.RunNet(model, workspace=workspace)
    workspace.feed("gpu_1/label", np.int32([0, 1, 2, 3]))
    parallel.RunNet(model, 2, workspace=workspace)


def test_a_predictor_cut_out_of_a_model_for_gpus_runs_on_one_and_on_the_cpu(two_gpus, tmp_path):
    _, workspace = train("gpu", [0, 1])
    model, _ = build("gpu", [0, 1], mlp, OPTIMIZERS["sgd"])
    found = []
    for option in (make_device_option(PROTO_CUDA, 1), make_device_option(0, 0), None):
        net, parameters = parallel.ExtractPredictorNet(model, ["data"], ["softmax"], option)
        save_predictor(tmp_path, net, parameters, workspace=workspace)
        found.append(load_predictor(tmp_path).run(data=np.ones((3, 6), np.float32))["softmax"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    np.testing.assert_allclose(found[2], found[1], rtol=1e-5)


@pytest.mark.parametrize("place", [None, (PROTO_CUDA, 1), HOST], ids=["its own", "another GPU", "CPU"])
def test_a_predictor_is_loaded_onto_another_device(two_gpus, tmp_path, place):
    """With its parameters and what it computes, whatever the device of the replica that it was cut out of."""
    _, workspace = train("gpu", [0, 1])
    model, _ = build("gpu", [0, 1], mlp, OPTIMIZERS["sgd"])
    net, parameters = parallel.ExtractPredictorNet(model, ["data"], ["softmax"])
    save_predictor(tmp_path, net, parameters, workspace=workspace)
    predictor = load_predictor(tmp_path, device=None if place is None else make_device_option(*place))
    data = np.float32(np.random.default_rng(0).standard_normal((3, 6)))
    got = predictor.run(data=data)["softmax"]
    names = ["fc1_w", "fc2_b", "softmax"]
    assert [predictor.workspace.get(name).location for name in names] == [place or (PROTO_CUDA, 0)] * 3
    values = [workspace.fetch(f"gpu_0/{name}") for name in ("fc1_w", "fc1_b", "fc2_w", "fc2_b")]
    hidden = np.maximum(data @ values[0].T + values[1], 0)
    scores = np.exp(hidden @ values[2].T + values[3])
    np.testing.assert_allclose(got, scores / scores.sum(axis=1, keepdims=True), rtol=1e-4)


def test_a_predictor_for_a_gpu_that_is_missing_says_so_when_it_is_loaded(two_gpus, tmp_path):
    _, workspace = train("gpu", [0, 1])
    model, _ = build("gpu", [0, 1], mlp, OPTIMIZERS["sgd"])
    absent = gpu_count() + 2
    net, parameters = parallel.ExtractPredictorNet(model, ["data"], ["softmax"], make_device_option(PROTO_CUDA, absent))
    save_predictor(tmp_path, net, parameters, workspace=workspace)
    with pytest.raises(DeviceError, match=f"needs GPU {absent}: give device=make_device_option"):
        load_predictor(tmp_path)


def test_a_predictor_gives_what_the_model_gives_in_test_mode(two_gpus, tmp_path):
    """By running statistics, in one folder, loaded onto another GPU; and with new names, without a branch."""

    def evaluated(model, loss_scale):
        x = brew.conv(model, "data", "conv", 3, 4, kernel=3, pad=1, no_bias=1)
        x = brew.relu(model, brew.spatial_bn(model, x, "bn", 4, epsilon=1e-3, is_test=True), "bn")
        x = brew.softmax(model, brew.fc(model, brew.max_pool(model, x, "pool", kernel=2, stride=2), "fc", 64, 4), "y")
        model.net.Mul([x, "weights"], "weighted")

    _, workspace = train("gpu", [0, 1], max_pooled, task=Task(max_pooled, (8, 3, 8, 8)))
    model = ModelHelper("evaluation", init_params=False)
    record = parallel.Parallelize_GPU(model, no_input, evaluated, devices=[0, 1])
    for name, option in zip(record.devices.copies("weights"), record.devices.options):
        workspace.feed(name, np.ones((4, 4), np.float32), option)
    parallel.CreateNet(model, workspace=workspace)
    parallel.RunNet(model, workspace=workspace)
    before = model.net.Proto().SerializeToString()
    for number, option in ((0, make_device_option(PROTO_CUDA, 1)), (1, make_device_option(0, 0))):
        net, parameters = parallel.ExtractPredictorNet(model, ["data"], ["y"], option)
        save_predictor(tmp_path, net, parameters, workspace=workspace)
        got = load_predictor(tmp_path).run(data=workspace.fetch(f"gpu_{number}/data"))["y"]
        np.testing.assert_allclose(got, workspace.fetch(f"gpu_{number}/y"), rtol=1e-4, atol=1e-6)
    renames, there = {"gpu_0/data": "image", "gpu_0/y": "scores"}, make_device_option(PROTO_CUDA, 1)
    net, parameters = extract_predictor(
        model.net, ["gpu_0/data"], ["gpu_0/y"], device=there, renames=renames, disabled=["gpu_0/weights"]
    )
    assert "gpu_0/weights" not in parameters
    save_predictor(tmp_path, net, parameters, workspace=workspace)
    got = load_predictor(tmp_path).run(image=workspace.fetch("gpu_0/data"))["scores"]
    np.testing.assert_allclose(got, workspace.fetch("gpu_0/y"), rtol=1e-4, atol=1e-6)
    assert model.net.Proto().SerializeToString() == before


def test_weight_decay_and_clipping(two_gpus):
    def optimizer(model):
        optimizers.add_weight_decay(model, 0.01)
        return optimizers.build_sgd(model, 0.1, momentum=0.9, max_gradient_norm=0.5)

    task = Task(mlp)
    want = train("cpu", [0, 1], mlp, optimizer, task)[0][0]
    for got in train("gpu", [0, 1], mlp, optimizer, task)[0]:
        assert distance(got, want) < CLOSE
