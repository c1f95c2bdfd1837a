"""Strategy zero: one process updates a parameter for all; equal to the bit to plain, with state in the owner only."""

import numpy as np
import pytest

from netbuilder import optimizers, parallel
from netbuilder.distributed import Strategy
from netbuilder.exchange import CheckpointFolder, load_checkpoint, read_checkpoint, save_checkpoint, take_checkpoint
from netbuilder.graph.checks import check_net
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.optimizers import OPTIMIZERS as NAMED
from netbuilder.optimizers import (
    add_moving_averages,
    add_weight_decay,
    optimizer_by_name,
    reset_optimizer_instance_count,
)
from netbuilder.parallel.owned_updates import deal, own_part, owned_state
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, BlobError, NetError, ParseError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from parallel_models import no_input
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import normalized, scaled_loss

STEPS = 4


def deep(model, loss_scale):
    x = "data"
    for number, (before, after) in enumerate([(6, 16), (16, 8), (8, 8), (8, 4)]):
        x = brew.relu(model, brew.fc(model, x, f"fc{number}", before, after), f"relu{number}")
    return scaled_loss(model, x, loss_scale)


def with_table(model, loss_scale):
    table = model.create_param("table", [9, 6], Initializer("UniformFill", min=-0.5, max=0.5))
    x = model.net.Add([model.net.Gather([table, "label"], "rows"), "data"], "sum")
    return scaled_loss(model, brew.fc(model, x, "fc", 6, 4), loss_scale)


def built(strategy, size, rank, update, forward=deep, devices=1, **options):
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    options = {"deterministic": True, "bucket_bytes": 300, **options}
    parallel.Parallelize_CPU(
        model, no_input, forward, optimizer_builder_fun=update, devices=list(range(devices)), strategy=strategy,
        rendezvous={"num_shards": size, "shard_id": rank, "engine": "MPI"}, **options,
    )  # fmt: skip
    return model


def trained(monkeypatch, strategy, size, update, devices=1, steps=STEPS, shape=(6,), begin=None, **options):
    """Train on ranks that are threads; return each one's model and workspace."""
    use_thread_worlds(monkeypatch, size)
    models = [built(strategy, size, rank, update, devices=devices, **options) for rank in range(size)]
    micro = options.get("accumulate_steps", 1)

    def run(rank):
        model, rng = models[rank], np.random.default_rng(5)
        record, workspace = Replicas.load(model.net.Proto()), Workspace(threads=1, seed=3 + rank)
        for step in range(steps * micro):
            data = rng.normal(size=(size * devices, 5, *shape)).astype(np.float32)
            label = rng.integers(0, 4, (size * devices, 5)).astype(np.int32)
            for replica, scope in enumerate(record.devices.scopes):
                workspace.feed(scope + "data", data[rank * devices + replica])
                workspace.feed(scope + "label", label[rank * devices + replica])
            if not step:
                parallel.RunInitNet(model, workspace=workspace)
                if begin is not None:
                    begin(rank, model, workspace)
            parallel.RunNet(model, workspace=workspace)
        return model, workspace

    results = on_ranks(size, run)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def values(model, workspace, names=None):
    blobs = parallel.GetCheckpointParams(model) if names is None else names
    return {str(blob): workspace.fetch(str(blob)) for blob in blobs if workspace.has(str(blob))}


def require_equal(monkeypatch, size, update, **options):
    """Train plain and zero; compare all that a rank has, to the bit, and that state is in one rank."""
    plain = trained(monkeypatch, "plain", size, update, **options)
    zero = trained(monkeypatch, "zero:1", size, update, **options)
    state = owned_state(zero[0][0].param_init_net.Proto())
    assert owned_state(plain[0][0].param_init_net.Proto()) == {}
    for rank, ((model, want), (other, got)) in enumerate(zip(plain, zero)):
        assert owned_state(other.param_init_net.Proto()) == state
        expected, found = values(model, want), values(other, got)
        assert set(expected) - set(found) == {name for name in expected if state.get(name, rank) != rank}
        for name, value in found.items():
            assert value.tobytes() == expected[name].tobytes(), (rank, name)
    return zero, state


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", sorted(set(NAMED) - {name for name, kind in NAMED.items() if kind.for_float16}))
def test_every_optimizer_is_equal_to_the_bit(monkeypatch, name):
    def update(model):
        optimizers.build_optimizer(model, optimizer_by_name(name, 0.01))

    require_equal(monkeypatch, 2, update)


