"""Training saved and resumed: bit-identically, on other numbers and kinds of devices, in part; errors."""

import logging
import os
import re

import numpy as np
import pytest

import golden_data
from netbuilder import parallel
from netbuilder.data import read_blobs, tensor_to_proto, write_minidb
from netbuilder.exchange import (
    Checkpoint,
    checkpoint_blobs,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
    take_checkpoint,
)
from netbuilder.graph import NameScope
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_adam, build_sgd
from netbuilder.proto import PROTO_CUDA, BlobError, NetError, ParseError, TensorProtos
from netbuilder.runtime import Workspace, random_state
from parallel_models import OPTIMIZERS, distance, no_input, parallelize
from toy_models import mlp, scaled_loss

STEPS = 3


def rich(model, loss_scale, classes=4):
    """Two layers with normalization and dropout: data (N, 6), label (N,)."""
    x = brew.spatial_bn(model, brew.fc(model, "data", "fc1", 6, 8), "bn", 8, is_test=False)
    x = brew.dropout(model, brew.relu(model, x, "relu"), "drop", ratio=0.5, is_test=False)
    return scaled_loss(model, brew.fc(model, x, "fc2", 8, classes), loss_scale)


def batch(step):
    rng = np.random.default_rng(step)
    return {
        "data": rng.normal(size=(24, 6)).astype(np.float32),
        "label": rng.integers(0, 4, 24).astype(np.int32),
    }


class Training:
    """An initialized model in a new workspace."""

    def __init__(self, devices=(0, 1), forward=rich, optimizer=OPTIMIZERS["momentum"], seed=3, name="net", **options):
        self.model, self.record = parallelize(list(devices), forward, optimizer, name=name, **options)
        self.workspace = Workspace(threads=1, seed=seed)
        self.feed(0)
        parallel.RunInitNet(self.model, workspace=self.workspace)

    def feed(self, step):
        for name, whole in batch(step).items():
            for blob, part in zip(self.record.devices.copies(name), np.split(whole, len(self.record))):
                self.workspace.feed(blob, part)

    def run(self, *steps):
        for step in steps:
            self.feed(step)
            parallel.RunNet(self.model, workspace=self.workspace)
        return self

    def save(self, path, **options):
        return save_checkpoint(path, self.model, workspace=self.workspace, **options)

    def load(self, path, **options):
        return load_checkpoint(path, self.model, workspace=self.workspace, **options)

    def values(self):
        """Every tensor of every replica that the init net makes."""
        ops = self.model.param_init_net.Proto().op
        made = {blob for op in ops for blob in op.output if op.type != "CreateMutex"}
        return {blob: self.workspace.fetch(blob) for blob in sorted(made)}

    def drawn(self):
        """The seed, and how often the main net has run."""
        state = random_state(self.workspace)
        return state.seed, state.iterations[self.model.net.Name()]

    def checkpointed(self):
        return {n: self.workspace.fetch(b) for n, b in checkpoint_blobs(self.model).names.items()}


def assert_equal(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


# Resumed.


@pytest.mark.one_in(4)
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "step"])
def test_resumed_training_equals_uninterrupted_bit_by_bit(optimizer, tmp_path):
    """With dropout, statistics and a learning rate that changes; the new workspace began with another seed."""
    build = OPTIMIZERS.get(optimizer) or (
        lambda model: build_sgd(model, 0.1, policy="step", stepsize=2, gamma=0.1, momentum=0.9)
    )
    whole = Training(optimizer=build).run(*range(2 * STEPS))
    Training(optimizer=build).run(*range(STEPS)).save(tmp_path / "c", state={"position": STEPS})
    resumed = Training(optimizer=build, seed=99)
    report = resumed.load(tmp_path / "c")
    assert read_checkpoint(tmp_path / "c").state == {"position": STEPS}
    assert read_checkpoint(tmp_path / "c").step == STEPS
    assert set(report.loaded) == set(checkpoint_blobs(resumed.model).names)
    resumed.run(*range(STEPS, 2 * STEPS))
    assert_equal(resumed.values(), whole.values())
    assert resumed.drawn() == whole.drawn() == (3, 2 * STEPS)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{"dynamic_memory_management": True}, {"memory_budget": 0.95}])
