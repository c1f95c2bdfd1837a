"""Optimizers of tables: repeated rows, rows that nothing touches, optimizers of single tables, regularizers."""

import numpy as np
import pytest

from netbuilder import optimizers
from netbuilder.caffe2.python import regularizer
from netbuilder.graph import DeviceScope
from netbuilder.model import Initializer, ModelHelper
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, gpus

SUM = {"sparse_dedup_aggregator": "sum"}
BUILDERS = {
    "sgd": lambda model, **o: optimizers.build_sgd(model, 0.5, **o),
    "momentum": lambda model, **o: optimizers.build_sgd(model, 0.1, momentum=0.9, **o),
    "adagrad": lambda model, **o: optimizers.build_adagrad(model, 0.1, **o),
    "row_wise_adagrad": lambda model, **o: optimizers.build_adagrad(model, 0.1, rowWise=True, **o),
    "adam": lambda model, **o: optimizers.build_adam(model, 0.05, **o),
    "radam": lambda model, **o: optimizers.build_adam(model, 0.05, enableRAdam=True, beta2=0.9, **o),
    "row_wise_adam": lambda model, **o: optimizers.build_adam(model, 0.05, rowWise=True, **o),
    "smart_decay_adam": lambda model, **o: optimizers.build_adam(model, 0.05, use_smart_decay=True, **o),
    "ftrl": lambda model, **o: optimizers.build_ftrl(model, alpha=0.5, lambda1=0.001, **o),
    "adadelta": lambda model, **o: optimizers.build_adadelta(model, 1.0, epsilon=1e-2, **o),
    "wngrad": lambda model, **o: optimizers.build_wngrad(model, 2.0, moment_init=1.0, **o),
    "storm": lambda model, **o: optimizers.build_storm(model, 0.3, **o),
    "decay_adagrad": lambda model, **o: optimizers.build_decay_adagrad(model, 0.5, **o),
}
ROWS = np.int32([1, 3, 1, 4])
TARGETS = np.float32([[1, -1], [0.5, 2], [1, -1], [-2, 0]])


def table_model(build=None, *, dense=False, rows=5, distance=None):
    """A table whose rows shall equal targets; row 0 and 2 are never looked up."""
    model = ModelHelper("table")
    table = model.create_param("table", [rows, 2], Initializer("ConstantFill", value=0.25))
    found = model.net.MatMul(["one_hot", table], "rows") if dense else model.net.Gather([table, "i"], "rows")
    differ = distance or (lambda net: net.SquaredL2Distance([found, "target"], "distance"))
    loss = model.net.AveragedLoss(differ(model.net), "loss")
    model.AddGradientOperators([loss])
    if build is not None:
        build(model)
    return model


def run(model, steps, indices=ROWS, targets=TARGETS):
    workspace = Workspace(threads=1)
    workspace.feed("i", indices)
    workspace.feed("one_hot", np.eye(5, dtype=np.float32)[indices])
    workspace.feed("target", targets)
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    losses = []
    for _ in range(steps):
        workspace.run_net(model.net)
        losses.append(float(workspace.fetch("loss")))
    return workspace, losses


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", BUILDERS)
def test_the_loss_falls_and_other_rows_stay(name):
    workspace, losses = run(table_model(BUILDERS[name]), 60)
    assert losses[-1] < 0.3 * losses[0], losses[::10]
    table = workspace.fetch("table")
    assert (table[[0, 2]] == 0.25).all() and (table[[1, 3, 4]] != 0.25).any(axis=1).all()


@pytest.mark.parametrize("name", BUILDERS)
def test_state_is_kept_for_checkpoints(name):
    model = table_model()
    kept = {str(blob) for blob in BUILDERS[name](model).get_auxiliary_parameters().local}
    update = next(op for op in model.net.Proto().op if "table" in op.output)
    assert {blob for blob in update.output if blob.startswith("table_")} <= kept
    assert kept <= {blob for op in model.param_init_net.Proto().op for blob in op.output}
    assert bool(kept) == (name != "sgd")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "ftrl", "adadelta", "wngrad", "storm"])
