"""A parallel model run: initialized, created and run; learning rates; what a checkpoint holds."""

import logging
import textwrap
import warnings

import numpy as np
import pytest

import golden_data
from netbuilder import parallel
from netbuilder.data.minidb import write_minidb
from netbuilder.data.tensor_records import tensor_to_proto
from netbuilder.graph import CurrentDeviceScope, CurrentNameScope, DeviceScope, GradientSlice, NameScope
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import BlobError, NetError, TensorProtos
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default
from parallel_models import OPTIMIZERS, Task, golden_parallel, no_input, parallelize, train
from structure import differences
from toy_models import mlp, scaled_loss


def feed(record, workspace, samples=4):
    rng = np.random.default_rng(1)
    for scope in record.devices.scopes:
        workspace.feed(scope + "data", rng.normal(size=(samples, 6)).astype(np.float32))
        workspace.feed(scope + "label", rng.integers(0, 4, samples).astype(np.int32))


def iterations(workspace):
    return int(workspace.fetch("optimizer_iteration").item())


def test_one_device_has_the_same_calls_and_no_exchange():
    model, record = parallelize([0])
    assert record.blobs("fc1_w") == ("cpu_0/fc1_w",)
    ops = [*model.net.Proto().op, *model.param_init_net.Proto().op]
    copies = [op.output[0] for op in ops if op.type == "Copy"]
    assert copies == ["optimizer_iteration_before"] and "Sum" not in [op.type for op in ops]
    workspace = Workspace(threads=1)
    feed(record, workspace)
    parallel.RunInitNet(model, workspace=workspace)
    parallel.RunNet(model, 3, workspace=workspace)
    assert iterations(workspace) == 3


@pytest.mark.parametrize("settings", [{}, {"accumulate_steps": 2}], ids=str)
def test_a_net_that_was_created_in_another_workspace(settings):
    model, record = parallelize([0], **settings)
    there, here = Workspace(threads=1), Workspace(threads=1)
    parallel.RunInitNet(model, workspace=there)
    with pytest.raises(NetError, match=r"^RunNet: no net 'net.*create it first, by RunInitNet .* \(created: none\)$"):
        parallel.RunNet(model, workspace=here)


def test_the_log_says_what_was_built(caplog):
    with caplog.at_level(logging.INFO, "netbuilder"):
        parallelize([0, 3])
    assert "over CPU 0, 3: loss scale 1/2, 4 parameters each, 0 outside, 4 gradients exchanged by sums" in caplog.text


def test_the_default_workspace_serves_where_none_is_given():
    default.reset()
    model, record = parallelize([0, 1])
    feed(record, default.workspace())
    parallel.RunInitNet(model)
    parallel.RunNet(model, 2)
    assert iterations(default.workspace()) == 2
    with pytest.raises(NetError, match="net 'net.*' exists already"):
        parallel.CreateNet(model)
    parallel.CreateNet(model, overwrite=True)
    default.reset()


def test_initialization_makes_all_replicas_equal():
    model, record = parallelize([0, 1, 2], optimizer=OPTIMIZERS["momentum"])
    copies = [(op.input[0], op.output[0]) for op in model.param_init_net.Proto().op if op.type == "Copy"]
    names = [*record.parameters, *(name + "_momentum" for name in record.parameters)]
    assert sorted(copies) == sorted((f"cpu_0/{name}", f"cpu_{k}/{name}") for name in names for k in (1, 2))
    workspace = Workspace(threads=1)
    feed(record, workspace)
    parallel.RunInitNet(model, workspace=workspace)
    for name in names:
        first, *others = (workspace.fetch(blob) for blob in record.devices.copies(name))
        assert all(np.array_equal(first, other) for other in others)


def test_builders_are_called_in_order_and_in_their_scopes():
    calls = []

    def note(what, returned=None):
        def call(model, *args):
            scope = CurrentDeviceScope()
            calls.append((what, CurrentNameScope(), None if scope is None else scope.device_id, *args))
            return returned(model, *args) if returned else None

        return call

    model = ModelHelper("net")
    parallel.Parallelize_CPU(
        model,
        note("input"),
        lambda model, scale: note("forward", mlp)(model, scale),
        optimizer_builder_fun=note("optimizer", OPTIMIZERS["sgd"]),
        post_sync_builder_fun=note("post_sync"),
        pre_grad_net_transformer_fun=note("before_gradients"),
        net_transformer_fun=note("transformer"),
        devices=[0, 3],
    )
    assert calls == [
        ("input", "cpu_0/", 0),
        ("forward", "cpu_0/", 0, 0.5),
        ("input", "cpu_3/", 3),
        ("forward", "cpu_3/", 3, 0.5),
        ("before_gradients", "", None),
        ("transformer", "", None, 2, "cpu", 0),
        ("optimizer", "", None),
        ("post_sync", "cpu_0/", 0),
        ("post_sync", "cpu_3/", 3),
    ]
    assert CurrentNameScope() == "" and CurrentDeviceScope() is None