def test_a_resumed_net_keeps_only_what_it_kept(options, tmp_path):
    """What can be fetched is stored with the net: saving and loading neither need nor keep any other blob."""
    want = Training().run(*range(2 * STEPS))
    saved = Training(**options).run(*range(STEPS))
    planned = parallel.planned_step(saved.model, saved.workspace).values
    saved.save(tmp_path / "c")
    assert parallel.planned_step(saved.model, saved.workspace).values == planned
    resumed = Training(seed=99, **options)
    resumed.load(tmp_path / "c")
    resumed.run(*range(STEPS, 2 * STEPS))
    assert_equal(resumed.checkpointed(), want.checkpointed())
    assert parallel.planned_step(resumed.model, resumed.workspace).values == planned
    with pytest.raises(BlobError, match="'cpu_0/relu' is not observable"):
        resumed.workspace.fetch("cpu_0/relu")


def test_saving_changes_nothing(tmp_path):
    whole, saved = Training(), Training()
    for step in range(STEPS):
        whole.run(step)
        saved.run(step).save(tmp_path / "c")
    assert_equal(saved.values(), whole.values())


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (4, 2)])
def test_another_number_of_devices(before, after, tmp_path):
    whole = Training(range(before), mlp, OPTIMIZERS["adam"]).run(*range(2 * STEPS))
    Training(range(before), mlp, OPTIMIZERS["adam"]).run(*range(STEPS)).save(tmp_path / "c")
    resumed = Training(range(1, after + 1), mlp, OPTIMIZERS["adam"], seed=8)
    resumed.load(tmp_path / "c")
    got, want = resumed.checkpointed(), read_checkpoint(tmp_path / "c").blobs
    assert_equal(got, dict(want))
    for name in (*resumed.record.parameters, "fc1_w_first_moment"):
        for copy in resumed.record.blobs(name):
            np.testing.assert_array_equal(resumed.workspace.fetch(copy), got[name])
    resumed.run(*range(STEPS, 2 * STEPS))
    a, b = resumed.checkpointed(), whole.checkpointed()
    assert distance([a[name] for name in sorted(b)], [b[name] for name in sorted(b)]) < 1e-5


def test_a_model_without_replicas_and_back(tmp_path):
    def alone():
        model = ModelHelper("alone")
        rich(model, 1.0)
        model.AddGradientOperators(["loss"])
        build_adam(model, 0.01)
        workspace = Workspace(threads=1, seed=5)
        for name, value in batch(0).items():
            workspace.feed(name, value)
        workspace.run_net_once(model.param_init_net)
        workspace.create_net(model.net)
        return model, workspace

    model, workspace = alone()
    workspace.run_net(model.net.Name(), 4)
    saved = save_checkpoint(tmp_path / "c", model, workspace=workspace)
    assert {"fc1_w", "fc1_w_first_moment", "bn_rm", "optimizer_iteration"} <= saved.blobs.keys()
    assert (saved.step, saved.model) == (4, "alone")
    workspace.run_net(model.net.Name(), 2)
    other, again = alone()
    load_checkpoint(tmp_path / "c", other, workspace=again)
    again.run_net(other.net.Name(), 2)
    for name in checkpoint_blobs(model).names:
        np.testing.assert_array_equal(again.fetch(name), workspace.fetch(name), err_msg=name)
    spread = Training(optimizer=OPTIMIZERS["adam"])
    spread.load(tmp_path / "c")
    assert_equal(spread.checkpointed(), dict(saved.blobs))