def test_repeated_rows_joined_equal_the_dense_gradient(name):
    """In the first step, where no row has a past, all rows that are looked up move as under a dense gradient."""
    sparse, _ = run(table_model(lambda model: BUILDERS[name](model, **SUM)), 1)
    dense, _ = run(table_model(BUILDERS[name], dense=True), 1)
    touched = np.unique(ROWS)
    np.testing.assert_allclose(sparse.fetch("table")[touched], dense.fetch("table")[touched], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("options", "steps"), [({}, 1), (SUM, 1), ({"sparse_dedup_aggregator": "none"}, 2)])
def test_repeated_rows_take_one_step_unless_they_are_to_stay_apart(options, steps):
    def build(model):
        return BUILDERS["adagrad"](model, **options)

    once, _ = run(table_model(build), 1, ROWS[:1], TARGETS[:1])
    h = float(once.fetch("table_squared_sum")[1, 0])
    twice, _ = run(table_model(build), 1, ROWS[[0, 2]], TARGETS[[0, 2]])
    # Each of two rows has half the gradient.
    assert twice.fetch("table_squared_sum")[1, 0] == pytest.approx(h if steps == 1 else 2 * h / 4)


@pytest.mark.parametrize("name", ["momentum", "adagrad", "adam", "ftrl", "adadelta", "wngrad", "storm"])
def test_the_order_of_repeated_rows_does_not_matter(name):
    order = np.random.default_rng(1).permutation(len(ROWS))
    one, _ = run(table_model(BUILDERS[name]), 2)
    other, _ = run(table_model(BUILDERS[name]), 2, ROWS[order], TARGETS[order])
    np.testing.assert_allclose(other.fetch("table"), one.fetch("table"), rtol=1e-5, atol=1e-6)


def test_indices_of_any_shape_are_joined():
    found = []
    for shape in ((6,), (2, 3)):
        model = ModelHelper("matrix")
        table = model.create_param("table", [5, 4], Initializer("UniformFill", min=-0.5, max=0.5))
        rows = model.net.Gather([table, "i"], "rows")
        loss = model.net.SumElements(model.net.Sqr(rows, "squares"), "loss")
        model.AddGradientOperators([loss])
        optimizers.build_adam(model, 0.1)
        workspace = Workspace(threads=1, seed=2)
        workspace.feed("i", np.int32([0, 3, 0, 0, 3, 1]).reshape(shape))
        workspace.run_net_once(model.param_init_net)
        workspace.run_net(workspace.create_net(model.net))
        found.append(workspace.fetch("table"))
    np.testing.assert_array_equal(found[0], found[1])


def test_rows_make_up_for_the_iterations_without_them():
    model = table_model(BUILDERS["smart_decay_adam"])
    workspace, _ = run(model, 1)
    assert workspace.fetch("table_last_seen").tolist() == [0, 1, 0, 1, 1]
    workspace.feed("i", np.int32([0, 0, 3, 3]))
    workspace.run_net(model.net)
    assert workspace.fetch("table_last_seen").tolist() == [2, 1, 0, 2, 1]


def test_seldom_rows_decay_by_more():
    def build(model):
        optimizers.build_adagrad(model, 0.1, rowWise=True, weight_decay=0.1, counter_halflife=10, **SUM)

    workspace, _ = run(table_model(build), 3)
    counts = workspace.fetch("table_update_counter")
    assert counts.dtype == np.float64 and counts[0] == 0 and counts[1] == counts[3] > 2.5
    assert workspace.fetch("table_prev_update_iter").tolist() == [0, 3, 0, 3, 3]


def test_a_table_has_an_optimizer_of_its_own():
    model = table_model()
    (table,) = model.params
    model.get_param_info(table).optimizer = optimizers.AdagradOptimizer(alpha=0.1, rowWise=True)
    optimizers.build_sgd(model, 0.5)
    updates = [op.type for op in model.net.Proto().op if "table" in op.output]
    assert updates == ["RowWiseSparseAdagrad"]


