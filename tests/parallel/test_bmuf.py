"""Block-wise model updates: the published rule, warm-up, blocks over calls, checkpoints, refusals."""

import textwrap

import numpy as np
import pytest

import golden_data
from golden_builders import names_of_calls
from netbuilder import optimizers, parallel
from netbuilder.caffe2.python import data_parallel_model
from netbuilder.exchange import load_checkpoint, save_checkpoint, take_checkpoint
from netbuilder.graph.block_updates import BlockRule
from netbuilder.graph.checks import Rule, check_net
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.proto import PROTO_CUDA, BlobError, NetError
from netbuilder.runtime import Workspace
from parallel_models import distance, no_input, train
from structure import differences
from toy_models import mlp, softmax_loss

RATE, STEPS, FEATURES, CLASSES, BATCH = 0.5, 3, 5, 4, 6


def golden_model(parallelize=data_parallel_model.Parallelize_BMUF):
    golden = golden_data.net("mlp_bmuf_2")
    space = names_of_calls(dims=(7, 10, 4))
    for source in golden.meta["source"][::-1]:
        exec(textwrap.dedent(source), space)
    reset_names()
    model = ModelHelper("mlp_bmuf_2", arg_scope={"order": "NCHW"})
    build, update = space["mb2"], space["upd"]
    parallelize(model, no_input, build, update, block_learning_rate=1.0, devices=[0, 1], cpu_device=True)
    return model, golden


def test_the_golden_nets():
    """The init net also gives all replicas the same initial values; Caffe2's replicas start from different ones."""
    model, golden = golden_model()
    nets = model.block_nets
    pairs = {
        "net": (model.net, golden.main),
        "init": (nets.init, golden.protos["global_model_init_net"]),
        "update": (nets.update, golden.protos["global_model_param_updates_net"]),
    }
    for got, want in pairs.values():
        assert differences(got.Proto(), want) == []
        assert list(got.Proto().external_input) == list(want.external_input)
        assert (got.Name(), got.Proto().type, got.Proto().num_workers) == (want.name, want.type, want.num_workers)
    more = differences(model.param_init_net.Proto(), golden.init)
    names = [op.output[0] for op in golden.init.op if op.output[0].startswith("cpu_0")]
    assert sorted(more) == sorted(f"+Copy({name}) -> {name.replace('cpu_0', 'cpu_1')}" for name in names)
    assert [str(p) for p in model.params] == golden.meta["params"]
    assert {str(p): str(g) for p, g in model.param_to_grad.items()} == golden.meta["param_to_grad"]


def sgd(model):
    optimizers.build_sgd(model, RATE)


def momentum_sgd(model):
    optimizers.build_sgd(model, 0.1, momentum=0.9)


def regression(model, loss_scale):
    loss = softmax_loss(model, brew.fc(model, "data", "fc", FEATURES, CLASSES))
    return [loss]


def normalized(model, loss_scale):
    x = brew.spatial_bn(model, "data", "bn", 3, is_test=False)
    x = brew.relu(model, brew.conv(model, x, "conv", 3, 4, kernel=3), "relu")
    loss = softmax_loss(model, brew.fc(model, x, "fc", 4 * 36, CLASSES))
    return [loss]


def build(count=2, forward=regression, update=sgd, name="blocks", **options):
    model = ModelHelper(name)
    record = parallel.Parallelize_CPU_BMUF(model, no_input, forward, update, devices=list(range(count)), **options)
    return model, record