def test_from_gpus_to_the_cpu(two_gpus, tmp_path):
    model = ModelHelper("net")
    record = parallel.Parallelize_GPU(
        model, no_input, mlp, optimizer_builder_fun=OPTIMIZERS["momentum"], devices=[0, 1]
    )
    on_gpu = Training.__new__(Training)
    on_gpu.model, on_gpu.record, on_gpu.workspace = model, record, Workspace(seed=3)
    on_gpu.feed(0)
    parallel.RunInitNet(model, workspace=on_gpu.workspace)
    saved = on_gpu.run(*range(STEPS)).save(tmp_path / "c")
    assert not [name for name in saved.blobs if "gpu" in name]
    on_cpu = Training((0,), mlp, seed=1)
    on_cpu.load(tmp_path / "c")
    on_cpu.run(STEPS)
    on_gpu.run(STEPS)
    a, b = on_cpu.checkpointed(), on_gpu.checkpointed()
    assert a.keys() == b.keys()
    assert distance([a[name] for name in sorted(b)], [b[name] for name in sorted(b)]) < 1e-5
    save_checkpoint(tmp_path / "d", on_cpu.model, workspace=on_cpu.workspace)
    on_gpu.load(tmp_path / "d")
    assert_equal(on_gpu.checkpointed(), a)
    assert on_gpu.workspace.get("gpu_1/fc1_w").location[0] != 0


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 1)])
def test_another_number_of_gpus(four_gpus, before, after, tmp_path):
    """The next steps are those that the CPU takes from the same checkpoint."""

    def on_gpus(count):
        made = Training.__new__(Training)
        made.model, made.workspace = ModelHelper("net"), Workspace(seed=3)
        made.record = parallel.Parallelize_GPU(
            made.model, no_input, mlp, optimizer_builder_fun=OPTIMIZERS["adam"], devices=list(range(count))
        )
        made.feed(0)
        parallel.RunInitNet(made.model, workspace=made.workspace)
        return made

    saved = on_gpus(before).run(*range(STEPS)).save(tmp_path / "c")
    resumed, want = on_gpus(after), Training((0,), mlp, OPTIMIZERS["adam"])
    for each in (resumed, want):
        each.load(tmp_path / "c")
        assert_equal(each.checkpointed(), dict(saved.blobs))
        each.run(STEPS)
    a, b = resumed.checkpointed(), want.checkpointed()
    assert distance([a[name] for name in sorted(b)], [b[name] for name in sorted(b)]) < 1e-5
    assert resumed.workspace.get(f"gpu_{after - 1}/fc1_w").location == (PROTO_CUDA, after - 1)


# What a checkpoint holds.


def test_names_and_contents(tmp_path):
    training = Training(optimizer=OPTIMIZERS["adam"]).run(0)
    found = training.save(tmp_path / "c", metric=0.5, step=17)
    parameters = {"fc1_w", "fc1_b", "bn_s", "bn_b", "fc2_w", "fc2_b"}
    moments = {f"{name}_{which}_moment" for name in parameters for which in ("first", "second")}
    assert found.blobs.keys() == parameters | moments | {"bn_rm", "bn_riv", "optimizer_iteration"}
    assert (found.step, found.metric) == (17, 0.5)
    assert not re.search(rb"[cg]pu_\d/", (tmp_path / "c").read_bytes())
    assert set(read_blobs(tmp_path / "c")) == set(found.blobs)


def test_tables_outside_of_replicas_are_stored_once(tmp_path):
    def build():
        model, table = ModelHelper("tables"), None
        with NameScope("words"):
            table = model.param_init_net.XavierFill([], "table", shape=[9, 6])
            model.AddParameter(table)

        def forward(model, loss_scale):
            rows = model.net.Gather([table, "indices"], "rows")
            return scaled_loss(model, brew.fc(model, rows, "fc", 6, 4), loss_scale)

        record = parallel.Parallelize_CPU(
            model, no_input, forward, optimizer_builder_fun=OPTIMIZERS["adagrad"], devices=[0, 1]
        )
        workspace = Workspace(threads=1, seed=len(parallel.__name__))
        for k in range(2):
            workspace.feed(f"cpu_{k}/indices", np.int32([k, 3, 3]))
            workspace.feed(f"cpu_{k}/label", np.int32([0, 1, 2]))
        parallel.RunInitNet(model, workspace=workspace)
        return model, record, workspace

    model, record, workspace = build()
    parallel.RunNet(model, 2, workspace=workspace)
    saved = save_checkpoint(tmp_path / "c", model, workspace=workspace)
    assert {"words/table", "words/table_squared_sum", "fc_w", "fc_w_squared_sum"} <= saved.blobs.keys()
    parallel.RunNet(model, 2, workspace=workspace)
    other, _, again = build()
    load_checkpoint(tmp_path / "c", other, workspace=again)
    parallel.RunNet(other, 2, workspace=again)
    assert record.outside == ("words/table",)
    for blob in ("words/table", "words/table_squared_sum", "cpu_0/fc_w", "cpu_1/fc_w"):
        np.testing.assert_array_equal(again.fetch(blob), workspace.fetch(blob))