MOMENTUM = {"momentum": 0.9, "nesterov": 1}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("size, devices", [(3, 1), (2, 2)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate_steps": 2},
        {"reduce_update_broadcast": True},
        {"optimize_gradient_memory": True},
        {"forward": normalized, "shape": (3, 8, 8)},
        {"forward": normalized, "shape": (3, 8, 8), "combine_spatial_bn": True},
        {"forward": with_table},
        {"average_initial_parameters": True},
        {"params": ["fc1_w", "fc2_b"]},
        {"bucket_bytes": 0},
    ],
    ids=lambda options: ", ".join(f"{name}={getattr(of, '__name__', of)}" for name, of in options.items()) or "plain",
)
def test_every_option_is_equal_to_the_bit(monkeypatch, size, devices, options):
    require_equal(
        monkeypatch, size, lambda model: optimizers.build_sgd(model, 0.1, **MOMENTUM), devices=devices, **options
    )


@pytest.mark.parametrize("build, count", [(optimizers.build_adam, 16), (optimizers.build_lion, 8)])
def test_clipping_decay_and_averages_are_equal_to_the_bit(monkeypatch, build, count):
    """Lion's state is written after its parameters."""

    def update(model):
        add_weight_decay(model, 0.01)
        build(model, 0.01, max_gradient_norm=0.05)
        add_moving_averages(model, 0.9)

    zero, state = require_equal(monkeypatch, 3, update)
    assert not [name for name in state if "average" in name], "all processes have the averages, for evaluation"
    moments = [name for name in state if "moment" in name]
    assert len(moments) == count
    parts = [sum(workspace.fetch(name).nbytes for name in moments if workspace.has(name)) for _, workspace in zero]
    whole = sum(value.nbytes for _, workspace in zero for value in values(zero[0][0], workspace, moments).values())
    assert sum(parts) == whole and max(parts) < 0.45 * whole


def test_initial_state_that_reads_a_parameter_reads_that_of_rank_0(monkeypatch):
    class FromParameter(optimizers.SgdOptimizer):
        """SGD whose state begins as a copy of the parameter."""

        repeats = False

        def _run(self, net, param_init_net, param_info):
            state = param_init_net.Copy(param_info.blob, str(param_info.blob) + "_first")
            net.WeightedSum([state, self.one(param_init_net), param_info.grad, self.one(param_init_net)], state)
            super()._run(net, param_init_net, param_info)

        def one(self, param_init_net):
            return param_init_net.ConstantFill([], "unit", shape=[1], value=1.0)

    require_equal(monkeypatch, 2, lambda model: optimizers.build_optimizer(model, FromParameter(0.1)))


def test_owners_have_about_as_many_bytes():
    rng = np.random.default_rng(0)
    for processes in (2, 3, 7):
        sizes = {f"p{n}": int(size) for n, size in enumerate(rng.integers(1, 1000, 60))}
        ranks = deal(sizes, processes)
        filled = [sum(sizes[name] for name in sizes if ranks[name] == rank) for rank in range(processes)]
        assert max(filled) - min(filled) <= 1000 and sum(filled) == sum(sizes.values())
    assert deal({"only": 3}, 2) == {"only": 0}


def test_nets_of_all_processes_are_equal_and_each_runs_its_part():
    models = [built("zero:1", 2, rank, lambda m: optimizers.build_sgd(m, 0.1, **MOMENTUM)) for rank in range(2)]
    first, second = (model.net.Proto() for model in models)
    assert [op.SerializeToString() for op in first.op] == [op.SerializeToString() for op in second.op]
    updates = {op.output[1]: arguments(op)["owner"] for op in first.op if op.type == "MomentumSGDUpdate"}
    assert sorted(set(updates.values())) == [0, 1]
    for rank, model in enumerate(models):
        part = own_part(model.net.Proto(), rank)
        own = [op.output[1] for op in part.op if op.type == "MomentumSGDUpdate"]
        assert own == [blob for blob, owner in updates.items() if owner == rank]
        assert not any(arg.name == "owner" for op in part.op for arg in op.arg)
        assert not {blob for blob, owner in updates.items() if owner != rank} & set(part.external_input)
    plain = built("plain", 2, 0, lambda m: optimizers.build_sgd(m, 0.1)).net.Proto()
    assert own_part(plain, 0) is plain