def test_a_reader_made_outside_is_read_by_each_replica(tmp_path):
    """Input builders run per device, and draw different records from one reader."""
    records = [
        (b"%d" % k, TensorProtos(protos=[tensor_to_proto(np.float32([k]))]).SerializeToString()) for k in range(8)
    ]
    path = tmp_path / "numbers.minidb"
    write_minidb(path, records)
    model = ModelHelper("reads")
    reader = model.CreateDB("reader", db=str(path), db_type="minidb")

    def read(model):
        numbers = model.net.TensorProtosDBInput([reader], ["numbers"], batch_size=2)
        model.net.StopGradient(numbers, numbers)

    def forward(model, loss_scale):
        x = brew.fc(model, "numbers", "fc", 1, 1)
        return [model.Scale(model.net.AveragedLoss(x, "loss"), scale=loss_scale)]

    record = parallel.Parallelize_CPU(model, read, forward, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0, 1])
    workspace = Workspace(threads=1)
    parallel.RunInitNet(model, workspace=workspace)
    seen = []
    for _ in range(2):
        parallel.RunNet(model, workspace=workspace)
        seen += [workspace.fetch(blob).ravel().tolist() for blob in record.devices.copies("numbers")]
    assert sorted(number for batch in seen for number in batch) == list(range(8))


def evaluation(param_model=None, **options):
    model = ModelHelper("evaluation", init_params=False, param_model=param_model)
    record = parallel.Parallelize_CPU(model, no_input, mlp, devices=[0, 1], **options)
    return model, record


@pytest.mark.parametrize("shares", [True, False], ids=["param_model", "by_name"])
def test_an_evaluation_net_uses_the_trained_parameters(shares):
    trained, record, workspace = train([0, 1])
    before = workspace.fetch("cpu_0/fc1_w")
    model, own = evaluation(trained if shares else None)
    assert own.gradients == () and own.parameters == record.parameters
    assert [op.type for op in model.net.Proto().op] == ["FC", "Relu", "FC", "SoftmaxWithLoss", "Scale"] * 2
    parallel.RunInitNet(model, workspace=workspace)
    parallel.RunNet(model, workspace=workspace)
    assert np.array_equal(workspace.fetch("cpu_0/fc1_w"), before)


def test_an_evaluation_net_that_would_initialize_does_not_run_over_trained_blobs():
    _, _, workspace = train([0, 1])
    model = ModelHelper("evaluation")
    with pytest.warns(UserWarning, match="is for evaluation, but its init net initializes parameters"):
        parallel.Parallelize_CPU(model, no_input, mlp, devices=[0, 1])
    with pytest.raises(NetError, match=r"would overwrite \['cpu_0/fc1_w'.*and more, which exist in the workspace"):
        parallel.RunInitNet(model, workspace=workspace)
    parallel.RunInitNet(model, overwrite=True, workspace=workspace)


@pytest.mark.parametrize("shared", [True, False])
def test_a_shared_model_evaluates_with_the_first_replicas_parameters(shared):
    _, _, workspace = train([0, 1], task=Task(mlp, options={"shared_model": True}))
    assert not workspace.has("cpu_1/fc1_w")
    model, _ = evaluation(shared_model=shared)
    if shared:
        parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    else:
        with pytest.raises((BlobError, NetError), match="cpu_1/fc1_w"):
            parallel.CreateNet(model, workspace=workspace)
            parallel.RunNet(model, workspace=workspace)


@pytest.mark.parametrize("name, want", [("dp_convnet_2", 1), ("gpu_structure_convnet_4", 4)])
def test_learning_rates_are_one_on_the_cpu_and_one_per_gpu(name, want):
    model, _ = golden_parallel(name)
    names = parallel.GetLearningRateBlobNames(model)
    assert len(names) == len(set(names)) == want
    assert set(names) <= {blob for op in model.net.Proto().op for blob in op.output}


def test_learning_rates_of_a_model_with_an_update_builder():
    model, _ = golden_parallel("dp_embed_outside_2")
    assert parallel.GetLearningRateBlobNames(model) == ["cpu/LR"]
    model, _ = evaluation()
    with pytest.raises(NetError, match="model 'evaluation': its main net has no LearningRate operator"):
        parallel.GetLearningRateBlobNames(model)


def checkpoint(model):
    return sorted(map(str, parallel.GetCheckpointParams(model)))


def test_a_checkpoint_holds_state_and_nothing_else():
    model, _ = golden_parallel("dp_convnet_2")
    golden = golden_data.net("dp_convnet_2")
    params = [name for name in [*golden.meta["params"], *golden.meta["computed_params"]] if name.startswith("cpu_0/")]
    momenta = [name + "_momentum" for name in golden.meta["params"] if name.startswith("cpu_0/")]
    assert checkpoint(model) == sorted([*params, *momenta, "optimizer_iteration"])