def test_shared_parameters(tmp_path):
    whole = Training(forward=mlp, shared_model=True).run(0, 1)
    Training(forward=mlp, shared_model=True).run(0).save(tmp_path / "c")
    resumed = Training(forward=mlp, shared_model=True, seed=1)
    resumed.load(tmp_path / "c")
    assert_equal(resumed.run(1).values(), whole.values())


def test_replicas_get_their_copies_in_the_same_order_in_all_processes():
    """It does not depend on the hashes of texts, which differ."""
    model, record = parallelize([0, 1], mlp)
    blobs = checkpoint_blobs(model)
    names = [*blobs.names]
    assert [name for name in blobs.replicated(names) if name in record.parameters] == sorted(record.parameters)
    assert blobs.replicated(names[::-1]) == blobs.replicated(names)[::-1]


def test_statistics_that_replicas_have_each_for_itself_are_made_equal_first(tmp_path, caplog):
    training = Training(broadcast_computed_params=False).run(0)
    fetch = training.workspace.fetch
    assert (fetch("cpu_0/bn_rm") != fetch("cpu_1/bn_rm")).any()
    with caplog.at_level(logging.INFO, "netbuilder"):
        saved = training.save(tmp_path / "c")
    assert "each replica computes its own bn_rm, bn_riv" in caplog.text
    for name in ("bn_rm", "bn_riv"):
        for scope in ("cpu_0/", "cpu_1/"):
            np.testing.assert_array_equal(fetch(scope + name), saved.blobs[name])
    resumed = Training(broadcast_computed_params=False, seed=1)
    resumed.load(tmp_path / "c")
    assert_equal(resumed.run(1).values(), training.run(1).values())


def test_readers_of_databases_go_on_where_they_were(tmp_path):
    records = [TensorProtos(protos=[tensor_to_proto(np.float32([k, k + 1]))]).SerializeToString() for k in range(7)]
    write_minidb(tmp_path / "db", [(str(k), data) for k, data in enumerate(records)])

    def build():
        model = ModelHelper("reads")
        reader = model.param_init_net.CreateDB([], "reader", db=str(tmp_path / "db"), db_type="minidb")
        model.net.TensorProtosDBInput(reader, "x", batch_size=2)
        brew.fc(model, "x", "y", 2, 3)
        workspace = Workspace()
        workspace.run_net_once(model.param_init_net)
        workspace.create_net(model.net)
        return model, workspace

    model, workspace = build()
    workspace.run_net(model.net.Name(), 5)
    saved = save_checkpoint(tmp_path / "c", model, workspace=workspace)
    assert saved.readers == {"reader": 3}
    other, again = build()
    load_checkpoint(tmp_path / "c", other, workspace=again)
    for _ in range(5):
        workspace.run_net(model.net.Name())
        again.run_net(other.net.Name())
        np.testing.assert_array_equal(again.fetch("x"), workspace.fetch("x"))
    before = again.fetch("y_w")
    write_minidb(tmp_path / "db", [("0", records[0])])
    with pytest.raises(NetError, match="has 1 records, so it cannot be read from record 3"):
        load_checkpoint(Checkpoint({n: v + 1 for n, v in saved.blobs.items()}, readers={"reader": 3}), other,
                        workspace=again)  # fmt: skip
    np.testing.assert_array_equal(again.fetch("y_w"), before)


