"""Strategies of the exchange: their fields and text forms, the operators they add, and training against NumPy."""

import dataclasses
import logging

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.distributed import (
    BlockMomentum,
    DiLoCo,
    DistributedOptimizer,
    HalfPrecision,
    LocalSGD,
    PartialSynchronization,
    Plain,
    PowerSGD,
    Strategy,
    Threshold,
    TopK,
    Zero,
    exchanged_bytes,
)
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas
from netbuilder.model import Initializer, ModelHelper, ParameterTags, brew
from netbuilder.optimizers import build_sgd, reset_optimizer_instance_count
from netbuilder.proto import PROTO_CPU, ArgumentError, BlobError, NetError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, no_input
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import mlp, scaled_loss

RATE, STEPS, CLASSES, WIDTH, SAMPLES = 0.5, 7, 4, 6, 8  # samples of each replica
EXCHANGES = {"AllreduceBucket", "AllreduceLowRank", "AllreduceThreshold", "AllreduceTopK", "AverageChunk", "Allgather"}


# Fields and text forms


@pytest.mark.parametrize(
    "text, want",
    [
        ("plain", Plain()),
        ("half", HalfPrecision()),
        ("half:bfloat16", HalfPrecision("bfloat16")),
        ("half:float16,100", HalfPrecision(clip=100)),
        ("partial:1000", PartialSynchronization(1000)),
        ("topk:0.01", TopK(0.01)),
        ("topk:1", TopK(1)),
        ("topk:fraction=0.5,residual=false", TopK(0.5, residual=False)),
        ("threshold:1e-3", Threshold(1e-3)),
        ("powersgd:4", PowerSGD(4)),
        ("powersgd:2,warm_start=false,residual=false", PowerSGD(2, warm_start=False, residual=False)),
        ("zero:1", Zero(1)),
        ("local_sgd:8", LocalSGD(8)),
        ("block_momentum:8,momentum=0.5,nesterov=true", BlockMomentum(8, 0.5, nesterov=True)),
        ("block_momentum:8,bits=8", BlockMomentum(8, bits=8)),
        ("diloco:500,bits=8", DiLoCo(500, 0.9, 0.7, True, 8)),
        ("diloco:500,bits=8,overlap=5", DiLoCo(500, 0.9, 0.7, True, 8, 5)),
    ],
)
def test_text_forms(text, want):
    assert Strategy.of(text) == want
    assert Strategy.of(str(want)) == want
    assert Strategy.of(want) is want
    assert Strategy.of(None) == Plain()


