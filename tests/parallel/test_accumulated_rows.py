"""Sparse gradients over micro-batches: equal to one large batch with every optimizer, inside and outside."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.graph import BlobReference, GradientSlice
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from on_gpu import CLOSE
from parallel.test_sparse import COLUMNS, OPTIMIZERS, ROWS, forward, make_table, parallelized
from parallel_models import distance, no_input
from toy_models import scaled_loss

FLOAT32 = 1e-5
SAMPLES = 12


def batches(count=2, samples=SAMPLES):
    rng = np.random.default_rng(3)
    for _ in range(count):
        batch = {name: rng.integers(0, ROWS, samples).astype(np.int32) for name in ("first", "second")}
        yield {**batch, "label": rng.integers(0, 4, samples).astype(np.int32)}


def trained(count, optimizer, steps=1, build=forward, outside=False, gpu=False, given=batches, **options):
    """Train on so many devices and micro-batches; return all parameters by name without scope, model and workspace."""
    if steps > 1 or count > 1:
        options.update(weighted_shares=True, accumulate_steps=steps)
    model, record = parallelized(range(count), build, OPTIMIZERS[optimizer], outside, gpu, **options)
    workspace = Workspace(threads=1, seed=1, **({"engines": ()} if gpu else {}))
    for _ in shares(record, model, next(given()), workspace):
        pass
    parallel.RunInitNet(model, workspace=workspace)
    for batch in given():
        for _ in shares(record, model, batch, workspace):
            parallel.RunNet(model, workspace=workspace)
    names = {name: record.blobs(name)[0] for name in record.parameters}
    names.update((name.rpartition("/")[2], name) for name in record.outside)
    return {name: workspace.fetch(names[name]) for name in sorted(names)}, model, workspace


def shares(record, model, batch, workspace):
    if record.weighted_shares:
        yield from parallel.feed_shares(model, batch, workspace=workspace)
        return
    for name, value in batch.items():
        workspace.feed(record.devices.scopes[0] + name, value)
    yield batch


def values(*args, **kwargs):
    return list(trained(*args, **kwargs)[0].values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.one_in(8)
def test_micro_batches_equal_one_batch(outside, optimizer):
    one = values(1, optimizer, outside=outside)
    for count, steps in [(2, 3)] if outside else [(1, 3), (2, 2)]:
        assert distance(values(count, optimizer, steps, outside=outside), one) < FLOAT32, (count, steps)


def test_later_steps_do_something():
    assert distance(values(1, "adagrad", given=lambda: batches(1)), values(1, "adagrad")) > 1e-4


@pytest.mark.one_in(2)
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_uneven_micro_batches_on_several_devices(outside):
    given = lambda: batches(2, 7)  # noqa: E731
    one = values(1, "adagrad", outside=outside, given=given)
    assert distance(values(2, "adagrad", 3, outside=outside, given=given), one) < FLOAT32
    assert distance(values(3, "adagrad", 2, outside=outside, given=given), one) < FLOAT32


def test_one_copy_of_the_table_for_all_replicas():
    assert distance(values(2, "adam", 2, shared_model=True), values(1, "adam")) < FLOAT32


@pytest.mark.parametrize("options", [{}, {"outside_from_bytes": 1}], ids=["inside", "put outside"])
def test_on_gpus(two_gpus, options):
    assert distance(values(2, "adagrad", 2, gpu=True, **options), values(1, "adagrad")) < CLOSE


def two_tables(table):
    """Two tables looked up by the same indices."""
    return forward(table, index_blobs=("first",), tables=("left", "right"))


def test_tables_with_common_indices_keep_them_once():
    one, _, _ = trained(1, "adagrad", build=two_tables)
    found, model, _ = trained(2, "adagrad", 2, build=two_tables)
    assert distance(list(found.values()), list(one.values())) < FLOAT32
    held = parallel.Replicas.load(model.net.Proto()).accumulated_rows
    assert len(held) == 2 * 3 and len(set(held)) == len(held)


def both_uses(table):
    """One table that is looked up and used as a whole: its gradient is dense."""

    def build(model, loss_scale):
        own = make_table(model)
        rows = model.net.Gather([own, "first"], "rows")
        scores = model.net.MatMul([rows, own], "scores", trans_b=1)
        return scaled_loss(model, scores, loss_scale)

    return build


def test_dense_uses_of_tables():
    assert distance(values(2, "adam", 2, build=both_uses), values(1, "adam", build=both_uses)) < FLOAT32


def bags(table):
    """Two indices a sample: a matrix of them for one table, a vector for another."""

    def build(model, loss_scale):
        tables = [make_table(model, name) for name in ("left", "right")]
        pairs = model.net.Reshape("pairs", ["flat", "flat_shape"], shape=[-1])[0]
        lengths = model.net.ConstantFill("label", "lengths", value=2, dtype=2)
        sums = model.net.SparseLengthsSum([tables[0], pairs, lengths], "sums")
        words = model.net.ReduceFrontSum(
            model.net.Transpose(model.net.Gather([tables[1], "pairs"], "rows"), "turned", axes=[1, 0, 2]), "word_sums"
        )
        x = model.net.Concat([sums, words], ["x", "x_split"], axis=1)[0]
        return scaled_loss(model, brew.fc(model, x, "fc", 2 * COLUMNS, 4), loss_scale)

    return build


def test_indices_of_several_axes():
    def given():
        rng = np.random.default_rng(4)
        for _ in range(2):
            yield {"pairs": rng.integers(0, ROWS, (6, 2)).astype(np.int64), "label": rng.integers(0, 4, 6).astype("i")}

    one = values(1, "sgd", build=bags, given=given)
    assert distance(values(2, "sgd", 2, build=bags, given=given), one) < FLOAT32


def ragged(table):
    def build(model, loss_scale):
        sums = model.net.SparseLengthsSum([make_table(model), "bags", "lengths"], "sums")
        return scaled_loss(model, brew.fc(model, sums, "fc", COLUMNS, 4), loss_scale)

    return build


def test_bags_of_different_sizes():
    """Micro-batches with equal numbers of samples, but different numbers of indices."""
    rng, lengths = np.random.default_rng(5), [[1, 4], [0, 2], [3, 3]]
    parts = [
        {"bags": rng.integers(0, ROWS, sum(part)).astype("i"), "lengths": np.int32(part), "label": np.int32([1, 3])}
        for part in lengths
    ]
    found = []
    for steps in (3, 1):
        options = {"accumulate_steps": steps} if steps > 1 else {}
        model, _ = parallelized([0], ragged, OPTIMIZERS["adagrad"], **options)
        workspace = Workspace(threads=1, seed=1)
        given = parts if steps > 1 else [{name: np.concatenate([p[name] for p in parts]) for name in parts[0]}]
        for number, part in enumerate(given * 2):
            for name, value in part.items():
                workspace.feed(f"cpu_0/{name}", value)
            if number == 0:
                parallel.RunInitNet(model, workspace=workspace)
            parallel.RunNet(model, workspace=workspace)
        found.append([workspace.fetch(f"cpu_0/{name}") for name in ("table", "fc_w")])
    assert distance(*found) < FLOAT32


def test_the_parts_and_what_is_kept():
    model, record = parallelized([0, 1], forward, OPTIMIZERS["adagrad"], accumulate_steps=3)
    assert parallel.Replicas.load(model.net.Proto()) == record
    gradient = model.param_to_grad[BlobReference("cpu_0/table")]
    assert isinstance(gradient, GradientSlice)
    workspace = Workspace(threads=1)
    fed = parallel.feed_shares(model, next(batches()), workspace=workspace)
    next(fed)
    parallel.RunInitNet(model, workspace=workspace)
    names = workspace.nets()
    assert [name.removeprefix(model.net.Name()) for name in names] == ["_micro_batch", "_rows", "_update"]
    kinds = [{instruction.op_def.type for instruction in workspace.net(name).program} for name in names]
    assert kinds[1] == {"Cast", "FlattenToVec", "Reshape", "Concat", "Copy"}
    assert "SparseAdagrad" in kinds[2] and "SparseAdagrad" not in kinds[0] and "GatherGradient" not in kinds[2]
    table = workspace.fetch("cpu_0/table")
    for pending in (1, 2):
        parallel.RunNet(model, workspace=workspace)
        assert parallel.pending_steps(model, workspace) == pending
        rows = [len(workspace.fetch(blob)) for blob in record.accumulated_rows]
        assert rows == [pending * 2 * 2] * 4  # two samples in each replica, looked up twice
        np.testing.assert_array_equal(workspace.fetch("cpu_0/table"), table)
        next(fed, None)
    parallel.forget_gradients(model, workspace)
    assert not any(len(workspace.fetch(blob)) for blob in record.accumulated_rows)
    saved = {str(blob) for blob in parallel.GetCheckpointParams(model)}
    assert not saved.intersection(record.accumulated_rows) and "cpu_0/table" in saved


def test_tables_of_unknown_shape():
    def build(model, loss_scale):
        table = model.create_param("table", [ROWS, 4], brew_from("given"))
        return scaled_loss(model, model.net.Gather([table, "first"], "rows"), loss_scale)

    def brew_from(blob):
        class Given:
            def create_param(self, param_name, init_net, shape):
                from netbuilder.model.parameter_info import ParameterInfo

                return ParameterInfo(None, init_net.Copy(blob, param_name), shape=shape)

        return Given()

    with pytest.raises(
        NetError, match="the gradient of 'cpu_0/table' is sparse, and the shape of this table cannot be inferred"
    ):
        parallel.Parallelize_CPU(
            ModelHelper("m"), no_input, build, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0], accumulate_steps=2
        )