def batches(number, count, shape=(FEATURES,), seed=3):
    """For each iteration the data and labels of each replica."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(count, BATCH, *shape)).astype(np.float32), rng.integers(0, CLASSES, (count, BATCH)))
        for _ in range(number)
    ]


def feed(record, workspace, batch):
    for scope, data, label in zip(record.devices.scopes, *batch):
        workspace.feed(scope + "data", data)
        workspace.feed(scope + "label", label.astype(np.int32))


def start(model, record, batch, seed=0):
    workspace = Workspace(threads=1, seed=seed)
    feed(record, workspace, batch)
    parallel.RunInitNet(model, workspace=workspace)
    return workspace


def run(model, record, workspace, given):
    """One RunNet per batch."""
    for batch in given:
        feed(record, workspace, batch)
        parallel.RunNet(model, 1, workspace=workspace)


def fetch(workspace, record, name):
    return [workspace.fetch(blob) for blob in record.blobs(name)]


class Reference:
    """Softmax regression in float64 on several workers, with the filter of Chen and Huo's paper, equations 3 to 7."""

    def __init__(self, weights, bias, workers, momentum, rate, nesterov):
        start = np.concatenate([weights, bias[:, None]], axis=1).astype(np.float64)
        self.momentum, self.rate, self.nesterov = momentum, rate, nesterov
        self.model, self.change = start, np.zeros_like(start)  # W(t), Delta(t)
        self.sent = start  # W_g(t), from which the workers start
        self.local = [start] * workers

    def step(self, datas, labels):
        for worker, (data, label) in enumerate(zip(datas, labels)):
            x = np.concatenate([data.astype(np.float64), np.ones((len(data), 1))], axis=1)
            scores = x @ self.local[worker].T
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(label)), label] -= 1
            self.local[worker] = self.local[worker] - RATE * p.T @ x / len(data)

    def end_block(self):
        gradient = np.mean(self.local, axis=0) - self.sent
        self.change = self.momentum * self.change + self.rate * gradient
        self.model = self.model + self.change
        self.sent = self.model + (self.momentum * self.change if self.nesterov else 0)
        self.local = [self.sent] * len(self.local)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    "count, momentum, rate", [(1, None, 1.0), (2, None, 1.0), (3, None, 1.0), (4, 0.9, 1.5), (2, 0.0, 0.5), (8, 0.5, 1)]
)
def test_the_published_rule(count, momentum, rate, nesterov):
    options = {"block_learning_rate": rate, "block_momentum": momentum, "nesterov": nesterov}
    model, record = build(count, block_iterations=STEPS, **options)
    given = batches(STEPS * 4, count)
    workspace = start(model, record, given[0])
    first = [workspace.fetch("cpu_0/" + name) for name in ("fc_w", "fc_b")]
    used = 1 - 1 / count if momentum is None else momentum
    reference = Reference(*first, count, used, rate, nesterov)
    assert record.block.momentum == used
    for number, batch in enumerate(given, start=1):
        run(model, record, workspace, [batch])
        reference.step(*batch)
        if number % STEPS == 0:
            before = reference.sent
            reference.end_block()
            assert distance([reference.sent], [before]) > 1e-2
        for weights, bias, want in zip(
            fetch(workspace, record, "fc_w"), fetch(workspace, record, "fc_b"), reference.local
        ):
            assert distance([weights, bias], [want[:, :-1], want[:, -1]]) < 1e-5
    held = [workspace.fetch(f"cpu_0/fc_{kind}_g") for kind in "wb"]
    speed = [workspace.fetch(f"cpu_0/fc_{kind}_v") for kind in "wb"]
    assert distance(held, [reference.sent[:, :-1], reference.sent[:, -1]]) < 1e-5
    assert distance(speed, [reference.change[:, :-1], reference.change[:, -1]]) < 1e-4