def test_in_memory():
    training = Training().run(0)
    kept = take_checkpoint(training.model, workspace=training.workspace)
    first = training.run(1).values()
    load_checkpoint(kept, training.model, workspace=training.workspace)
    assert_equal(training.run(1).values(), first)


# Caffe2's files.


def test_a_checkpoint_of_caffe2(tmp_path):
    """Written by Save of GetCheckpointParams(model) on two devices; here it is loaded on three."""
    export = golden_data.export("extract_data_parallel")
    path = golden_data.GOLDEN / "exports" / "extract_data_parallel" / "checkpoint.minidb"
    space = {"brew": brew}
    exec(export.meta["source"][0], space)

    def forward(model, loss_scale):
        (loss,) = space["build_convnet_dropout"](model)
        return [model.Scale(loss, scale=loss_scale)]

    model, record = parallelize([0, 1, 2], forward, lambda model: build_sgd(model, 0.1, momentum=0.9))
    workspace = Workspace(threads=1)
    for k in range(3):
        workspace.feed(f"cpu_{k}/data", np.zeros((2, 3, 8, 8), np.float32))
        workspace.feed(f"cpu_{k}/label", np.zeros(2, np.int32))
    parallel.RunInitNet(model, workspace=workspace)
    report = load_checkpoint(path, model, workspace=workspace)
    stored = export.arrays["checkpoint"]
    assert len(report.loaded) == len(stored) == 15
    for name, value in stored.items():
        short = record.devices.short_name(name)
        for blob in record.devices.copies(short) if short != name else (name,):
            np.testing.assert_array_equal(workspace.fetch(blob), value, err_msg=blob)


# In part.


def test_fine_tuning_to_another_number_of_classes(tmp_path):
    Training().run(0).save(tmp_path / "c")
    tuned = Training(forward=lambda model, scale: rich(model, scale, classes=7))
    before = tuned.checkpointed()
    said = []
    report = tuned.load(tmp_path / "c", parameters_only=True, partial=True, show=said.append)
    assert report.loaded == ("bn_b", "bn_riv", "bn_rm", "bn_s", "fc1_b", "fc1_w")
    shape = "shape (4, 8) in the checkpoint, (7, 8) in the model"
    assert report.reinitialized["fc2_w"] == shape
    assert f"  re-initialized  fc2_w: {shape}" in said[0]
    assert report.skipped["fc1_w_momentum"] == "'fc1_w_momentum' is not a parameter"
    assert set(report.reinitialized) == {"fc2_w", "fc2_b"}
    after, stored = tuned.checkpointed(), read_checkpoint(tmp_path / "c").blobs
    for name in after:
        np.testing.assert_array_equal(after[name], (stored if name in report.loaded else before)[name], err_msg=name)
    np.testing.assert_array_equal(tuned.workspace.fetch("cpu_1/fc1_w"), stored["fc1_w"])
    assert tuned.drawn() == (3, 0)


def test_renamed_and_omitted(tmp_path):
    Training(forward=mlp).run(0).save(tmp_path / "c")

    def renamed(model, loss_scale):
        x = brew.relu(model, brew.fc(model, "data", "base/fc1", 6, 8), "base/fc1")
        return scaled_loss(model, brew.fc(model, x, "fc2", 8, 4), loss_scale)

    training = Training(forward=renamed)
    report = training.load(
        tmp_path / "c", rename={"fc1_*": "base/fc1_*"}, skip=["fc2_*"], parameters_only=True, show=lambda text: None
    )
    assert report.loaded == ("base/fc1_b", "base/fc1_w")
    assert set(report.reinitialized) == {"fc2_w", "fc2_b"}
    np.testing.assert_array_equal(training.checkpointed()["base/fc1_w"], read_checkpoint(tmp_path / "c").blobs["fc1_w"])