def test_a_checkpoint_holds_tables_outside_and_no_data_that_the_init_net_fills():
    model, _ = golden_parallel("dp_embed_outside_2")
    assert checkpoint(model) == ["cpu/ITER", "cpu/vecs", "cpu_0/fc_b", "cpu_0/fc_w"]

    def filled(model):
        model.param_init_net.GaussianFill([], "data", shape=[2, 6])
        model.param_init_net.ConstantFill([], "label", shape=[2], value=1, dtype=2)

    model = ModelHelper("filled")
    parallel.Parallelize_CPU(model, filled, mlp, optimizer_builder_fun=OPTIMIZERS["adam"], devices=[0, 1])
    assert not {"cpu_0/data", "cpu_0/label"} & set(checkpoint(model))
    assert {"cpu_0/fc1_w_first_moment", "cpu_0/fc1_w_second_moment", "optimizer_iteration"} <= set(checkpoint(model))


def golden_builder(export):
    space = {"brew": brew}
    exec(textwrap.dedent(export.meta["source"][0]), space)
    return space["build_convnet_dropout"]


def test_golden_a_checkpoint_holds_what_caffe2s_holds():
    export = golden_data.export("extract_data_parallel")
    build = golden_builder(export)

    def forward(model, loss_scale):
        return [model.Scale(loss, scale=loss_scale) for loss in build(model, c=4, classes=5)]

    model, _ = parallelize([0, 1], forward, OPTIMIZERS["momentum"])
    assert checkpoint(model) == sorted(export.arrays["checkpoint"])


def test_golden_an_evaluation_net_has_the_same_operators():
    export = golden_data.export("extract_data_parallel")
    build = golden_builder(export)
    model = ModelHelper("extract_dp_test", init_params=False, arg_scope={"order": "NCHW"})
    parallel.Parallelize_CPU(
        model, no_input, lambda model, scale: build(model, c=4, classes=5, is_test=1), devices=[0, 1]
    )
    assert differences(model.net.Proto(), export.net("train_net")) == []
    assert not model.param_init_net.Proto().op


def test_scopes_are_stripped_from_names():
    assert parallel.stripBlobName("gpu_0/a/w") == "a/w"
    assert parallel.stripBlobName(GradientSlice("gpu_0/i", "gpu_0/v")) == "i:v"
    with pytest.raises(ValueError, match="blob 'w' has no scope to strip"):
        parallel.stripBlobName("w")


@pytest.mark.parametrize(
    "call",
    [
        parallel.RunInitNet,
        parallel.CreateNet,
        parallel.RunNet,
        parallel.GetLearningRateBlobNames,
        parallel.GetCheckpointParams,
        parallel.FinalizeAfterCheckpoint,
        parallel.Synchronize,
        lambda model: parallel.AddBlobSync(model, ["x"]),
    ],
    ids=["init", "create", "run", "rates", "checkpoint", "finalize", "synchronize", "sync"],
)
def test_a_model_that_is_not_parallel_is_refused(call):
    with pytest.raises(NetError, match="net 'plain.*' has no record of replicas"):
        call(ModelHelper("plain"))


def test_initializing_again_is_refused_and_touches_nothing():
    model, _, workspace = train([0, 1])
    before = workspace.fetch("cpu_0/fc1_w")
    with pytest.raises(NetError, match="net 'net.*' exists already .* would restart the training; give overwrite=True"):
        parallel.RunInitNet(model, workspace=workspace)
    assert np.array_equal(workspace.fetch("cpu_0/fc1_w"), before)
    parallel.RunInitNet(model, overwrite=True, workspace=workspace)
    assert not np.array_equal(workspace.fetch("cpu_0/fc1_w"), before)


@pytest.mark.parametrize("times", [-1, 1.5, True, "3"])
def test_iterations_are_whole_numbers(times):
    model, _ = parallelize([0])
    with pytest.raises(NetError, match="num_iterations must be a non-negative integer, got"):
        parallel.RunNet(model, times)


def test_an_error_in_a_replica_names_operator_device_and_line():
    model, record = parallelize([0, 1])
    workspace = Workspace(threads=2)
    feed(record, workspace)
    parallel.RunInitNet(model, workspace=workspace)
    workspace.feed("cpu_1/data", np.zeros((4, 5), np.float32))
    with pytest.raises(
        NetError, match=r"net 'net.*FC \['cpu_1/data'.* on CPU 1, made at tests/toy_models.py:\d+ in mlp"
    ):
        parallel.RunNet(model, workspace=workspace)


def test_gradient_updates_may_all_be_on_the_cpu():
    """A table outside on the host, a loss on the GPU, and no parameter of the replicas: nothing is reduced."""
    host = make_device_option(0, 0)
    model = ModelHelper("host_updates")
    with NameScope("cpu"), DeviceScope(host):
        table = model.param_init_net.XavierFill([], "table", shape=[5, 4])
        model.AddParameter(table)

    def forward(model, loss_scale):
        with DeviceScope(host):
            rows = model.net.Gather([table, "indices"], "rows")
        scores = model.net.CopyCPUToGPU(rows, "scores")
        return scaled_loss(model, scores, loss_scale)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "GPUs .* are not on this machine")
        record = parallel.Parallelize_GPU(
            model, no_input, forward, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0, 1]
        )
    assert record.gradients == () and record.outside == ("cpu/table",)
    (update,) = [op for op in model.net.Proto().op if "cpu/table" in op.output]
    assert update.device_option.device_type == 0
    assert not [op for op in model.net.Proto().op if op.name == "dpm"]
