"""Tables whose rows are divided over processes: equal to one process that has them whole, with every optimizer."""

import sys
import threading

import numpy as np
import pytest

from netbuilder import optimizers, parallel
from netbuilder.data import read_minidb as checkpoint_file_records
from netbuilder.distributed import exchanged_bytes
from netbuilder.exchange import (
    checkpoint_file,
    load_checkpoint,
    load_predictor,
    mobile_exporter,
    predictor_files,
    read_checkpoint,
    save_checkpoint,
    save_predictor,
)
from netbuilder.exchange.predictor_exporter import PredictorExportMeta, load_predictor_from_db, save_to_db
from netbuilder.graph import GradientSlice
from netbuilder.graph.checks import check_net
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.ops.core.indexing import rows_of_shard
from netbuilder.optimizers import add_moving_averages, reset_optimizer_instance_count
from netbuilder.proto import PROTO_CPU, NetError, ParseError
from netbuilder.runtime import Workspace
from parallel_models import distance, no_input
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import scaled_loss

ROWS, COLUMNS, SAMPLES, STEPS = 23, 3, 24, 3
CLOSE = 1e-6


def bags(model, loss_scale):
    """Three tables: rows, sums of rows and weighted sums, by indices that are fed and ones that the net computes."""
    users, words, tags = (
        model.create_param(name, [ROWS, COLUMNS], Initializer(fill, **options))
        for name, fill, options in (
            ("users", "UniformFill", {"min": -0.5, "max": 0.5}),
            ("words", "XavierFill", {}),
            ("tags", "MSRAFill", {}),
        )
    )
    doubled = model.net.Add(["user", "user"], "doubled")
    parts = [
        model.net.Gather([users, "user"], "user_rows"),
        model.net.SparseLengthsSum([words, "word", "lengths"], "word_sums"),
        model.net.SparseLengthsMean([words, "user", "ones"], "word_means"),
        model.net.SparseLengthsWeightedSum([tags, "weights", "word", "lengths"], "tag_sums", grad_on_weights=1),
        model.net.Gather([tags, doubled], "tag_rows"),
    ]
    x = model.net.Concat(parts, ["x", "x_split"], axis=1)[0]
    return scaled_loss(model, brew.fc(model, x, "fc", 5 * COLUMNS, 4), loss_scale)