def test_a_load_of_all_warns_of_nothing(tmp_path, capsys):
    training = Training(forward=mlp)
    training.save(tmp_path / "c")
    training.load(tmp_path / "c")
    training.load(tmp_path / "c", parameters_only=True)
    assert capsys.readouterr().out == ""


# Refused.


def test_what_does_not_fit_is_listed_and_nothing_changes(tmp_path):
    Training(optimizer=OPTIMIZERS["adam"]).run(0).save(tmp_path / "c")
    other = Training(forward=lambda model, scale: rich(model, scale, classes=7)).run(0)
    before, drawn = other.values(), other.drawn()
    with pytest.raises(NetError) as caught:
        other.load(tmp_path / "c")
    text = str(caught.value)
    for line in (
        "'net'; nothing is loaded:",
        "fc2_w: shape (4, 8) in the checkpoint, (7, 8) in the model",
        "first_moment: the model has no blob of this name",
        "or partial=True to load what matches",
    ):
        assert line in text, line
    assert text.count("\n  - ") == 11 and re.search(r"\n  - and \d+ other blobs\n", text)
    assert_equal(other.values(), before)
    assert other.drawn() == drawn


def test_a_file_that_is_missing(tmp_path):
    training = Training().run(0)
    training.save(tmp_path / "first")
    with pytest.raises(FileNotFoundError, match="'.*fist': no such file; near it is first"):
        training.load(tmp_path / "fist")


def test_damaged_files_change_nothing(tmp_path):
    training = Training().run(0)
    training.save(tmp_path / "c")
    data = (tmp_path / "c").read_bytes()
    training.run(1)
    before, drawn = training.values(), training.drawn()
    for size in (0, 5, 200, len(data) // 2, len(data) - 1):
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(ParseError, match="nothing is loaded"):
            training.load(tmp_path / "cut", partial=True)
    with pytest.raises(FileNotFoundError):
        training.load(tmp_path / "none")
    assert_equal(training.values(), before)
    assert training.drawn() == drawn


def test_models_that_are_not_initialized(tmp_path):
    Training(forward=mlp).save(tmp_path / "c")
    model, _ = parallelize([0, 1], mlp)
    for call in (save_checkpoint, load_checkpoint):
        with pytest.raises(
            BlobError, match="cpu_0/fc1_b, cpu_0/fc1_w.* have no value in the workspace; run the model's init net"
        ):
            call(tmp_path / "c", model, workspace=Workspace())
    assert os.listdir(tmp_path) == ["c"]


def test_two_blobs_of_one_name():
    model = ModelHelper("net")
    model.AddParameter(model.param_init_net.ConstantFill([], "fc_w", shape=[2]))

    def forward(model, loss_scale):
        x = brew.fc(model, "data", "fc", 6, 4)
        return scaled_loss(model, x, loss_scale)

    parallel.Parallelize_CPU(model, no_input, forward, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0])
    with pytest.raises(NetError, match="'cpu_0/fc_w' and 'fc_w' would both be stored as 'fc_w'"):
        checkpoint_blobs(model)


@pytest.mark.parametrize("options", [{"partial": True}, {"partial": True, "parameters_only": True}], ids=str)
def test_a_checkpoint_of_another_net_is_refused(tmp_path, options):
    """Only its counter of iterations has the name of a blob of the model."""

    def other(model, loss_scale):
        return scaled_loss(model, brew.fc(model, "data", "head", 6, 4), loss_scale)

    Training(forward=mlp).run(0).save(tmp_path / "c")
    training = Training(forward=other)
    before = training.values()
    with pytest.raises(NetError, match="matches no parameter of model 'net'; nothing is loaded:\n  - head_b: the che"):
        training.load(tmp_path / "c", **options)
    assert_equal(training.values(), before)
    with pytest.raises(NetError, match="matches no parameter"):
        training.load(tmp_path / "c", partial=True, skip=["head_w"])
    training.load(tmp_path / "c", partial=True, skip=["head_*"], show=lambda text: None)  # on request
