"""Tables with sparse gradients inside of replicas and outside of them: equal over devices, with every optimizer."""

import logging

import numpy as np
import pytest

from netbuilder import optimizers, parallel
from netbuilder.graph import BlobReference, DeviceScope, GradientSlice, NameScope
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.parallel.sharded_tables import LOOKUPS
from netbuilder.proto import PROTO_CUDA, NetError
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from on_gpu import CLOSE
from parallel_models import distance, no_input
from toy_models import scaled_loss

COUNTS = [2, 3, 4, 8]
FLOAT32 = 1e-5
ROWS, COLUMNS, SAMPLES = 9, 3, 24


def with_own(kind, **options):
    """An optimizer for tables alone; other parameters are updated by SGD."""

    def build(model):
        own = kind(**options)
        for param in model.params:
            if isinstance(model.param_to_grad.get(param), GradientSlice):
                model.get_param_info(param).optimizer = own
        return optimizers.build_sgd(model, 0.1)

    return build


OPTIMIZERS = {
    "sgd": lambda model: optimizers.build_sgd(model, 0.1),
    "momentum": lambda model: optimizers.build_sgd(model, 0.05, momentum=0.9),
    "adagrad": lambda model: optimizers.build_adagrad(model, 0.05, weight_decay=0.01),
    "adagrad_mean": lambda model: optimizers.build_adagrad(model, 0.05, sparse_dedup_aggregator="mean"),
    "row_wise_adagrad": with_own(
        optimizers.AdagradOptimizer, alpha=0.05, rowWise=True, weight_decay=0.01, counter_halflife=4
    ),
    "adam": lambda model: optimizers.build_adam(model, 0.01),
    "radam": with_own(optimizers.AdamOptimizer, alpha=0.01, enableRAdam=True, beta2=0.9),
    "row_wise_adam": with_own(optimizers.AdamOptimizer, alpha=0.01, rowWise=True),
    "smart_decay_adam": with_own(optimizers.AdamOptimizer, alpha=0.01, use_smart_decay=True, epsilon=1e-3),
    "ftrl": lambda model: optimizers.build_ftrl(model, engine="", alpha=0.1),
    "adadelta": lambda model: optimizers.build_adadelta(model, 0.5, epsilon=1e-3),
    "wngrad": lambda model: optimizers.build_wngrad(model, 1.0, moment_init=1.0),
    "storm": lambda model: optimizers.build_storm(model, 0.1),
    "decay_adagrad": lambda model: optimizers.build_decay_adagrad(model, 0.05),
}


def make_table(model, name="table"):
    return model.create_param(name, [ROWS, COLUMNS], Initializer("UniformFill", min=-0.5, max=0.5))


def forward(table=None, index_blobs=("first", "second"), tables=("table",)):
    """Return a builder: rows of the tables by each index blob, side by side, to classes; ``table`` is one outside."""

    def build(model, loss_scale):
        found = [table] if table is not None else [make_table(model, name) for name in tables]
        rows = [
            model.net.Gather([each, blob], f"rows_{number}_{blob}")
            for number, each in enumerate(found)
            for blob in index_blobs
        ]
        x = model.net.Concat(rows, ["x", "x_split"], axis=1)[0]
        return scaled_loss(model, brew.fc(model, x, "fc", COLUMNS * len(rows), 4), loss_scale)

    return build


def parallelized(devices, build, update, outside=False, gpu=False, **options):
    model = ModelHelper("tables")
    table = None
    if outside:
        with NameScope("host"), DeviceScope(make_device_option(0, 0)):
            table = make_table(model)
    make = parallel.Parallelize_GPU if gpu else parallel.Parallelize_CPU
    record = make(model, no_input, build(table), optimizer_builder_fun=update, devices=list(devices), **options)
    return model, record