def test_a_call_is_a_block():
    """Without block_iterations RunNet(model, n) is n iterations and the update; with it, calls only count."""
    given = batches(1, 2) * 6
    by_call, record = build()
    workspace = start(by_call, record, given[0])
    for _ in range(2):
        parallel.RunNet(by_call, 3, workspace=workspace)
    counted, _ = build(name="counted", block_iterations=3)
    other = start(counted, record, given[0])
    for number in (1, 4, 1):
        parallel.RunNet(counted, number, workspace=other)
    for blob in ("cpu_0/fc_w", "cpu_1/fc_b", "cpu_0/fc_w_v"):
        np.testing.assert_array_equal(workspace.fetch(blob), other.fetch(blob))
    before = workspace.fetch("cpu_0/fc_w")
    parallel.RunNet(by_call, 0, workspace=workspace)
    np.testing.assert_array_equal(workspace.fetch("cpu_0/fc_w"), before)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_the_mean_of_single_steps_is_a_step_on_the_whole_batch(count):
    """Blocks of one step, without block momentum: the parameters of data parallelism, for SGD with momentum."""
    _, plain, whole = train([0], lambda model: momentum_sgd(model), threads=1)
    model = ModelHelper("net")

    def forward(model, loss_scale):
        return mlp(model, 1.0)

    options = {"block_momentum": 0.0, "devices": list(range(count))}
    record = parallel.Parallelize_CPU_BMUF(model, no_input, forward, momentum_sgd, **options)
    workspace, rng = Workspace(threads=1), np.random.default_rng(7)
    for step in range(4):
        data, label = rng.normal(size=(24, 6)).astype(np.float32), rng.integers(0, 4, 24)
        feed(record, workspace, (np.split(data, count), np.split(label, count)))
        if step == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    for name in plain.parameters:
        want = whole.fetch(plain.blobs(name)[0])
        assert all(distance([got], [want]) < 1e-5 for got in fetch(workspace, record, name))


@pytest.mark.parametrize("master", [None, 1])
@pytest.mark.parametrize("counted", [False, True])
def test_warm_up(master, counted):
    """The replicas train on their own; then all continue from the master's parameters."""
    options = {"block_iterations": 2} if counted else {}
    model, record = build(3, master_device=master, warmup_iterations=4, **options)
    given = batches(1, 3)
    workspace = start(model, record, given[0])
    home = master or 0
    alone = Reference(*(workspace.fetch(f"cpu_{home}/fc_{kind}") for kind in "wb"), 1, 0, 1, False)
    for _ in range(4):
        alone.step(given[0][0][home : home + 1], given[0][1][home : home + 1])
    if counted:
        parallel.RunNet(model, 2, workspace=workspace)
        assert not np.array_equal(*fetch(workspace, record, "fc_w")[:2])
    parallel.RunWarmup(model, workspace=workspace)
    for weights in (*fetch(workspace, record, "fc_w"), workspace.fetch(f"cpu_{home}/fc_w_g")):
        assert distance([weights], [alone.local[0][:, :-1]]) < 1e-5
    assert not workspace.fetch(f"cpu_{home}/fc_w_v").any()
    if counted:
        with pytest.raises(NetError, match="the warm-up of model 'blocks' is over"):
            parallel.RunWarmup(model, workspace=workspace)
    parallel.RunNet(model, 2, workspace=workspace)
    assert workspace.fetch(f"cpu_{home}/fc_w_v").any()
    same = fetch(workspace, record, "fc_w")
    assert all(np.array_equal(same[0], other) for other in same[1:])


def test_a_block_that_is_ended_early():
    model, record = build(block_iterations=4, warmup_iterations=2)
    given = batches(1, 2)
    workspace = start(model, record, given[0])
    parallel.RunNet(model, 1, workspace=workspace)
    parallel.finish_block(model, workspace=workspace)  # in the warm-up, which continues
    assert np.array_equal(*fetch(workspace, record, "fc_w"))
    assert workspace.fetch("cpu_0/block_iterations").tolist() == [-1]
    parallel.RunNet(model, 4, workspace=workspace)
    assert workspace.fetch("cpu_0/block_iterations").tolist() == [3]
    assert not np.array_equal(*fetch(workspace, record, "fc_w"))
    held, both = workspace.fetch("cpu_0/fc_w_g"), fetch(workspace, record, "fc_w")
    parallel.finish_block(model, workspace=workspace)
    want = (both[0].astype(np.float64) + both[1]) / 2
    np.testing.assert_allclose(workspace.fetch("cpu_1/fc_w"), want, rtol=1e-5, atol=1e-6)  # v was 0
    assert not np.array_equal(held, workspace.fetch("cpu_0/fc_w_g"))
    speed = workspace.fetch("cpu_0/fc_w_v")
    parallel.finish_block(model, workspace=workspace)  # between two blocks
    np.testing.assert_array_equal(workspace.fetch("cpu_0/fc_w_v"), speed)
    parallel.RunNet(model, 4, workspace=workspace)
    assert workspace.fetch("cpu_0/block_iterations").tolist() == [0]