@pytest.mark.parametrize("name", ["radam", "smart_decay_adam"])
def test_dense_gradients_take_plain_steps(name):
    got, _ = run(table_model(BUILDERS[name], dense=True), 2)
    plain = {"radam": lambda model: optimizers.build_adam(model, 0.05, beta2=0.9)}.get(name, BUILDERS["adam"])
    want, _ = run(table_model(plain, dense=True), 2)
    np.testing.assert_array_equal(got.fetch("table"), want.fetch("table"))


@pytest.mark.parametrize("name", ["row_wise_adagrad", "row_wise_adam", "smart_decay_adam"])
def test_one_number_a_row_needs_the_shape(name):
    model = ModelHelper("table")
    table = model.param_init_net.Copy("elsewhere", "table")
    model.AddParameter(table)
    model.AddGradientOperators([model.net.AveragedLoss(model.net.Gather([table, "i"], "rows"), "loss")])
    with pytest.raises(ArgumentError, match="state per row needs the shape of table"):
        BUILDERS[name](model)


@pytest.mark.parametrize(
    "make, check",
    [
        (lambda: regularizer.MaxNorm(0.1), lambda rows: (np.linalg.norm(rows, axis=1) < 0.1 + 1e-6).all()),
        (lambda: regularizer.ConstantNorm(2.0), lambda rows: np.allclose(np.linalg.norm(rows, axis=1), 2)),
        (lambda: regularizer.SparseL1Norm(5.0), lambda rows: (rows == 0).all()),
        (lambda: regularizer.SparseL2Norm(1.0), lambda rows: (rows == 0).all()),
    ],
    ids=["max_norm", "constant_norm", "l1", "l2"],
)
def test_regularizers_after_the_update(make, check):
    model = table_model(BUILDERS["sgd"])
    (table,) = model.params
    by = regularizer.RegularizationBy.AFTER_OPTIMIZER
    make()(model.net, model.param_init_net, table, grad=model.param_to_grad[table], by=by)
    workspace, _ = run(model, 2)
    values = workspace.fetch("table")
    assert check(values[[1, 3, 4]]) and (values[[0, 2]] == 0.25).all()


def trained_on_a_gpu(name, steps):
    """Train a table on a GPU; return the model and the workspace."""

    def distance(net):
        return net.Sqr(net.Sub(["rows", "target"], "differences"), "squares")

    with DeviceScope(ON_GPU):
        model = table_model(BUILDERS[name], distance=distance)
    workspace = Workspace(threads=1)
    for blob, value in (("i", ROWS), ("target", TARGETS)):
        workspace.feed(blob, value, ON_GPU)
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    workspace.run_net(model.net, steps)
    return model, workspace, distance


@pytest.mark.gpu
@pytest.mark.parametrize("name", BUILDERS)
def test_tables_on_a_gpu(name):
    """The sums of repeated rows have a fixed size: one plan has the whole step, and results are those of the CPU."""
    model, workspace, distance = trained_on_a_gpu(name, 5)
    sums = [op for op in model.net.Proto().op if op.type == "SumRepeatedRows"]
    assert [arguments(op)["num_rows"] for op in sums] == [5] * (name != "sgd")
    assert len(workspace.net(model.net).plan_ahead()) == 1
    wanted, _ = run(table_model(BUILDERS[name], distance=distance), 5)
    for blob in model.net.Proto().external_input:
        if blob.startswith("table"):
            found = workspace.fetch(blob)
            np.testing.assert_allclose(found, wanted.fetch(blob), rtol=2e-5, atol=2e-6, err_msg=blob)


@pytest.mark.emulated
@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in ("wngrad", "storm", "decay_adagrad")])
def test_a_step_of_a_table_on_a_gpu_is_one_graph(name):
    with gpus(1) as machine:
        model, workspace, _ = trained_on_a_gpu(name, 4)
        before = machine.counts
        workspace.run_net(model.net)
        found = machine.counts - before
        assert (found["replays"], found["allocations"], found["launches"]) == (1, 0, 0)
        assert (found["reads"], found["synchronizations"]) == (1, 2)  # the host waits, then reads what is wrong