@pytest.mark.parametrize(
    "make, error, match",
    [
        (lambda: HalfPrecision("float8"), ArgumentError, "dtype must be 'float16' or 'bfloat16', got 'float8'"),
        (lambda: HalfPrecision(clip=0), ArgumentError, "clip must be positive and at most 65504, .* got 0"),
        (lambda: HalfPrecision(clip=1e5), ArgumentError, "at most 65504, the largest float16, got 100000.0"),
        (lambda: HalfPrecision("bfloat16", clip=np.inf), ArgumentError, "positive and finite, got inf"),
        (lambda: HalfPrecision(clip="1"), TypeError, "clip must be a number, got '1'"),
        (lambda: PartialSynchronization(0), ArgumentError, "chunk must be at least 1, got 0"),
        (lambda: PartialSynchronization(-3), ArgumentError, "chunk must be at least 1, got -3"),
        (lambda: PartialSynchronization(1.5), TypeError, "chunk must be an integer, got 1.5"),
        (lambda: TopK(0), ArgumentError, r"fraction must lie in \(0, 1\], got 0"),
        (lambda: TopK(1.01), ArgumentError, r"fraction must lie in \(0, 1\], got 1.01"),
        (lambda: TopK(float("nan")), ArgumentError, "got nan"),
        (lambda: TopK(True), TypeError, "fraction must be a number, got True"),
        (lambda: TopK(0.1, residual=1), TypeError, "residual must be True or False, got 1"),
        (lambda: Threshold(-0.1), ArgumentError, "bound must be finite and not negative, got -0.1"),
        (lambda: Threshold(np.inf), ArgumentError, "got inf"),
        (lambda: PowerSGD(0), ArgumentError, "PowerSGD: rank must be at least 1, got 0"),
        (lambda: PowerSGD(2.0), TypeError, "PowerSGD: rank must be an integer, got 2.0"),
        (lambda: PowerSGD(2, warm_start=1), TypeError, "PowerSGD: warm_start must be True or False, got 1"),
        (lambda: Strategy.of("powersgd"), ArgumentError, "powersgd needs rank, as in 'powersgd:4'"),
        (lambda: Zero(0), ArgumentError, "Zero: stage must be at least 1, got 0"),
        (lambda: Zero(True), TypeError, "Zero: stage must be an integer, got True"),
        (lambda: LocalSGD(0), ArgumentError, "LocalSGD: iterations must be at least 1"),
        (lambda: BlockMomentum(2, momentum=1.0), ArgumentError, r"momentum must lie in \[0, 1\), got 1.0"),
        (lambda: BlockMomentum(2, learning_rate=0), ArgumentError, "learning_rate must be positive"),
        (lambda: DiLoCo(2, momentum=1.0), ArgumentError, r"DiLoCo: momentum must lie in \[0, 1\), got 1.0"),
        (lambda: DiLoCo(2, bits=16), ArgumentError, "DiLoCo: bits must be 32 or 8, got 16"),
        (lambda: DiLoCo(2, overlap=-1), ArgumentError, "DiLoCo: overlap must be at least 0, got -1"),
        (lambda: DiLoCo(2, overlap=2), ArgumentError, "DiLoCo: overlap must be less than iterations=2, got 2"),
        (lambda: DiLoCo(2, overlap=1.0), TypeError, "DiLoCo: overlap must be an integer, got 1.0"),
        (lambda: BlockMomentum(2, bits=True), TypeError, "bits must be an integer, got True"),
        (
            lambda: Strategy.of("top:0.1"),
            ArgumentError,
            r"there is no strategy 'top'; did you mean 'topk'\?",
        ),
        (lambda: Strategy.of("topk"), ArgumentError, "topk needs fraction, as in 'topk:0.01'"),
        (lambda: Strategy.of("topk:0.1,true,3"), ArgumentError, "has no field for '3'; its fields are fraction, resi"),
        (lambda: Strategy.of("topk:0.1,fraction=2"), ArgumentError, "no field for 'fraction=2'; .* each once"),
        (lambda: Strategy.of("plain:1"), ArgumentError, "plain has no field for '1'; it has no fields"),
        (lambda: Strategy.of("topk:many"), TypeError, "fraction must be a number, got 'many'"),
        (lambda: Strategy.of(0.1), TypeError, "strategy must be a Strategy, .* got 0.1"),
        (lambda: DistributedOptimizer("sgd"), TypeError, "build must be a function of a ModelHelper, got 'sgd'"),
    ],
)
def test_fields_are_checked_when_a_strategy_is_made(make, error, match):
    with pytest.raises(error, match=match):
        make()


# What is built


def hosts(shards, shard=0):
    return {"num_shards": shards, "shard_id": shard, "engine": "MPI"}


def built(strategy, rendezvous=None, forward=mlp, devices=(0,), optimizer=OPTIMIZERS["sgd"], **options):
    """A model as in a fresh process, and its record."""
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    options = {"optimizer_builder_fun": optimizer, "devices": list(devices), "rendezvous": rendezvous, **options}
    return model, parallel.Parallelize_CPU(model, no_input, forward, strategy=strategy, **options)


def exchanges(model):
    return [op for op in model.net.Proto().op if op.type in EXCHANGES]


GRADIENTS = ["cpu_0/fc2_b_grad", "cpu_0/fc2_w_grad", "cpu_0/fc1_b_grad", "cpu_0/fc1_w_grad"]
PARAMETERS = ["cpu_0/fc1_w", "cpu_0/fc1_b", "cpu_0/fc2_w", "cpu_0/fc2_b"]