def test_running_statistics_are_averaged():
    model, record = build(2, normalized, momentum_sgd)
    given = batches(1, 2, (3, 8, 8))
    workspace = start(model, record, given[0])
    assert record.computed == ("bn_rm", "bn_riv") and not record.broadcasts_computed
    workspace.run_net(model.net.Name())
    want = {name: np.mean(fetch(workspace, record, name), axis=0) for name in record.computed}
    assert all(not np.array_equal(*fetch(workspace, record, name)) for name in record.computed)
    workspace.run_net(model.block_nets.update.Name())
    for name, mean in want.items():
        for got in fetch(workspace, record, name):
            np.testing.assert_allclose(got, mean, rtol=1e-6)


def test_momenta_of_the_replicas():
    """They stay, unless they are reset."""
    for resets in (False, True):
        model, record = build(2, update=momentum_sgd, reset_momentum_sgd=resets)
        workspace = start(model, record, batches(1, 2)[0])
        parallel.RunNet(model, 2, workspace=workspace)
        found = [workspace.fetch(blob).any() for blob in record.devices.copies("fc_w_momentum")]
        assert found == [not resets] * 2
    with pytest.raises(NetError, match="reset_momentum_sgd=True, but its updates have no momentum"):
        build(2, reset_momentum_sgd=True)


def test_further_blobs_get_the_values_of_the_master():
    def forward(model, loss_scale):
        model.param_init_net.UniformFill([], "number", shape=[1])
        return regression(model, loss_scale)

    model, record = build(3, forward, master_device=2, add_blobs_to_sync=["number", "cpu_1/number"])
    workspace = start(model, record, batches(1, 3)[0])
    workspace.feed("cpu_2/number", np.float32([2603]))
    parallel.RunNet(model, 1, workspace=workspace)
    assert [float(value[0]) for value in fetch(workspace, record, "number")] == [2603] * 3
    with pytest.raises(BlobError, match="blob 'nothing': the replicas on CPU 0, 1, 2 have no blob of this name"):
        build(3, forward, add_blobs_to_sync=["nothing"])


def test_uneven_shares():
    """The last batch of an epoch: gradients are weighted by the samples of the replica."""
    model, record = build(2, weighted_shares=True, block_momentum=0.0)
    workspace, rng = Workspace(threads=1), np.random.default_rng(5)
    whole = {"data": rng.normal(size=(5, FEATURES)).astype(np.float32), "label": rng.integers(0, CLASSES, 5)}
    whole["label"] = whole["label"].astype(np.int32)
    next(parallel.feed_shares(model, whole, workspace=workspace))
    parallel.RunInitNet(model, workspace=workspace)
    reference = Reference(workspace.fetch("cpu_0/fc_w"), workspace.fetch("cpu_0/fc_b"), 1, 0, 1, False)
    reference.step([whole["data"]], [whole["label"]])
    parallel.RunNet(model, 1, workspace=workspace)
    assert distance([workspace.fetch("cpu_1/fc_w")], [reference.local[0][:, :-1]]) < 1e-5


# Checkpoints


def everything(workspace):
    """All float values of a workspace; names of learning rates are counted over a process."""
    names = [name for name in sorted(workspace.blobs()) if not (workspace.get(name).is_empty or "_lr_" in name)]
    values = {name: workspace.fetch(name) for name in names}
    return {name: value for name, value in values.items() if getattr(value, "dtype", None) == np.float32}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("at", [2, 5, 6])