def test_one_process_adds_nothing():
    models = []
    for strategy in (None, "zero:1"):
        reset_names()
        reset_optimizer_instance_count()
        model = ModelHelper("net")
        parallel.Parallelize_CPU(
            model, no_input, deep, optimizer_builder_fun=lambda m: optimizers.build_sgd(m, 0.1), devices=[0, 1],
            strategy=strategy,
        )  # fmt: skip
        models.append(model)
    assert models[0].net.Proto() == models[1].net.Proto()


def mixing(model):
    optimizers.build_sgd(model, 0.1)
    grads = [str(grad) for grad in model.param_to_grad.values()]
    model.net.Mul([model.net.Sqr(grads[1], "s1"), model.net.Sqr(grads[3], "s3")], "together")
    model.net.WeightedSum(["cpu_0/fc0_w", "cpu_0/one", "cpu_0/fc0_w", "cpu_0/one"], "cpu_0/fc0_w")


def reading(model):
    optimizers.build_sgd(model, 0.1, **MOMENTUM)
    grads = [str(grad) for grad in model.param_to_grad.values()]
    model.net.Sqr(grads[0], "squares")


@pytest.mark.parametrize("update, match", [(mixing, "Mul of .* reads 's1' of rank .*no process has all"),
                                           (reading, "Sqr of .'squares'.* which only rank . has")])  # fmt: skip
def test_what_needs_all_gradients_is_refused_by_name(update, match):
    with pytest.raises(NetError, match=f"strategy zero: {match}"):
        built("zero:1", 2, 0, update)


def test_refusals():
    with pytest.raises(NetError, match="stage must be 1, which divides the optimizer's state .*, got 2"):
        Strategy.of("zero:2")
    with pytest.raises(NetError, match="zero needs stage, as in 'zero:1'"):
        Strategy.of("zero")
    with pytest.raises(NetError, match="gradient_scaling cannot be combined with strategy"):
        built("zero:1", 2, 0, lambda m: optimizers.build_sgd(m, 0.1), gradient_scaling=parallel.GradientScaling())


def adam(model):
    optimizers.build_adam(model, 0.01)


def saved(monkeypatch, path, strategy, size, **options):
    """Train some steps, and save; return models and workspaces."""
    results = trained(monkeypatch, strategy, size, adam, steps=3, **options)
    writers = range(size) if strategy != "plain" else [0]
    on_ranks(len(writers), lambda rank: save_checkpoint(path, results[rank][0], workspace=results[rank][1]))
    return results


def loaded(monkeypatch, path, strategy, size, **options):
    """Load before the first of two more steps."""

    def load(rank, model, workspace):
        load_checkpoint(path, model, workspace=workspace)

    return trained(monkeypatch, strategy, size, adam, steps=2, begin=load, **options)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size, others", [(3, [2, 4]), (2, [1])])
def test_checkpoints_are_those_of_plain_for_any_number_of_processes(monkeypatch, tmp_path, size, others):
    plain, path = tmp_path / "plain.minidb", tmp_path / "zero.minidb"
    saved(monkeypatch, plain, "plain", size)
    saved(monkeypatch, path, "zero:1", size)
    want, found = read_checkpoint(plain), read_checkpoint(path)
    assert list(found.blobs) == list(want.blobs) and found.random == want.random
    for name, value in want.blobs.items():
        assert found.blobs[name].tobytes() == value.tobytes(), name
    assert path.stat().st_size == plain.stat().st_size
    for other in others:
        resumed = loaded(monkeypatch, path, "zero:1", other)
        whole = loaded(monkeypatch, plain, "plain", other)
        for rank, (model, workspace) in enumerate(resumed):
            for name, value in values(model, workspace).items():
                assert value.tobytes() == whole[rank][1].fetch(name).tobytes(), name