@pytest.mark.parametrize(
    "strategy, op_type, given",
    [
        (Plain(), "AllreduceBucket", {}),
        (HalfPrecision("bfloat16", clip=2.0), "AllreduceBucket", {"precision": b"bfloat16", "clip": 2.0}),
        (TopK(0.5, residual=False), "AllreduceTopK", {"fraction": 0.5, "residual": 0}),
        (Threshold(0.25, residual=False), "AllreduceThreshold", {"bound": 0.25, "residual": 0}),
    ],
    ids=str,
)
def test_the_operator_of_a_strategy(strategy, op_type, given):
    model, record = built(strategy, hosts(2))
    (op,) = exchanges(model)
    assert (op.type, list(op.output), arguments(op)) == (op_type, GRADIENTS, given)
    assert record.residuals == ()
    assert record == Replicas.load(model.net.Proto())
    again, _ = built(DistributedOptimizer(OPTIMIZERS["sgd"], strategy=strategy).strategy, hosts(2))
    assert again.net.Proto() == model.net.Proto()


@pytest.mark.parametrize("strategy", [TopK(0.1), Threshold(0.1), PowerSGD(2)], ids=str)
@pytest.mark.parametrize("devices", [[0], [0, 1]])
def test_residuals_are_one_for_each_gradient_of_a_process(strategy, devices):
    model, record = built(strategy, hosts(3, 1), devices=devices, bucket_bytes=144)
    residuals = [f"{gradient}_residual" for gradient in GRADIENTS]
    assert list(record.residuals) == residuals
    assert record == Replicas.load(model.net.Proto())
    found = [(list(op.input[1:]), list(op.output)) for op in exchanges(model)]
    want = [[*GRADIENTS[i : i + 2], *residuals[i : i + 2]] for i in (0, 2)]
    assert found == [(blobs, blobs) for blobs in want]
    assert set(residuals) <= set(model.net.Proto().external_input)
    sent = {blob for op in model.param_init_net.Proto().op if op.type == "BroadcastBucket" for blob in op.output}
    filled = [op.output[0] for op in model.param_init_net.Proto().op if op.output[0] in residuals]
    assert filled == residuals and not sent & set(residuals)


def test_residuals_of_gpus_are_on_the_host():
    with pytest.warns(UserWarning, match="GPUs .* are not on this machine"):
        reset_names()
        model = ModelHelper("net")
        record = parallel.Parallelize_GPU(
            model, no_input, mlp, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0, 1], rendezvous=hosts(2),
            strategy="topk:0.1", peer_access=lambda a, b: True,
        )  # fmt: skip
    (op,) = exchanges(model)
    gradients = [f"{name}_on_host".replace("cpu_0", "gpu_0") for name in GRADIENTS]
    assert list(op.input[1:]) == list(op.output) == [*gradients, *record.residuals]
    fills = [op for op in model.param_init_net.Proto().op if op.output[0] in record.residuals]
    assert {op.device_option.device_type for op in fills} == {PROTO_CPU}
    assert not set(gradients) & set(model.net.Proto().external_input)


def test_parameters_are_averaged_after_their_update_and_copied_to_the_devices():
    model, record = built(PartialSynchronization(30), hosts(2), devices=[0, 1])
    ops = list(model.net.Proto().op)
    (place,) = (i for i, op in enumerate(ops) if op.type in EXCHANGES)
    assert list(ops[place].output) == ["net_chunk", *PARAMETERS]
    updates = [i for i, op in enumerate(ops) if set(op.output) & set(PARAMETERS) and i != place]
    assert updates and max(updates) < place
    copies = [(op.input[0], op.output[0]) for op in ops[place + 1 :]]
    assert copies == [(blob, blob.replace("cpu_0", "cpu_1")) for blob in PARAMETERS]
    sums = [op for op in ops if "allreduce of" in op.debug_info and op.type == "Sum"]
    assert len(sums) == len(GRADIENTS), "gradients are summed over the devices of the process"
    assert record.residuals == ()


@pytest.mark.parametrize(
    "strategy",
    [Plain(), HalfPrecision(), TopK(0.1), Threshold(0.1), PowerSGD(2), PartialSynchronization(9)],
    ids=str,
)
def test_one_process_adds_nothing(strategy):
    plain, record = built(None, devices=[0, 1])
    for rendezvous in (None, hosts(1)):
        model, found = built(strategy, rendezvous, devices=[0, 1])
        assert model.net.Proto() == plain.net.Proto() and found == record