def batches(replicas, steps=STEPS):
    rng = np.random.default_rng(3)
    for _ in range(steps):
        lengths = rng.integers(0, 4, (replicas, SAMPLES // replicas)).astype(np.int32)
        yield [
            {
                "user": rng.integers(0, ROWS // 2, SAMPLES // replicas).astype(np.int32),
                "word": rng.integers(0, ROWS, each.sum()).astype(np.int64),
                "lengths": each,
                "ones": np.ones(SAMPLES // replicas, np.int32),
                "weights": rng.normal(size=each.sum()).astype(np.float32),
                "label": rng.integers(0, 4, SAMPLES // replicas).astype(np.int32),
            }
            for each in lengths
        ]


def built(update, devices, rank=0, size=1, forward=bags, **options):
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("tables")
    sharded = {"rendezvous": {"num_shards": size, "shard_id": rank, "engine": "MPI"}, "shard_tables": True}
    options = {"outside_from_bytes": 1, "deterministic": True, **(sharded if size > 1 else {}), **options}
    record = parallel.Parallelize_CPU(
        model, no_input, forward, optimizer_builder_fun=update, devices=list(range(devices)), **options
    )
    return model, record


def run_steps(model, replicas, first, steps, begin=None, seed=7):
    record, workspace = Replicas.load(model.net.Proto()), Workspace(threads=1, seed=seed)
    for step, batch in enumerate(batches(replicas, steps)):
        for scope, of_replica in zip(record.devices.scopes, batch[first:]):
            for name, value in of_replica.items():
                workspace.feed(scope + name, value)
        if step == 0:
            parallel.RunInitNet(model, workspace=workspace)
            if begin is not None:
                begin(model, workspace)
        parallel.RunNet(model, workspace=workspace)
    return workspace


def alone(update, replicas, steps=STEPS, **options):
    model, _ = built(update, replicas, **options)
    return model, run_steps(model, replicas, 0, steps)


def together(monkeypatch, update, size, devices=1, steps=STEPS, begin=None, **options):
    """Train on ranks that are threads; return each one's model and workspace."""
    use_thread_worlds(monkeypatch, size)
    models = [built(update, devices, rank, size, **options)[0] for rank in range(size)]
    results = on_ranks(size, lambda rank: run_steps(models[rank], size * devices, rank * devices, steps, begin))
    for result in results:
        if isinstance(result, Exception):
            raise result
    return list(zip(models, results))


def whole(results, name):
    """The rows of all ranks, without those that are of no table."""
    rows = Replicas.load(results[0][0].net.Proto()).rows_of_sharded[name]
    return np.concatenate([workspace.fetch(name) for _, workspace in results])[:rows]


def require_equal(results, model, workspace, tolerance=CLOSE):
    """Compare the state of all ranks with that of one process."""
    sharded = Replicas.load(results[0][0].net.Proto()).rows_of_sharded
    names = sorted(map(str, parallel.GetCheckpointParams(model)))
    assert names == sorted(map(str, parallel.GetCheckpointParams(results[0][0])))
    assert {"users", "words", "tags"} <= set(sharded)
    for name in names:
        want = workspace.fetch(name)
        if name in sharded:
            assert all(each.fetch(name).shape[0] == rows_of_shard(ROWS, len(results)) for _, each in results)
            assert distance([whole(results, name)], [want]) <= tolerance, name
        else:
            for _, each in results:
                assert distance([each.fetch(name)], [want]) <= tolerance, name


def for_tables(kind, **options):
    def build(model):
        own = kind(**options)
        for param in model.params:
            if isinstance(model.param_to_grad.get(param), GradientSlice):
                model.get_param_info(param).optimizer = own
        return optimizers.build_sgd(model, 0.1)

    return build


UPDATES = {
    "sgd": lambda model: optimizers.build_sgd(model, 0.1),
    "momentum": lambda model: optimizers.build_sgd(model, 0.05, momentum=0.9),
    "adagrad": lambda model: optimizers.build_adagrad(model, 0.05, weight_decay=0.01),
    "adagrad_sum": lambda model: optimizers.build_adagrad(model, 0.05, sparse_dedup_aggregator="sum"),
    "row_wise_adagrad": for_tables(
        optimizers.AdagradOptimizer, alpha=0.05, rowWise=True, weight_decay=0.01, counter_halflife=4
    ),
    "adam": lambda model: optimizers.build_adam(model, 0.01),
    "row_wise_adam": for_tables(optimizers.AdamOptimizer, alpha=0.01, rowWise=True),
    "smart_decay_adam": for_tables(optimizers.AdamOptimizer, alpha=0.01, use_smart_decay=True, epsilon=1e-3),
    "ftrl": lambda model: optimizers.build_ftrl(model, engine="", alpha=0.1),
    "adadelta": lambda model: optimizers.build_adadelta(model, 0.5, epsilon=1e-3),
    "wngrad": lambda model: optimizers.build_wngrad(model, 0.1, moment_init=1.0),
    "storm": lambda model: optimizers.build_storm(model, 0.1),
    "decay_adagrad": lambda model: optimizers.build_decay_adagrad(model, 0.05),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", UPDATES)
def test_two_processes_equal_one_to_the_bit(monkeypatch, name):
    """All but the sum of squares over a whole table, of which each process has a part."""
    model, workspace = alone(UPDATES[name], 2)
    require_equal(together(monkeypatch, UPDATES[name], 2), model, workspace, CLOSE if name == "storm" else 0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size, devices", [(3, 1), (2, 2)])
def test_any_number_of_processes_and_devices(monkeypatch, size, devices):
    model, workspace = alone(UPDATES["adagrad"], size * devices)
    require_equal(together(monkeypatch, UPDATES["adagrad"], size, devices), model, workspace)


def test_initial_tables_are_those_of_one_process_to_the_bit(monkeypatch):
    _, workspace = alone(lambda model: optimizers.build_sgd(model, 0.0), 2, steps=1)
    results = together(monkeypatch, lambda model: optimizers.build_sgd(model, 0.0), 5, steps=1)
    for name in ("users", "words", "tags"):
        np.testing.assert_array_equal(whole(results, name), workspace.fetch(name))


def test_clipping_and_averages(monkeypatch):
    def update(model):
        optimizers.build_adagrad(model, 0.1, max_gradient_norm=0.02)
        add_moving_averages(model, 0.5)

    model, workspace = alone(update, 2)
    results = together(monkeypatch, update, 2)
    require_equal(results, model, workspace)
    assert "words_moving_average" in Replicas.load(results[0][0].net.Proto()).rows_of_sharded


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_steps": 2},
        {"strategy": "zero:1"},
        {"strategy": "half"},
        {"optimize_gradient_memory": True},
        {"memory_budget": 0.995},
        {"dynamic_memory_management": True},
    ],
    ids=str,
)
def test_with_other_options(monkeypatch, options):
    """Against processes that have all tables."""
    results = together(monkeypatch, UPDATES["adagrad"], 2, steps=4, **options)
    both = together(monkeypatch, UPDATES["adagrad"], 2, steps=4, shard_tables=False, **options)
    for name in ("users", "words", "tags", "words_squared_sum"):
        assert distance([whole(results, name)], [both[0][1].fetch(name)]) < CLOSE, name
    assert distance([results[1][1].fetch("cpu_0/fc_w")], [both[1][1].fetch("cpu_0/fc_w")]) < CLOSE


def test_messages_of_a_step(monkeypatch):
    def bytes_after(steps):
        results = together(monkeypatch, UPDATES["sgd"], 2, steps=steps)
        return [exchanged_bytes(model, workspace=workspace) for model, workspace in results]

    one, two = bytes_after(1), bytes_after(2)
    table, rows = ROWS * COLUMNS * 4, 2 * SAMPLES * COLUMNS * 4
    assert all(0 < after - before < 12 * rows for before, after in zip(one, two)) and 12 * rows < 100 * table
    (model, _), *_ = together(monkeypatch, UPDATES["sgd"], 2, steps=1)
    types = [op.type for op in model.net.Proto().op]
    assert types.count("LookupRows") == 2, "those of fed indices together, and those of computed ones"
    assert types.count("RowsToOwners") == 1 and "Allgather" not in types


def test_checks_of_nets_find_nothing():
    model, _ = built(UPDATES["adagrad"], 1, size=2)
    assert check_net(model.net.Proto()) == []


def test_one_process_adds_nothing():
    models = [built(UPDATES["sgd"], 2, shard_tables=given)[0] for given in (False, True)]
    assert models[0].net.Proto() == models[1].net.Proto()
    assert models[0].param_init_net.Proto() == models[1].param_init_net.Proto()


def outside(read=None, **fill):
    """Return builders for a table outside the replicas, which something else than a lookup may read."""

    def make(**options):
        reset_names()
        model = ModelHelper("tables")
        table = model.create_param(
            "table", [ROWS, 4], Initializer(fill.get("fill", "UniformFill"), **fill.get("options", {}))
        )

        def forward(model, loss_scale):
            x = model.net.Gather([table, "user"], "rows", **fill.get("lookup", {}))
            if read is not None:
                x = model.net.Add([x, read(model, table)], "more", broadcast=1)
            return scaled_loss(model, x, loss_scale)

        parallel.Parallelize_CPU(
            model, no_input, forward, optimizer_builder_fun=fill.get("update", UPDATES["sgd"]), devices=[0],
            rendezvous={"num_shards": 2, "shard_id": 0, "engine": "MPI"}, shard_tables=True, **options,
        )  # fmt: skip

    return make


@pytest.mark.parametrize(
    "make, match",
    [
        (
            outside(lambda m, table: m.net.ReduceFrontMean(table, "mean")),
            "ReduceFrontMean of .* needs all of it; only lo",
        ),
        (outside(lookup={"dense_gradient": 1}), "table 'table' over the processes, but Gather of .* needs all of it"),
        (
            outside(fill="GivenTensorFill", options={"values": [0.0] * ROWS * 4}),
            "GivenTensorFill of .* cannot; use one",
        ),
        (outside(update=lambda m: add_table_square(m)), "cannot update tables that are divided .* 'total'"),
    ],
    ids=["reader", "dense gradient", "initializer", "update"],
)
def test_what_shards_cannot_serve_is_refused(make, match):
    with pytest.raises(NetError, match=match):
        make()


def add_table_square(model):
    total = model.param_init_net.ConstantFill([], "total", shape=[1], value=0.0)
    optimizers.build_sgd(model, 0.1)
    model.net.ReduceFrontSum(model.net.ReduceBackSum("table", "sums"), total)


def test_processes_that_train_on_their_own_have_no_shards():
    for strategy in ("local_sgd:2", "partial:10"):
        with pytest.raises(NetError, match="cannot be combined with shard_tables: processes that train on their own"):
            outside()(strategy=strategy)


def test_fills_of_shards_are_rows_of_the_whole(monkeypatch):
    from netbuilder.proto.arguments import make_op

    for op_type in ("ConstantFill", "GaussianFill", "MSRAFill", "UniformFill", "XavierFill"):
        parts = []
        for rank, shards in [(0, 0), *((rank, 3) for rank in range(3))]:
            workspace = Workspace(seed=4)
            more = {"shards": shards, "rank": rank} if shards else {}
            workspace.run_operator_once(make_op(op_type, [], ["y"], shape=[50, 40], **more))
            parts.append(workspace.fetch("y"))
        assert [len(part) for part in parts] == [50, 17, 17, 17]
        np.testing.assert_array_equal(np.concatenate(parts[1:])[:50], parts[0], op_type)
    for arguments in ({"shards": 2, "rank": 2, "shape": [4]}, {"shards": 2}):
        with pytest.raises(Exception, match="shards needs the argument shape and a rank in"):
            Workspace().run_operator_once(make_op("ConstantFill", [], ["y"], **arguments))


def test_checkpoints_are_those_of_one_process(monkeypatch, tmp_path):
    update, path, other = UPDATES["row_wise_adagrad"], tmp_path / "shards.minidb", tmp_path / "one.minidb"
    results = together(monkeypatch, update, 3)
    on_ranks(3, lambda rank: save_checkpoint(path, results[rank][0], workspace=results[rank][1]))
    model, workspace = alone(update, 3)
    save_checkpoint(other, model, workspace=workspace)
    found, want = read_checkpoint(path), read_checkpoint(other)
    assert list(found.blobs) == list(want.blobs)
    for name, value in want.blobs.items():
        assert found.blobs[name].shape == value.shape and found.blobs[name].dtype == value.dtype, name
        assert distance([found.blobs[name]], [value]) < CLOSE, name

    def load(model, workspace):
        load_checkpoint(path, model, workspace=workspace)

    model, _ = built(update, 2)
    workspace = run_steps(model, 2, 0, STEPS, begin=load)
    require_equal(together(monkeypatch, update, 2, begin=load), model, workspace)


def test_large_values_are_written_in_records_of_the_usual_size(monkeypatch, tmp_path):
    for module in ("netbuilder.exchange.divided", "netbuilder.data.stored_blobs"):
        monkeypatch.setattr(sys.modules[module], "CHUNK_SIZE", 10)
    results, path = together(monkeypatch, UPDATES["adagrad"], 3), tmp_path / "shards.minidb"
    read = dict[str, set[str]]()

    def noted(path, passed_over=None):
        for key, value in checkpoint_file_records(path, passed_over):
            read.setdefault(threading.current_thread().name, set()).add(key.decode())
            yield key, value

    on_ranks(3, lambda rank: save_checkpoint(path, results[rank][0], workspace=results[rank][1]))
    found = read_checkpoint(path)
    np.testing.assert_array_equal(found.blobs["words"], whole(results, "words"))
    changed = []

    def load(model, workspace):
        workspace.feed("words", np.zeros_like(workspace.fetch("words")))
        load_checkpoint(path, model, workspace=workspace)
        changed.append(workspace.fetch("words")[: ROWS - 8 * 2])

    monkeypatch.setattr(checkpoint_file, "read_minidb", noted)
    together(monkeypatch, UPDATES["adagrad"], 3, steps=1, begin=load)
    assert len(changed) == 3
    size, width = found.blobs["words"].size, found.blobs["words"].shape[1]
    records = [{int(key[7:]) for key in keys if key.startswith("words#%")} for keys in read.values()]
    want = [{0, *range(8 * r * width // 10, -(-min(8 * (r + 1) * width, size) // 10))} for r in range(3)]
    assert sorted(map(sorted, records)) == sorted(map(sorted, want)), "each rank reads the first one and its own"
    assert {each.tobytes() for each in changed} == {
        found.blobs["words"][8 * r :][: ROWS - 16].tobytes() for r in range(3)
    }


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_record_that_one_rank_reads_is_damaged_for_all(place, monkeypatch, tmp_path):
    for module in ("netbuilder.exchange.divided", "netbuilder.data.stored_blobs"):
        monkeypatch.setattr(sys.modules[module], "CHUNK_SIZE", 10)
    results, path = together(monkeypatch, UPDATES["adagrad"], 3), tmp_path / "shards.minidb"
    on_ranks(3, lambda rank: save_checkpoint(path, results[rank][0], workspace=results[rank][1]))
    rows = read_checkpoint(path).blobs["words"].reshape(-1)
    elements = rows[10:20] if place == "first" else rows[-(rows.size % 10 or 10) :]
    content = path.read_bytes()
    assert content.count(elements.tobytes()) == 1
    path.write_bytes(content.replace(elements.tobytes(), (elements + 1).astype(elements.dtype).tobytes()))
    errors = on_ranks(3, lambda rank: load_checkpoint(path, results[rank][0], workspace=results[rank][1]))
    assert {type(each) for each in errors} == {ParseError} and len({*map(str, errors)}) == 1
    assert "blob 'words' is damaged: its checksum is wrong" in str(errors[0])
    with pytest.raises(ParseError, match="blob 'words' is damaged"):
        read_checkpoint(path)


def test_a_predictor_has_whole_tables(monkeypatch, tmp_path):
    results = together(monkeypatch, UPDATES["adagrad"], 3)
    (batch,) = next(batches(1, 1))
    inputs = ["user", "word", "lengths", "ones", "weights"]
    found = {}

    def export(rank):
        model, workspace = results[rank]
        net, parameters = parallel.ExtractPredictorNet(model, inputs, ["softmax"])
        assert not {"LookupRows"} & {op.type for op in net.Proto().op}
        save_predictor(tmp_path / "folder", net, parameters, inputs=inputs, workspace=workspace)
        meta = PredictorExportMeta(net, parameters, inputs, ["softmax"])
        save_to_db("minidb", tmp_path / "predictor.minidb", meta, workspace=workspace)
        with pytest.raises(NetError, match="'users', 'words'.* divided over processes.* export them by save_predictor"):
            mobile_exporter.Export(workspace, net, parameters)

    for result in on_ranks(3, export):
        assert result is None, result
    model, workspace = alone(UPDATES["adagrad"], 3)
    net, parameters = parallel.ExtractPredictorNet(model, inputs, ["softmax"])
    save_predictor(tmp_path / "one", net, parameters, inputs=inputs, workspace=workspace)
    given = {name: batch[name] for name in inputs}
    for name, load in {
        "folder": lambda: load_predictor(tmp_path / "folder"),
        "file": lambda: load_predictor_from_db(tmp_path / "predictor.minidb", "minidb"),
        "one": lambda: load_predictor(tmp_path / "one"),
    }.items():
        found[name] = load().run(given)["softmax"]
    np.testing.assert_array_equal(found["folder"], found["file"])
    np.testing.assert_allclose(found["folder"], found["one"], rtol=1e-5)


def test_a_table_that_is_written_in_parts_is_the_same_file(monkeypatch, tmp_path):
    """And the process that writes never has more than some pieces of it."""
    results, most = together(monkeypatch, UPDATES["adagrad"], 3), []
    inputs = ["user", "word", "lengths", "ones", "weights"]
    for module in ("netbuilder.exchange.divided", "netbuilder.data.stored_blobs"):
        monkeypatch.setattr(sys.modules[module], "CHUNK_SIZE", 10)
    in_parts = predictor_files.fill_in_parts

    def noted(name, shape, pieces):
        pieces = list(pieces)
        most.extend(piece.size for piece in pieces)
        return in_parts(name, shape, pieces)

    monkeypatch.setattr(predictor_files, "fill_in_parts", noted)

    def export(rank):
        model, workspace = results[rank]
        net, parameters = parallel.ExtractPredictorNet(model, inputs, ["softmax"])
        save_predictor(tmp_path / "parts", net, parameters, inputs=inputs, workspace=workspace, fold=True)
        return net, parameters, workspace

    (net, parameters, workspace), *_ = on_ranks(3, export)
    tables = Replicas.load(results[0][0].net.Proto()).rows_of_sharded
    assert max(most) <= 10 and sum(most) == sum(
        whole(results, str(each)).size for each in parameters if str(each) in tables
    )
    values = {str(each): workspace.fetch(f"cpu_0/{each}") if workspace.has(f"cpu_0/{each}") else whole(results, each)
              for each in parameters}  # fmt: skip
    save_predictor(tmp_path / "whole", net, values, inputs=inputs, workspace=workspace, fold=True)
    for file in ("init_net.pb", "predict_net.pb"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_model_for_evaluation_looks_up_in_the_shards(monkeypatch):
    """It is built without initial values, and reads the tables of the trained one."""
    results = together(monkeypatch, UPDATES["adagrad"], 2)
    one, alone_in = alone(UPDATES["adagrad"], 2)

    def evaluation(rank, size):
        reset_names()
        model = ModelHelper("test", init_params=False)
        options = {"rendezvous": {"num_shards": size, "shard_id": rank, "engine": "MPI"}, "shard_tables": True}
        devices = [0] if size > 1 else [0, 1]
        parallel.Parallelize_CPU(
            model, no_input, bags, devices=devices, outside_from_bytes=1, **(options if size > 1 else {})
        )
        return model

    models = [evaluation(rank, 2) for rank in range(2)]

    def run(rank):
        model, workspace = models[rank], results[rank][1]
        parallel.CreateNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
        return workspace.fetch("cpu_0/softmax")

    whole_model = evaluation(0, 1)
    parallel.CreateNet(whole_model, workspace=alone_in)
    parallel.RunNet(whole_model, workspace=alone_in)
    for rank, found in enumerate(on_ranks(2, run)):
        if isinstance(found, Exception):
            raise found
        np.testing.assert_array_equal(found, alone_in.fetch(f"cpu_{rank}/softmax"))


def test_tables_of_models_on_gpus_are_looked_up_on_the_host():
    reset_names()
    model = ModelHelper("net")
    with pytest.warns(UserWarning, match="GPUs .* are not on this machine"):
        parallel.Parallelize_GPU(
            model, no_input, bags, optimizer_builder_fun=UPDATES["adagrad"], devices=[0, 1], outside_from_bytes=1,
            rendezvous={"num_shards": 2, "shard_id": 0, "engine": "MPI"}, shard_tables=True,
            peer_access=lambda a, b: True,
        )  # fmt: skip
    found = [op for op in model.net.Proto().op if op.type in ("LookupRows", "RowsToOwners")]
    assert [op.type for op in found] == ["LookupRows"] * 3 + ["RowsToOwners"], "fed indices of both GPUs, and computed"
    assert {op.device_option.device_type for op in found} == {PROTO_CPU}