def test_a_checkpoint_in_memory_continues_where_it_was(monkeypatch):
    taken = {}

    def take_and_disturb(rank, model, workspace):
        taken[rank] = take_checkpoint(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
        load_checkpoint(taken[rank], model, workspace=workspace)

    want = trained(monkeypatch, "zero:1", 2, adam)
    found = trained(monkeypatch, "zero:1", 2, adam, begin=take_and_disturb)
    for (model, workspace), (_, other) in zip(found, want):
        for name, value in values(model, workspace).items():
            assert value.tobytes() == other.fetch(name).tobytes(), name


def test_a_writer_that_fails_does_not_keep_the_others(monkeypatch, tmp_path):
    results = trained(monkeypatch, "zero:1", 3, adam, steps=1)
    for place in (tmp_path, tmp_path / "absent" / "file"):

        def save(rank, path=place):
            return save_checkpoint(path, results[rank][0], workspace=results[rank][1])

        errors = on_ranks(3, save)
        assert isinstance(errors[0], OSError) and not isinstance(errors[1], Exception)
    folder = CheckpointFolder(tmp_path / "folder")
    on_ranks(3, lambda rank: folder.save(results[rank][0], workspace=results[rank][1], step=5))
    found = on_ranks(3, lambda rank: folder.save(results[rank][0], workspace=results[rank][1], step=3))
    assert isinstance(found[0], NetError) and "of a later step than 3" in str(found[0])
    assert [path.name for path in folder.paths()] == ["step-00000005.minidb"]


def test_a_damaged_part_is_found_by_who_does_not_keep_it(monkeypatch, tmp_path):
    path = tmp_path / "zero.minidb"
    saved(monkeypatch, path, "zero:1", 2)
    content = bytearray(path.read_bytes())
    content[-20] ^= 255
    path.write_bytes(content)
    with pytest.raises(ParseError, match="is not a complete checkpoint; nothing is loaded from it"):
        loaded(monkeypatch, path, "zero:1", 2)


@pytest.mark.parametrize("update", [adam, lambda m: optimizers.build_sgd(m, 0.1, max_gradient_norm=1.0)])
def test_checks_of_nets_find_nothing(update):
    for strategy in ("plain", "zero:1"):
        model = built(strategy, 2, 0, update)
        assert check_net(model.net.Proto()) == []


@pytest.mark.parametrize("engine, device", [("MPI", PROTO_CPU), ("NCCL", PROTO_CUDA)])
def test_gpus_exchange_where_the_values_are_or_through_the_host(engine, device):
    reset_names()
    model = ModelHelper("net")
    place = {"num_shards": 2, "shard_id": 1, "engine": engine, "kv_handler": "kv"}
    with pytest.warns(UserWarning, match="GPUs .* are not on this machine"):
        record = parallel.Parallelize_GPU(
            model, no_input, deep, optimizer_builder_fun=adam, devices=[0, 1], rendezvous=place, strategy="zero:1",
            peer_access=lambda a, b: True,
        )  # fmt: skip
    ops = list(model.net.Proto().op)
    exchanges = [op for op in ops if op.type in ("ReduceToOwners", "GatherFromOwners")]
    assert [op.device_option.device_type for op in exchanges] == [device, device]
    assert all(("_on_host" in blob) == (engine == "MPI") for op in exchanges for blob in op.output)
    gathered = max(i for i, op in enumerate(ops) if op.type == "GatherFromOwners")
    copied = [op.output[0] for op in ops[gathered:] if op.type == "Copy"]
    assert set(record.devices.copies("fc1_w")[1:]) <= set(copied), "the second GPU gets the parameters of the first"
    assert not any(blob.startswith("gpu_1/") and "moment" in blob for op in ops for blob in op.output)


def by_hand(model):
    """The update of one replica, operator by operator, as Caffe2's scripts write it."""
    rate = model.param_init_net.ConstantFill([], "rate", shape=[1], value=-0.1)
    one = model.param_init_net.ConstantFill([], "unit", shape=[1], value=1.0)
    for param, grad in model.get_param_to_grad(model.GetParams()).items():
        state = model.param_init_net.ConstantFill([param], str(param) + "_kept", value=0.0)
        model.WeightedSum([state, one, grad, one], state)
        model.WeightedSum([param, one, state, rate], param)


@pytest.mark.parametrize("devices", [1, 2])
def test_updates_by_hand(monkeypatch, devices):
    require_equal(monkeypatch, 2, None, devices=devices, param_update_builder_fun=by_hand)


def test_an_update_that_is_added_later_is_refused():
    model = built("zero:1", 2, 0, adam)
    with pytest.raises(NetError, match="only the owner has the sum; add updates in optimizer_builder_fun"):
        model.net.Sqr(next(op.output[0] for op in model.net.Proto().op if op.type == "ReduceToOwners"), "later")
        own_part(model.net.Proto(), 0)


def test_state_of_owners_is_not_copied(monkeypatch):
    (model, workspace), *_ = trained(monkeypatch, "zero:1", 2, adam, steps=1)
    for blob in ("fc1_w_first_moment", "cpu_0/fc1_w_first_moment"):
        with pytest.raises(BlobError, match="cannot be copied, as each process has its own"):
            parallel.FinalizeAfterCheckpoint(model, [blob], workspace=workspace)