def test_blocks_are_those_of_parallelize_bmuf():
    _, record = built(BlockMomentum(3, nesterov=True, learning_rate=0.5), hosts(2), devices=[0, 1])
    rule = record.block
    assert (rule.momentum, rule.learning_rate, rule.lookahead, rule.iterations) == (0.75, 0.5, 0.75, 3)
    model, record = built(LocalSGD(4), hosts(2))
    assert (record.block.momentum, record.block.iterations) == (0, 4)
    assert not exchanges(model) and len(model.block_nets.update.Proto().op) > 4


def rows(model, loss_scale):
    table = model.create_param("table", [9, 6], Initializer("UniformFill", min=-0.5, max=0.5))
    found = model.net.Gather([table, "index"], "found")
    return scaled_loss(model, brew.fc(model, found, "fc", 6, 4), loss_scale)


def test_sparse_gradients_are_exchanged_whole(caplog):
    with caplog.at_level(logging.INFO, "netbuilder"):
        model, record = built(TopK(0.1), hosts(2), forward=rows)
    assert [op.type for op in exchanges(model)] == ["AllreduceTopK", "Allgather", "Allgather"]
    assert list(record.residuals) == ["cpu_0/fc_b_grad_residual", "cpu_0/fc_w_grad_residual"]
    assert (
        "strategy topk:0.1: 32 bytes of each process in a step on average (plain: 112), and the rows of 1 sp"
        in caplog.text
    )


@pytest.mark.parametrize(
    "strategy, want",
    [
        (Plain(), "368 bytes"),
        (HalfPrecision(), "184 bytes"),
        (TopK(0.1), "88 bytes"),
        (Threshold(0.1), "as many bytes as the data decide"),
        (PowerSGD(1), "152 bytes"),  # 8 + 4 elements of biases; 8 + 6 and 4 + 8 of factors
        (Zero(1), "552 bytes"),
        (PartialSynchronization(30), "100 bytes"),
        (LocalSGD(8), "46 bytes"),
        (DiLoCo(8), "46 bytes"),
        (DiLoCo(8, bits=8), "14 bytes"),
    ],
    ids=str,
)
def test_the_log_has_the_planned_bytes(caplog, strategy, want):
    with caplog.at_level(logging.INFO, "netbuilder"):
        built(strategy, hosts(2))
    assert f"model 'net': strategy {strategy}: {want} of each process in a step on average (plain: 368)" in caplog.text


@pytest.mark.parametrize("strategy", [PartialSynchronization(9), LocalSGD(2), BlockMomentum(2)], ids=str)
def test_statistics_of_all_processes_are_refused_where_processes_train_on_their_own(strategy):
    with pytest.raises(NetError, match=f"strategy={type(strategy).__name__}.* cannot be combined with combine_spatial"):
        built(strategy, hosts(2), combine_spatial_bn=True)


@pytest.mark.parametrize(
    "options", [{"shared_model": True}, {"outside_from_bytes": 1}, {"reduce_update_broadcast": True}], ids=str
)
def test_what_replicas_that_train_on_their_own_have_not_is_refused(options):
    (name,) = options
    with pytest.raises(NetError, match=f"LocalSGD.* cannot be combined with {name}: "):
        built(LocalSGD(2), None, devices=[0, 1], **options)


def test_other_refusals():
    with pytest.raises(NetError, match="strategy=LocalSGD.* is for training"):
        built(LocalSGD(2), None, optimizer=None)
    with pytest.raises(NetError, match=r"strategy=Plain\(\) to Parallelize, or TopK.* to the DistributedOptimizer"):
        built(Plain(), hosts(2), optimizer=DistributedOptimizer(OPTIMIZERS["sgd"], strategy="topk:0.1"))
    with pytest.raises(ArgumentError, match="there is no strategy 'best'; the strategies are plain, half"):
        built("best", hosts(2))


# Training, against NumPy


def regression(model, loss_scale):
    scores = brew.fc(model, "data", "fc", WIDTH, CLASSES)
    return scaled_loss(model, scores, loss_scale)