def trained(count, update, build=forward, steps=2, outside=False, gpu=False, **options):
    """Train on so many devices; return all parameters by name without scope, the model and the workspace."""
    model, record = parallelized(range(count), build, update, outside, gpu, **options)
    workspace = Workspace(threads=1, seed=1, **({"engines": ()} if gpu else {}))
    rng = np.random.default_rng(3)
    for step in range(steps):
        batch = {name: rng.integers(0, ROWS, SAMPLES).astype(np.int32) for name in ("first", "second")}
        batch["label"] = rng.integers(0, 4, SAMPLES).astype(np.int32)
        for name, whole in batch.items():
            for blob, part, option in zip(record.devices.copies(name), np.split(whole, count), record.devices.options):
                workspace.feed(blob, part, option)
        if step == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    names = {name: record.blobs(name)[0] for name in record.parameters}
    names.update((name.rpartition("/")[2], name) for name in record.outside)
    return {name: workspace.fetch(names[name]) for name in sorted(names)}, model, workspace


def values(*args, **kwargs):
    return list(trained(*args, **kwargs)[0].values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.one_in(12)
def test_devices_equal_one(outside, optimizer):
    update = OPTIMIZERS[optimizer]
    one = values(1, update, outside=outside)
    for count in COUNTS if not outside else (3, 8):
        assert distance(values(count, update, outside=outside), one) < FLOAT32, count
    assert distance(values(2, update, outside=outside, steps=1), one) > 1e-4  # later steps do something


def test_the_replicas_hold_the_same_table():
    _, model, workspace = trained(4, OPTIMIZERS["adagrad"])
    first, *others = (workspace.fetch(f"cpu_{k}/table") for k in range(4))
    assert all(np.array_equal(first, other) for other in others)


def test_fed_indices_stay_as_they_are():
    """Gathered indices have blobs of their own, so a run without a feed is one more step on the same batch."""
    results, model, workspace = trained(2, OPTIMIZERS["adagrad"])
    assert workspace.fetch("cpu_0/first").shape == (SAMPLES // 2,)
    parallel.RunNet(model, workspace=workspace)
    again = trained(1, OPTIMIZERS["adagrad"])
    parallel.RunNet(again[1], workspace=again[2])
    assert distance([workspace.fetch("cpu_1/table")], [again[2].fetch("cpu_0/table")]) < FLOAT32


def test_fed_indices_stay_as_they_are_on_gpus(two_gpus):
    results, model, workspace = trained(2, OPTIMIZERS["adagrad"], two_tables, gpu=True)
    assert [workspace.fetch(f"gpu_{k}/first").shape for k in (0, 1)] == [(SAMPLES // 2,)] * 2
    assert [workspace.fetch(f"gpu_{k}/first_gathered").shape for k in (0, 1)] == [(SAMPLES,)] * 2
    ops = model.net.Proto().op
    assert [list(op.input) for op in ops if op.type == "Concat"].count(["gpu_0/first", "gpu_1/first"]) == 1
    places = [(op.device_option.device_type, op.device_option.device_id) for op in ops if op.type == "SparseAdagrad"]
    assert sorted(places) == [(PROTO_CUDA, k) for k in (0, 0, 1, 1)], "two tables, updated where they are"
    parallel.RunNet(model, workspace=workspace)
    _, one, alone = trained(1, OPTIMIZERS["adagrad"], two_tables)
    parallel.RunNet(one, workspace=alone)
    for scope in ("gpu_0/", "gpu_1/"):
        assert distance([workspace.fetch(scope + "left")], [alone.fetch("cpu_0/left")]) < 1e-5


def test_one_copy_of_the_table_for_all_replicas():
    one = values(1, OPTIMIZERS["momentum"])
    assert distance(values(3, OPTIMIZERS["momentum"], shared_model=True), one) < FLOAT32
    model, record = parallelized([0, 1], forward, OPTIMIZERS["momentum"], shared_model=True)
    updates = [op for op in model.net.Proto().op if op.type == "SparseMomentumSGDUpdate"]
    assert [op.output[2] for op in updates] == ["cpu_0/table"]
    gathered = [op for op in model.net.Proto().op if any(blob.endswith("_gathered") for blob in op.output)]
    assert [op.type for op in gathered] == ["Concat", "Concat"]


def two_tables(table=None):
    return forward(index_blobs=("first",), tables=("left", "right"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("count", [2, 4])
def test_an_index_blob_of_two_tables_is_joined_once(count):
    results, model, _ = trained(count, OPTIMIZERS["adam"], two_tables)
    joins = [
        list(op.input) for op in model.net.Proto().op if op.type == "Concat" and op.output[0].endswith("_gathered")
    ]
    assert joins.count([f"cpu_{k}/first" for k in range(count)]) == 1 and len(joins) == 3
    assert distance(list(results.values()), values(1, OPTIMIZERS["adam"], two_tables)) < FLOAT32


def tied(table=None):
    """The table is looked up, and a weight as well: one gradient is sparse, the other dense."""

    def build(model, loss_scale):
        used = table if table is not None else make_table(model)
        rows = model.net.Gather([used, "first"], "rows")
        scores = model.net.MatMul([rows, used], "scores", trans_b=1)
        return scaled_loss(model, brew.fc(model, scores, "fc", ROWS, 4), loss_scale)

    return build


@pytest.mark.one_in(6)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("outside", [False, True])
def test_sparse_and_dense_uses_of_one_table(outside, optimizer):
    results, model, _ = trained(1, OPTIMIZERS[optimizer], tied, outside=outside)
    assert not any(isinstance(gradient, GradientSlice) for gradient in model.param_to_grad.values())
    for count in COUNTS:
        got = values(count, OPTIMIZERS[optimizer], tied, outside=outside)
        assert distance(got, list(results.values())) < FLOAT32, count


def test_a_frozen_table_inside_is_left_alone():
    def build(model, loss_scale):
        model.net.StopGradient(model.net.Gather([make_table(model), "first"], "rows"), "x")
        return scaled_loss(model, brew.fc(model, "x", "fc", COLUMNS, 4), loss_scale)

    model, record = parallelized([0, 1], lambda table: build, OPTIMIZERS["sgd"])
    assert [group.parameter for group in record.gradients] == ["fc_w", "fc_b"]
    assert not [op for op in model.net.Proto().op if "cpu_0/table" in op.output]


def test_the_record_names_what_is_gathered():
    model, record = parallelized([0, 1], two_tables, OPTIMIZERS["sgd"])
    (group,) = [group for group in record.gradients if group.parameter == "left"]
    assert (group.indices, group.values) == ("first_gathered", "rows_0_first_grad_gathered")
    table = next(param for param in model.params if str(param) == "cpu_1/left")
    assert str(model.param_to_grad[table].values) == "cpu_1/rows_0_first_grad_gathered"
    assert parallel.Replicas.load(model.net.Proto()) == record


def test_indices_outside_the_replicas_are_refused():
    def build(model, loss_scale):
        rows = model.net.Gather([make_table(model), BlobReference("everybodys/indices")], "rows")
        return scaled_loss(model, brew.fc(model, rows, "fc", COLUMNS, 4), loss_scale)

    with pytest.raises(NetError, match="'table': its rows are looked up by 'everybodys/indices', which is not under"):
        parallelized([0, 1], lambda table: build, OPTIMIZERS["sgd"])


# Large tables put outside.

TABLE_BYTES = 4 * ROWS * COLUMNS


@pytest.mark.one_in(2)
@pytest.mark.parametrize("optimizer", ["adagrad", "row_wise_adagrad"])
def test_large_tables_are_put_outside_with_the_same_result(optimizer, caplog):
    one = values(1, OPTIMIZERS[optimizer])
    for count in (1, 2, 4):
        with caplog.at_level(logging.INFO, logger="netbuilder"):
            got, model, _ = trained(count, OPTIMIZERS[optimizer], outside_from_bytes=TABLE_BYTES)
        assert f"table 'table', {TABLE_BYTES} bytes, is stored once, on the CPU, outside the replicas" in caplog.text
        assert distance(list(got.values()), one) < FLOAT32, count
    record = parallel.Replicas.load(model.net.Proto())
    assert record.outside == ("table",) and "table" not in record.parameters
    assert [str(param) for param in model.params].count("table") == 1
    made = [op for op in model.param_init_net.Proto().op if "table" in op.output]
    assert [op.type for op in made] == ["UniformFill"]
    updates = [op for op in model.net.Proto().op if "table" in op.output]
    assert len(updates) == 1
    assert not [op for op in model.net.Proto().op if "cpu_1/table" in (*op.input, *op.output)]


@pytest.mark.parametrize("kind", sorted(LOOKUPS))
def test_each_kind_of_lookup_reads_a_table_outside(kind):
    """Of an evaluation model, too, in which the table has the same name, whatever reads it."""
    inputs = {1: ["indices"], 2: ["weights", "indices"]}[LOOKUPS[kind][1]] + ["lengths"] * (kind != "Gather")
    model = ModelHelper(kind, init_params=False)
    parallel.Parallelize_CPU(
        model, no_input, lambda model, scale: model.net.AddExternalOutput(
            getattr(model.net, kind)([make_table(model), *inputs], "found")
        ), None, devices=[0, 1], outside_from_bytes=1,
    )  # fmt: skip
    assert parallel.Replicas.load(model.net.Proto()).outside == ("table",)


def test_what_is_small_or_read_by_others_stays_inside(caplog):
    _, record = parallelized([0, 1], forward, OPTIMIZERS["sgd"], outside_from_bytes=TABLE_BYTES + 1)
    assert record.outside == () and "table" in record.parameters
    with caplog.at_level(logging.INFO, logger="netbuilder"):
        _, record = parallelized([0, 1], tied, OPTIMIZERS["sgd"], outside_from_bytes=0)
    assert record.outside == ()
    assert (
        "parameter 'table', 108 bytes, stays inside the replicas: MatMul uses it, which is not a lookup" in caplog.text
    )
    assert "parameter 'fc_w'" in caplog.text and "FC uses it, which is not a lookup" in caplog.text


def test_an_own_optimizer_goes_with_its_table():
    def build(model, loss_scale):
        losses = forward()(model, loss_scale)
        info = model.get_param_info(next(param for param in model.params if str(param).endswith("table")))
        if info.optimizer is None:
            info.optimizer = optimizers.AdagradOptimizer(alpha=0.1)
        return losses

    model, _ = parallelized([0, 1], lambda table: build, OPTIMIZERS["sgd"], outside_from_bytes=0)
    assert [op.type for op in model.net.Proto().op if "table" in op.output] == ["SparseAdagrad"]


def test_a_name_outside_that_is_taken_is_refused():
    def build(model, loss_scale):
        with NameScope("", reset=True):
            model.net.ConstantFill([], "table", shape=[1], value=1.0)
        return forward()(model, loss_scale)

    with pytest.raises(
        NetError, match="table 'table' cannot be moved outside .* because a blob of this name exists already"
    ):
        parallelized([0, 1], lambda table: build, OPTIMIZERS["sgd"], outside_from_bytes=0)


def test_checkpoints_and_predictors_know_a_table_put_outside():
    _, model, workspace = trained(2, OPTIMIZERS["adagrad"], outside_from_bytes=0)
    kept = set(map(str, parallel.GetCheckpointParams(model)))
    assert {"table", "table_squared_sum", "cpu_0/fc_w"} <= kept and not any("cpu_1/" in blob for blob in kept)
    net, blobs = parallel.ExtractPredictorNet(model, ["first", "second"], ["x"])
    assert list(map(str, blobs)) == ["table"]
    batch = {name: np.int32([3, 5]) for name in ("first", "second")}
    for name, rows in batch.items():
        workspace.feed(name, rows)
    workspace.run_net_once(net)
    np.testing.assert_array_equal(workspace.fetch("x")[:, :COLUMNS], workspace.fetch("table")[[3, 5]])


@pytest.mark.parametrize("outside", [False, True])
def test_uneven_shares(outside):
    """Seven samples on three devices give what they give on one."""
    rng = np.random.default_rng(2)
    batch = {name: rng.integers(0, ROWS, 7).astype(np.int32) for name in ("first", "second")}
    batch["label"] = rng.integers(0, 4, 7).astype(np.int32)
    found = []
    for count in (1, 3):
        model, record = parallelized(range(count), forward, OPTIMIZERS["adagrad"], outside, weighted_shares=True)
        workspace = Workspace(threads=1, seed=1)
        next(parallel.feed_shares(model, batch, workspace=workspace))
        parallel.RunInitNet(model, workspace=workspace)  # which begins with equal weights
        for _ in range(2):
            for _ in parallel.feed_shares(model, batch, workspace=workspace):
                parallel.RunNet(model, workspace=workspace)
        names = [record.blobs(name)[0] for name in record.parameters] + list(record.outside)
        found.append([workspace.fetch(name) for name in names])
    assert distance(found[1], found[0]) < FLOAT32


@pytest.mark.parametrize("size, error", [(-1, NetError), (1.5, TypeError), (True, TypeError)])
def test_the_size_is_checked(size, error):
    with pytest.raises(error, match="outside_from_bytes must"):
        parallelized([0], forward, OPTIMIZERS["sgd"], outside_from_bytes=size)


def test_a_table_for_gpus_is_looked_up_on_the_host():
    model = ModelHelper("gpus")
    with pytest.warns(UserWarning, match="are not on this machine"):
        record = parallel.Parallelize_GPU(
            model,
            no_input,
            forward(),
            optimizer_builder_fun=OPTIMIZERS["adagrad"],
            devices=[70, 71],
            outside_from_bytes=0,
        )
    assert record.outside == ("table",)
    touching = [op for op in model.net.Proto().op if "table" in (*op.input, *op.output)]
    assert [op.type for op in touching] == ["Gather"] * 4 + ["SparseAdagrad"]
    assert all(op.device_option.device_type == 0 for op in touching)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "row_wise_adagrad", "adam", "smart_decay_adam", "storm"])
def test_two_gpus_equal_one_device_of_the_cpu(two_gpus, optimizer):
    """A table inside, one put outside, one used in both ways."""
    update = OPTIMIZERS[optimizer]
    assert distance(values(2, update, gpu=True), values(1, update)) < CLOSE
    assert distance(values(2, update, gpu=True, outside_from_bytes=0), values(1, update)) < CLOSE
    if optimizer in ("sgd", "momentum", "adam"):
        assert distance(values(2, update, tied, gpu=True), values(1, update, tied)) < CLOSE


def test_one_table_looked_up_by_indices_of_both_types():
    found = []
    for types in ((np.int32, np.int64), (np.int64, np.int32), (np.int64, np.int64)):
        model = ModelHelper("both")
        table = make_table(model)
        rows = [model.net.Gather([table, blob], f"rows_{blob}") for blob in ("first", "second")]
        model.AddGradientOperators([model.net.SumElements(model.net.Mul(rows, "product"), "loss")])
        optimizers.build_adagrad(model, 0.1)
        workspace = Workspace(threads=1, seed=1)
        workspace.run_net_once(model.param_init_net)
        workspace.feed("first", np.array([0, 1, 1], types[0]))
        workspace.feed("second", np.array([1, 2, 5], types[1]))
        workspace.run_net(workspace.create_net(model.net))
        found.append(workspace.fetch("table"))
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[2])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("steps", [1, 2])
def test_two_tables_outside_that_share_an_index_blob_have_one_concat(steps):
    def build(model, loss_scale):
        rows = [model.net.Gather([table, "first"], f"rows_{name}") for name, table in tables.items()]
        x = model.net.Concat(rows, ["x", "x_split"], axis=1)[0]
        return scaled_loss(model, brew.fc(model, x, "fc", 2 * COLUMNS, 4), loss_scale)

    found = []
    for count in (1, 3):
        model = ModelHelper("outside")
        with NameScope("host"), DeviceScope(make_device_option(0, 0)):
            tables = {name: make_table(model, name) for name in ("left", "right")}
        record = parallel.Parallelize_CPU(
            model, no_input, build, optimizer_builder_fun=OPTIMIZERS["adam"], devices=list(range(count)),
            accumulate_steps=steps,
        )  # fmt: skip
        joins = [op for op in model.net.Proto().op if op.type == "Concat" and "cpu_1/first" in op.input]
        assert len(joins) == (count > 1)
        workspace = Workspace(threads=1, seed=1)
        parallel.RunInitNet(model, workspace=workspace)
        rng = np.random.default_rng(3)
        for _ in range(2 * steps):
            for name, limit in (("first", ROWS), ("label", 4)):
                whole = rng.integers(0, limit, SAMPLES).astype(np.int32)
                for blob, part in zip(record.devices.copies(name), np.split(whole, count)):
                    workspace.feed(blob, part)
            parallel.RunNet(model, workspace=workspace)
        found.append([workspace.fetch(f"host/{name}") for name in tables])
    assert distance(found[1], found[0]) < FLOAT32