@pytest.mark.parametrize("options", [{}, {"nesterov": True, "master_device": 1}])
def test_resumed_training_is_equal_to_the_bit(tmp_path, at, options):
    """In the warm-up, within a block, and between two."""
    options = {"block_iterations": 2, "warmup_iterations": 4, **options}
    given = batches(10, 2, (3, 8, 8))
    model, record = build(2, normalized, momentum_sgd, **options)
    workspace = start(model, record, given[0])
    run(model, record, workspace, given[:at])
    path = tmp_path / "checkpoint"
    saved = save_checkpoint(path, model, workspace=workspace)
    assert {"fc_w", "replica_1/fc_w", "fc_w_g", "fc_w_v", "replica_1/conv_b_momentum", "bn_rm", "block_iterations"} <= (
        saved.blobs.keys()
    )
    run(model, record, workspace, given[at:])

    again, _ = build(2, normalized, momentum_sgd, name="again", **options)
    resumed = start(again, record, given[-1], seed=5)
    load_checkpoint(path, again, workspace=resumed)
    run(again, record, resumed, given[at:])
    want, got = everything(workspace), everything(resumed)
    assert got.keys() == want.keys()
    assert [name for name in want if not np.array_equal(want[name], got[name])] == []


def test_a_checkpoint_without_the_state_of_blocks():
    """Only parameters: all replicas and the global parameters get them."""
    plain = ModelHelper("plain")
    parallel.Parallelize_CPU(plain, no_input, regression_scaled, optimizer_builder_fun=sgd, devices=[0])
    source = Workspace(threads=1, seed=9)
    for name, value in zip(("data", "label"), batches(1, 1)[0]):
        source.feed(f"cpu_0/{name}", value[0].astype(np.float32 if name == "data" else np.int32))
    parallel.RunInitNet(plain, workspace=source)
    model, record = build(3, master_device=1)
    workspace = start(model, record, batches(1, 3)[0])
    checkpoint = take_checkpoint(plain, workspace=source)
    with pytest.raises(NetError, match="does not match model 'blocks'"):
        load_checkpoint(checkpoint, model, workspace=workspace)
    load_checkpoint(checkpoint, model, workspace=workspace, parameters_only=True)
    want = source.fetch("cpu_0/fc_w")
    for value in (*fetch(workspace, record, "fc_w"), workspace.fetch("cpu_1/fc_w_g")):
        np.testing.assert_array_equal(value, want)


def regression_scaled(model, loss_scale):
    return [model.Scale(regression(model, loss_scale)[0], scale=loss_scale)]


def test_a_checkpoint_of_another_number_of_replicas():
    two, of_two = build(2, update=momentum_sgd)
    workspace = start(two, of_two, batches(1, 2)[0])
    parallel.RunNet(two, 2, workspace=workspace)
    checkpoint = take_checkpoint(two, workspace=workspace)
    three, of_three = build(3, update=momentum_sgd)
    other = start(three, of_three, batches(1, 3)[0], seed=4)
    with pytest.raises(NetError, match="replica_2/fc_w.*"):
        load_checkpoint(checkpoint, three, workspace=other)
    load_checkpoint(checkpoint, three, workspace=other, partial=True, show=lambda report: None)
    for name in ("fc_w", "fc_b"):
        for value in (*fetch(other, of_three, name), other.fetch(f"cpu_0/{name}_g")):
            np.testing.assert_array_equal(value, workspace.fetch("cpu_0/" + name))
    np.testing.assert_array_equal(other.fetch("cpu_0/fc_w_v"), workspace.fetch("cpu_0/fc_w_v"))


# What is built