def batches(replicas):
    """For each step and replica its data and labels."""
    rng = np.random.default_rng(8)
    return [
        [(rng.normal(size=(SAMPLES, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, SAMPLES).astype(np.int32))
         for _ in range(replicas)]
        for _ in range(STEPS)
    ]  # fmt: skip


def train(monkeypatch, strategy, size, devices=1, steps=STEPS, before=None, runs=1, **options):
    """Train on ranks that are threads; return for each its parameters after each step, and its workspace."""
    use_thread_worlds(monkeypatch, size)
    options = {"forward": regression, "optimizer": lambda m: build_sgd(m, RATE), "devices": range(devices), **options}
    models = [built(strategy, hosts(size, rank), **options) for rank in range(size)]
    data = batches(size * devices)

    def run(rank):
        model, record = models[rank]
        workspace, found = Workspace(threads=1, seed=rank), []
        for number in range(steps):
            for replica, scope in enumerate(record.devices.scopes):
                x, label = data[number][rank * devices + replica]
                workspace.feed(scope + "data", x)
                workspace.feed(scope + "label", label)
            if not number:
                parallel.RunInitNet(model, workspace=workspace)
                if before is not None:
                    before(rank, workspace)
                found.append([workspace.fetch("cpu_0/fc_w"), workspace.fetch("cpu_0/fc_b")])
            parallel.RunNet(model, runs, workspace=workspace)
            found.append([workspace.fetch("cpu_0/fc_w"), workspace.fetch("cpu_0/fc_b")])
        return found, model, workspace

    results = on_ranks(size, run)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def gradients(parameters, batch):
    """The gradients of the mean loss over some replicas' samples, in float64."""
    w, b = parameters
    x = np.concatenate([each for each, _ in batch]).astype(np.float64)
    label = np.concatenate([each for _, each in batch])
    scores = x @ w.T + b
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(label)), label] -= 1
    p /= len(label)
    return [p.T @ x, p.sum(axis=0)]


def summed(strategy, start, size):
    """Train in NumPy: what each process gives of its share of the gradient is added."""
    now, rests = [each.astype(np.float64) for each in start], [[0.0, 0.0] for _ in range(size)]
    found = []
    for batch in batches(size):
        totals = [np.zeros_like(each) for each in now]
        for rank in range(size):
            for i, gradient in enumerate(gradients(now, [batch[rank]])):
                whole = gradient / size + rests[rank][i]
                given = of_strategy(strategy, whole)
                rests[rank][i] = whole - given if strategy.has_residuals else 0.0
                totals[i] += given
        now = [each - RATE * total for each, total in zip(now, totals)]
        found.append(now)
    return found, rests


def of_strategy(strategy, whole):
    if isinstance(strategy, TopK):
        count = int(np.ceil(strategy.fraction * whole.size - 1e-9))
        return np.where(np.abs(whole) >= np.sort(np.abs(whole), axis=None)[-count], whole, 0)
    if isinstance(strategy, Threshold):
        return np.where(np.abs(whole) >= strategy.bound, whole, 0)
    if isinstance(strategy, HalfPrecision) and strategy.clip is not None:
        return np.clip(whole, -strategy.clip, strategy.clip)
    return whole