def test_the_record():
    _, record = build(2, block_learning_rate=0.3, block_momentum=0.7, nesterov=True, warmup_iterations=5)
    assert record.block == BlockRule(0.7, 0.3, 0.7, 0, 5, 0)
    model, record = build(2, lookahead=-1, block_iterations=4, master_device=1)
    assert record.block == BlockRule(0.5, 1.0, -0.5, 4, None, 1)
    assert Replicas.load(model.net.Proto()) == record
    assert record.block_state == (
        "cpu_1/fc_w_g", "cpu_1/fc_w_v", "cpu_1/fc_b_g", "cpu_1/fc_b_v", "cpu_1/block_iterations",
    )  # fmt: skip
    _, plain, _ = train([0, 1])
    assert plain.block is None and plain.block_state == ()


def test_a_table_outside_is_updated_once_with_all_gradients():
    model = ModelHelper("outside")
    table = model.create_param("table", [6, 2], Initializer("UniformFill", min=-0.5, max=0.5))

    def forward(model, loss_scale):
        rows = model.net.Gather([table, "rows"], "read")
        return [*regression(model, loss_scale), model.net.AveragedLoss(rows, "mean")]

    record = parallel.Parallelize_CPU_BMUF(model, no_input, forward, sgd, devices=[0, 1])
    workspace = Workspace(threads=1)
    feed(record, workspace, batches(1, 2)[0])
    read = np.int32([[0, 1, 1, 5], [1, 2, 3, 5]])
    for scope, rows in zip(record.devices.scopes, read):
        workspace.feed(scope + "rows", rows)
    parallel.RunInitNet(model, workspace=workspace)
    before = workspace.fetch("table")
    parallel.RunNet(model, 3, workspace=workspace)
    count = np.bincount(read.ravel(), minlength=6)[:, None]
    np.testing.assert_allclose(workspace.fetch("table"), before - 3 * RATE * count / 8, rtol=1e-5, atol=1e-6)
    assert sum("table" in op.output for op in model.net.Proto().op) == 1
    assert len(model.params) == 1 + 4 and len(model.param_to_grad) == 5


def test_nothing_is_exchanged_within_a_block():
    model, record = build(3, mlp, momentum_sgd)
    for op in model.net.Proto().op:
        touched = {record.devices.replica_of(blob) for blob in (*op.input, *op.output)} - {None}
        assert len(touched) == 1, op
    assert model.parameter_copies == {}  # a norm of gradients is that of one replica


def test_the_checks_of_a_net_know_that_nothing_is_exchanged():
    def found(model):
        everything = check_net(model.net, init_net=model.param_init_net, available=inputs)
        return [finding.rule for finding in everything]

    inputs = [f"cpu_{device}/{name}" for device in (0, 1) for name in ("data", "label")]
    model, _ = build(2, mlp, momentum_sgd)
    assert found(model) == []
    update = next(op for op in model.net.Proto().op if op.type == "MomentumSGDUpdate" and "cpu_1/fc1_w" in op.output)
    update.input[0] = "cpu_0/fc1_w_grad"  # another replica's gradient
    assert Rule.UNREDUCED_GRADIENT in found(model)


@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
@pytest.mark.parametrize("use_nccl", [False, True])
def test_gpus(use_nccl):
    model = ModelHelper("net")
    options = {"devices": [0, 1, 2, 3], "peer_access": lambda a, b: True, "use_nccl": use_nccl}
    record = parallel.Parallelize_GPU_BMUF(model, no_input, regression, sgd, master_device=2, **options)
    update = model.block_nets.update.Proto()
    types = [op.type for op in update.op]
    assert not {"NCCLAllreduce", "NCCLBroadcast"}.intersection(op.type for op in model.net.Proto().op)
    assert types.count("NCCLAllreduce") == types.count("NCCLBroadcast") == (2 if use_nccl else 0)
    assert all(op.device_option.device_type == PROTO_CUDA for op in update.op)
    rule = [op for op in update.op if op.type in ("Scale", "Sub", "Add")]
    assert {op.device_option.device_id for op in rule} == {2} and len(rule) == 2 * 6
    if not use_nccl:
        last = [op for op in update.op if op.type == "Copy"][-3:]
        assert [(op.input[0], op.output[0], op.device_option.device_id) for op in last] == [
            ("gpu_2/fc_b", f"gpu_{number}/fc_b", number) for number in (0, 1, 3)
        ]
    assert record.blobs("fc_w")[2] == "gpu_2/fc_w"


def test_gradient_memory():
    model, record = build(2, mlp, optimize_gradient_memory=True)
    assert record.shares_memory
    plain, _ = build(2, mlp)
    results = []
    for each in (model, plain):
        workspace = start(each, record, batches(1, 2, (6,))[0])
        parallel.RunNet(each, 3, workspace=workspace)
        results.append(workspace.fetch("cpu_1/fc1_w"))
    np.testing.assert_array_equal(*results)


WRONG = {
    "block_momentum": [(1.0, NetError, r"block_momentum must be in \[0, 1\), got 1.0"), ("a", TypeError, "a number")],
    "block_learning_rate": [
        (0, NetError, "block_learning_rate must be positive, got 0"),
        (float("nan"), NetError, "block_learning_rate must be finite, got nan"),
    ],
    "warmup_iterations": [(-1, NetError, "warmup_iterations must be at least 0, got -1"), (1.5, TypeError, "integer")],
    "block_iterations": [(0, NetError, "block_iterations must be at least 1, got 0"), (True, TypeError, "integer")],
    "master_device": [(7, NetError, r"master_device must be one of the devices \[0, 1\], got 7")],
    "nesterov": [(1, TypeError, "nesterov must be True or False, got 1")],
    "lookahead": [(float("inf"), NetError, "lookahead must be finite")],
    "add_blobs_to_sync": [("number", TypeError, "add_blobs_to_sync must be a list, got the single string 'number'")],
    "rendezvous": [({}, NetError, "'num_shards', 'shard_id', 'engine' are missing")],
    "max_concurrent_distributed_ops": [(0, NetError, "max_concurrent_distributed_ops must be at least 1, got 0")],
    "barrier_net_timeout_sec": [("1", NetError, "barrier_net_timeout_sec must be a positive number of seconds")],
    "net_type": [("prism", NetError, "unknown net_type 'prism'")],
    "num_threads_per_device": [(0, NetError, "num_threads_per_device must be at least 1")],
    "peer_access": [(3, TypeError, "peer_access must be a function")],
}


@pytest.mark.parametrize("name, case", [(name, case) for name, cases in WRONG.items() for case in cases])
def test_refusals(name, case):
    value, error, match = case
    with pytest.raises(error, match=match):
        build(2, **{name: value})


def test_further_refusals():
    with pytest.raises(TypeError, match="param_update_builder_fun must be a function, got None"):
        build(2, update=None)

    def clash(model, loss_scale):
        model.net.Copy("label", "fc_w_g")
        return regression(model, loss_scale)

    model = ModelHelper("clash")
    with pytest.raises(NetError, match=r"keep their state in \['cpu_0/fc_w_g'\]"):
        parallel.Parallelize_CPU_BMUF(model, no_input, clash, sgd, devices=[0, 1])
    assert model.net.op_len == 0 and model.block_nets is None
    plain, record, workspace = train([0, 1])
    for called in (parallel.RunWarmup, parallel.finish_block):
        with pytest.raises(NetError, match=f"{called.__name__}: model 'net' has no block-wise updates"):
            called(plain, workspace=workspace)
    model, _ = build(2)
    with pytest.raises(NetError, match="RunWarmup: model 'blocks' has no warm-up"):
        parallel.RunWarmup(model)
    with pytest.raises(NetError, match="data-parallel already"):
        parallel.Parallelize_CPU_BMUF(model, no_input, regression, sgd, devices=[0])
    other = ModelHelper("other")
    other.net.Proto().CopyFrom(model.net.Proto())
    with pytest.raises(NetError, match="the model has no nets of block-wise updates"):
        parallel.CreateNet(other, workspace=Workspace(threads=1))