@pytest.mark.one_in(6)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "strategy, tolerance",
    [
        (Plain(), 1e-5),
        (HalfPrecision(), 2e-3),
        (HalfPrecision("bfloat16"), 2e-2),
        (HalfPrecision(clip=0.02), 2e-3),
        (TopK(0.2), 1e-5),
        (TopK(0.2, residual=False), 1e-5),
        (Threshold(0.03), 1e-5),
        (Threshold(0.03, residual=False), 1e-5),
    ],
    ids=str,
)
def test_training_with_sums_of_gradients(monkeypatch, strategy, tolerance, size):
    results = train(monkeypatch, strategy, size)
    want, rests = summed(strategy, results[0][0][0], size)
    for rank, (found, model, workspace) in enumerate(results):
        for got, first, expected in zip(found[1:], results[0][0][1:], want):
            for value, same, reference in zip(got, first, expected):
                np.testing.assert_allclose(value, reference, rtol=tolerance, atol=tolerance)
                assert value.tobytes() == same.tobytes(), "the same bits on all ranks"
        for blob in Replicas.load(model.net.Proto()).residuals:
            rest = rests[rank]["_b_" in blob]
            np.testing.assert_allclose(workspace.fetch(blob), rest, rtol=1e-4, atol=1e-6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("strategy", [TopK(1.0), Threshold(0)], ids=str)
def test_all_elements_train_as_plain_to_the_bit(monkeypatch, strategy):
    plain = train(monkeypatch, Plain(), 3, deterministic=True)
    for (found, *_), (want, *_) in zip(train(monkeypatch, strategy, 3), plain):
        for got, reference in zip(found, want):
            for value, same in zip(got, reference):
                np.testing.assert_array_equal(value, same)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("size, devices", [(2, 1), (3, 1), (2, 2)])
def test_training_with_low_rank(monkeypatch, size, devices, residual):
    factor = np.random.default_rng(2).normal(size=(2, WIDTH))

    def start(rank, workspace):
        state = workspace.fetch("cpu_0/fc_w_grad_residual")
        state[CLASSES * residual :] = factor
        workspace.feed("cpu_0/fc_w_grad_residual", state)

    results = train(monkeypatch, PowerSGD(2, residual=residual), size, devices, before=start)
    w, b = (each.astype(np.float64) for each in results[0][0][0])
    rest, q = np.zeros_like(w), factor  # those of all processes together
    for number, batch in enumerate(batches(size * devices)):
        whole, d_bias = gradients([w, b], batch)
        whole = whole + rest
        p, _ = np.linalg.qr(whole @ q.T)
        q = p.T @ whole
        rest = (whole - p @ q) * residual
        w, b = w - RATE * p @ q, b - RATE * d_bias
        for found, *_ in results:
            np.testing.assert_allclose(found[number + 1][0], w, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found[number + 1][1], b, rtol=1e-4, atol=1e-5)
            assert found[number + 1][0].tobytes() == results[0][0][number + 1][0].tobytes()
    kept = sum(workspace.fetch("cpu_0/fc_w_grad_residual")[: CLASSES * residual] for *_, workspace in results)
    np.testing.assert_allclose(kept, rest[: CLASSES * residual], rtol=1e-4, atol=1e-5)


def test_low_rank_needs_shapes():
    def forward(model, loss_scale):
        net = model.param_init_net
        like = net.ConstantFill([], "like", shape=[6, 4])
        w = net.ConstantFill([like], "w", value=0.5)
        model.AddParameter(w, ParameterTags.WEIGHT)
        return scaled_loss(model, model.net.MatMul(["data", w], "scores"), loss_scale)

    assert built(TopK(0.1), hosts(2), forward=forward)[1].residuals
    with pytest.raises(NetError, match="strategy powersgd:2 needs the shapes of gradients.*of parameter 'cpu_0/w'"):
        built(PowerSGD(2), hosts(2), forward=forward)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size, devices", [(2, 1), (2, 2)])
def test_partial_synchronization(monkeypatch, size, devices):
    """28 elements in chunks of 10: the weights come first, the last chunk has 8."""
    results = train(monkeypatch, PartialSynchronization(10), size, devices)
    start = results[0][0][0]
    now = [np.concatenate([np.ravel(each) for each in start]).astype(np.float64) for _ in range(size)]
    for number, batch in enumerate(batches(size * devices)):
        for rank in range(size):
            own = [now[rank][: CLASSES * WIDTH].reshape(CLASSES, WIDTH), now[rank][CLASSES * WIDTH :]]
            step = gradients(own, batch[rank * devices : (rank + 1) * devices])
            now[rank] = now[rank] - RATE * np.concatenate([np.ravel(each) for each in step])
        chunk = slice(10 * (number % 3), 10 * (number % 3) + 10)
        mean = np.mean([each[chunk] for each in now], axis=0)
        for each in now:
            each[chunk] = mean
        for rank, (found, *_) in enumerate(results):
            got = np.concatenate([np.ravel(each) for each in found[number + 1]])
            np.testing.assert_allclose(got, now[rank], rtol=1e-5, atol=1e-5)
    for _, _, workspace in results:
        assert int(workspace.fetch("net_chunk")[0]) == STEPS
        for name in ("fc_w", "fc_b"):
            for device in range(1, devices):
                np.testing.assert_array_equal(workspace.fetch(f"cpu_{device}/{name}"), workspace.fetch(f"cpu_0/{name}"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("strategy", [LocalSGD(3), BlockMomentum(2, 0.5), BlockMomentum(2, 0.5, 0.8, True)], ids=str)
@pytest.mark.parametrize("size, devices", [(2, 1), (2, 2)])
def test_blocks(monkeypatch, strategy, size, devices):
    """STEPS is no multiple of a block, so that some steps follow the last one."""
    results = train(monkeypatch, strategy, size, devices)
    replicas = size * devices
    rule = strategy.rule(replicas)
    start = np.concatenate([np.ravel(each) for each in results[0][0][0]]).astype(np.float64)
    now, held, momentum = [start] * replicas, start, np.zeros_like(start)
    for number, batch in enumerate(batches(replicas)):
        for k in range(replicas):
            own = [now[k][: CLASSES * WIDTH].reshape(CLASSES, WIDTH), now[k][CLASSES * WIDTH :]]
            now[k] = now[k] - RATE * np.concatenate([np.ravel(each) for each in gradients(own, [batch[k]])])
        if (number + 1) % strategy.iterations == 0:
            change = rule.momentum * momentum + rule.learning_rate * (np.mean(now, axis=0) - held)
            held = held + change + rule.lookahead * (change - momentum)
            momentum, now = change, [held] * replicas
        for rank, (found, *_) in enumerate(results):
            got = np.concatenate([np.ravel(each) for each in found[number + 1]])
            np.testing.assert_allclose(got, now[rank * devices], rtol=1e-5, atol=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size, devices", [(2, 1), (2, 2), (3, 1)])
def test_diloco(monkeypatch, size, devices):
    """The outer step as published: SGD with Nesterov's momentum on what the replicas' mean lacks of their start."""
    replicas = size * devices
    results = train(monkeypatch, DiLoCo(2), size, devices)
    start = np.concatenate([np.ravel(each) for each in results[0][0][0]]).astype(np.float64)
    now, outer, momentum = [start] * replicas, start, np.zeros_like(start)
    for number, batch in enumerate(batches(replicas)):
        for k in range(replicas):
            own = [now[k][: CLASSES * WIDTH].reshape(CLASSES, WIDTH), now[k][CLASSES * WIDTH :]]
            now[k] = now[k] - RATE * np.concatenate([np.ravel(each) for each in gradients(own, [batch[k]])])
        if number % 2:
            gradient = outer - np.mean(now, axis=0)
            momentum = 0.9 * momentum + gradient
            outer = outer - 0.7 * (gradient + 0.9 * momentum)
            now = [outer] * replicas
        for rank, (found, *_) in enumerate(results):
            got = np.concatenate([np.ravel(each) for each in found[number + 1]])
            np.testing.assert_allclose(got, now[rank * devices], rtol=1e-5, atol=1e-5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "strategy", [PartialSynchronization(10), LocalSGD(3), BlockMomentum(2, 0.5), TopK(0.2)], ids=str
)
def test_weighted_shares_and_micro_batches(monkeypatch, strategy):
    """Even shares have the weights of plain ones; two micro-batches of the same samples are the step of one of them."""
    want = train(monkeypatch, strategy, 2)
    weighted = train(monkeypatch, strategy, 2, weighted_shares=True)
    twice = train(monkeypatch, strategy, 2, accumulate_steps=2, runs=2)
    for results in (weighted, twice):
        for (found, *_), (reference, *_) in zip(results, want):
            for got, expected in zip(found, reference):
                for value, same in zip(got, expected):
                    np.testing.assert_allclose(value, same, rtol=1e-5, atol=1e-6)


def test_an_overflow_names_the_gradient_and_the_rank(monkeypatch):
    def before(rank, workspace):
        if rank == 1:
            workspace.feed("cpu_0/data", np.full((SAMPLES, WIDTH), 1e6, np.float32))

    with pytest.raises(RuntimeError, match="'cpu_0/fc_w_grad' overflows float16, .* on rank 1; exchange bfloat16"):
        train(monkeypatch, HalfPrecision(), 2, before=before)
    train(monkeypatch, HalfPrecision(clip=1.0), 2, before=before)
    train(monkeypatch, HalfPrecision("bfloat16"), 2, before=before)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "strategy, want",
    [
        (Plain(), 28 * 4),
        (HalfPrecision(), 28 * 2),
        (TopK(0.1), 8 * (3 + 1)),
        (TopK(1.0), 28 * 8),
        (PowerSGD(2), 4 * (4 + 2 * (4 + 6))),
        (PowerSGD(3), 28 * 4),  # its factors would have 30 elements
        (PartialSynchronization(14), 14 * 4 + 8),
        (LocalSGD(2), 28 * 4 / 2),
        (DiLoCo(2, bits=8), (28 + 2 * 4) / 2),
    ],
    ids=str,
)
def test_planned_bytes_are_the_real_ones(monkeypatch, strategy, want):
    short, whole = (train(monkeypatch, strategy, 2, steps=steps) for steps in (2, 6))
    for (_, model, early), (_, _, late) in zip(short, whole):
        given = exchanged_bytes(model, workspace=late) - exchanged_bytes(model, workspace=early)
        assert given / 4 == want == strategy.planned_bytes([(CLASSES,), (CLASSES, WIDTH)], 2)


def test_bytes_of_a_threshold_are_counted(monkeypatch):
    """Nothing reaches the bound, then all of it: 8 bytes for an element, and 8 for their number."""
    for bound, want in ((1e6, 8), (0.0, 8 + 28 * 8)):
        short, whole = (train(monkeypatch, Threshold(bound), 2, steps=steps) for steps in (1, 3))
        given = exchanged_bytes(whole[0][1], workspace=whole[0][2]) - exchanged_bytes(
            short[0][1], workspace=short[0][2]
        )
        assert given == 2 * want


def test_bytes_before_the_init_net():
    model, _ = built(Plain(), hosts(2))
    with pytest.raises(BlobError, match="common worlds .* are not in the workspace; run the init net first"):
        exchanged_bytes(model, workspace=Workspace())
    alone, _ = built(Plain())
    assert exchanged_bytes(alone, workspace=Workspace()) == 0


@pytest.mark.parametrize("strategy, kept", [(TopK(0.1), 2), (PowerSGD(2), 1)], ids=str)
def test_residuals_begin_at_zero_when_training_resumes(monkeypatch, strategy, kept):
    """They are no part of a checkpoint: those of rank 0 would be added on every rank."""
    results = train(monkeypatch, strategy, 2)
    _, model, workspace = results[0]
    residuals = [blob for blob in Replicas.load(model.net.Proto()).residuals if workspace.fetch(blob).any()]
    assert len(residuals) == kept
    saved = {str(blob) for blob in parallel.GetCheckpointParams(model)}
    assert "cpu_0/fc_w" in saved and not saved & set(residuals)

    def partly(rank):
        _, model, workspace = results[rank]
        parallel.FinalizeAfterCheckpoint(model, ["optimizer_iteration"], workspace=workspace)
        return [workspace.fetch(blob) for blob in residuals]

    def whole(rank):
        _, model, workspace = results[rank]
        parallel.FinalizeAfterCheckpoint(model, workspace=workspace)
        return [workspace.fetch(blob) for blob in residuals]

    first, second = on_ranks(2, partly)
    assert all(each.any() for each in (*first, *second)) and not np.array_equal(first[-1], second[-1])
    assert not any(each.any() for of_rank in on_ranks(2, whole) for each in of_rank)


@pytest.mark.parametrize("strategy", [TopK(0.1), PowerSGD(2)], ids=str)
def test_a_strategy_with_other_options_of_the_exchange(monkeypatch, strategy):
    """Micro-batches are exchanged once in a step; gradients that share memory keep their residuals."""
    model, record = built(strategy, hosts(2), accumulate_steps=2)
    assert [op.type for op in exchanges(model)] == [strategy.operator()[0]] and len(record.residuals) == 4
    want = train(monkeypatch, strategy, 2)
    for options in ({"optimize_gradient_memory": True}, {"dynamic_memory_management": True}, {"bucket_bytes": 0}):
        for (found, *_), (reference, *_) in zip(train(monkeypatch, strategy, 2, **options), want):
            np.testing.assert_array_equal(found[-1][0], reference[-1][0])


def test_a_strategy_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TopK(0.1).fraction = 2
