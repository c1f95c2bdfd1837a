"""Block-wise model updates with micro-batches: each replica sums the gradients of K of them before its own update."""

import numpy as np
import pytest

from netbuilder import optimizers, parallel
from netbuilder.exchange import load_checkpoint, save_checkpoint
from netbuilder.graph.checks import check_net
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.not_finite import NotFiniteError
from parallel_models import distance, no_input
from toy_models import mlp, softmax_loss

SAMPLES, STEPS, BLOCK = 24, 8, 3
OPTIMIZERS = {
    "sgd": lambda model: optimizers.build_sgd(model, 0.2),
    "momentum": lambda model: optimizers.build_sgd(model, 0.1, momentum=0.9),
    "adam": lambda model: optimizers.build_adam(model, 0.01),
}


def forward(model, loss_scale):
    return mlp(model, 1.0)


def embedding(model, loss_scale):
    """A table that each replica has, with sparse gradients: rows (N,), label (N,)."""
    table = model.create_param("table", [9, 6], Initializer("UniformFill", min=-0.5, max=0.5))
    return mlp_of(model, model.net.Gather([table, "rows"], "read"))


def mlp_of(model, x):
    scores = brew.fc(model, x, "scores", 6, 4)
    loss = softmax_loss(model, scores)
    return [loss]


def build(count, steps, optimizer="momentum", build_forward=forward, **options):
    options = {"block_iterations": BLOCK, "weighted_shares": True, **options}
    model = ModelHelper("blocks")
    record = parallel.Parallelize_CPU_BMUF(
        model, no_input, build_forward, OPTIMIZERS[optimizer], devices=list(range(count)), accumulate_steps=steps,
        **options,
    )  # fmt: skip
    return model, record


def batches(count, replicas):
    """Batches whose share of each replica has the same samples however they are split into micro-batches."""
    rng = np.random.default_rng(4)
    for _ in range(count):
        yield {
            "data": rng.normal(size=(replicas, SAMPLES, 6)).astype(np.float32),
            "rows": rng.integers(0, 9, (replicas, SAMPLES)).astype(np.int32),
            "label": rng.integers(0, 4, (replicas, SAMPLES)).astype(np.int32),
        }


def micro_batches(batch, steps):
    """For each micro-batch the whole of it, of which each replica takes its part in order."""
    for part in range(steps):
        rows = slice(part * SAMPLES // steps, (part + 1) * SAMPLES // steps)
        yield {name: np.concatenate(list(value[:, rows])) for name, value in batch.items()}


def feed(record, workspace, batch):
    weight = np.float32([1 / record.accumulate_steps])
    for name, value in batch.items():
        for blob, part in zip(record.devices.copies(name), np.split(value, len(record))):
            workspace.feed(blob, part)
    for blob in record.devices.copies("share_weight"):
        workspace.feed(blob, weight)


def start(model, record, seed=0):
    workspace = Workspace(threads=1, seed=seed)
    first = next(batches(1, len(record)))
    feed(record, workspace, next(micro_batches(first, record.accumulate_steps)))
    parallel.RunInitNet(model, workspace=workspace)
    return workspace


def run(model, record, workspace, given):
    """One RunNet per micro-batch."""
    for batch in given:
        for part in micro_batches(batch, record.accumulate_steps):
            feed(record, workspace, part)
            parallel.RunNet(model, workspace=workspace)


def parameters(record, workspace):
    state = [workspace.fetch(blob) for blob in record.block_state]
    return [workspace.fetch(blob) for name in record.parameters for blob in record.blobs(name)] + state


@pytest.mark.one_in(4)
@pytest.mark.parametrize("options", [{}, {"nesterov": True, "block_momentum": 0.5, "warmup_iterations": 3}])
@pytest.mark.parametrize("count, optimizer", [(1, "adam"), (2, "momentum"), (3, "sgd")])
def test_micro_batches_give_what_one_batch_gives(count, optimizer, options):
    found = []
    for steps in (1, 4):
        model, record = build(count, steps, optimizer, **options)
        workspace = start(model, record)
        run(model, record, workspace, batches(STEPS, count))
        found.append(parameters(record, workspace))
        assert workspace.fetch("cpu_0/block_iterations").tolist() == [
            (STEPS - options.get("warmup_iterations", 0)) % BLOCK
        ]
    for one, many in zip(*found):
        assert distance([many], [one]) < 1e-5
    assert count == 1 or distance([found[1][0]], [found[1][1]]) > 1e-4  # in the middle of a block


@pytest.mark.one_in(2)
@pytest.mark.parametrize("count", [1, 2])
def test_sparse_gradients(count):
    found = []
    for steps in (1, 3):
        model, record = build(count, steps, "sgd", embedding)
        assert bool(record.accumulated_rows) == (steps > 1)
        workspace = start(model, record)
        run(model, record, workspace, batches(BLOCK + 1, count))
        found.append(parameters(record, workspace))
    for one, many in zip(*found):
        assert distance([many], [one]) < 1e-5


def test_uneven_shares_of_uneven_micro_batches():
    """Blocks of one step without block momentum, on 7 samples: the step of one device with all of them."""
    model, record = build(2, 2, "sgd", block_iterations=1, block_momentum=0.0)
    plain, of_one = build(1, 1, "sgd", block_iterations=1, block_momentum=0.0)
    found = []
    for each, about in ((model, record), (plain, of_one)):
        workspace, rng = Workspace(threads=1), np.random.default_rng(1)
        for number in range(3):
            batch = {"data": rng.random((7, 6), np.float32), "label": rng.integers(0, 4, 7).astype(np.int32)}
            for place, _ in enumerate(parallel.feed_shares(each, batch, workspace=workspace)):
                if not number and not place:
                    parallel.RunInitNet(each, workspace=workspace)
                parallel.RunNet(each, workspace=workspace)
        found.append([workspace.fetch(about.blobs(name)[0]) for name in about.parameters])
    assert distance(*found) < 1e-5


@pytest.mark.parametrize("samples", [12, 7, 5, 1])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.one_in(6)
def test_replicas_get_the_same_samples_for_any_number_of_micro_batches(samples, count):
    """Shares of any size, fed or prefetched; every sample once."""
    rng = np.random.default_rng(samples)
    given = [
        {"data": rng.random((samples, 6), np.float32), "label": rng.integers(0, 4, samples).astype(np.int32)}
        for _ in range(BLOCK + 2)
    ]
    found = []
    for steps, fed in ((1, True), (2, True), (4, False)):
        model, record = build(count, steps)
        workspace = Workspace(threads=1)
        next(parallel.feed_shares(model, given[0], workspace=workspace))
        parallel.RunInitNet(model, workspace=workspace)
        if fed:
            seen = []
            for batch in given:
                for share in parallel.feed_shares(model, batch, workspace=workspace):
                    seen.append(share["data"])
                    parallel.RunNet(model, workspace=workspace)
            for number, batch in enumerate(given):
                rows = np.concatenate(seen[number * steps : (number + 1) * steps])
                np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(batch["data"], axis=0))
        else:
            with parallel.prefetch(model, given, blobs=["data", "label"], workspace=workspace) as source:
                for _ in source:
                    parallel.RunNet(model, workspace=workspace)
        found.append(parameters(record, workspace))
    for one, *others in zip(*found):
        assert all(distance([other], [one]) < 1e-5 for other in others)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("count, at", [(1, 4), (2, 1), (2, 2), (2, 4), (2, 5), (3, 4)])
def test_resumed_training_is_equal_to_the_bit(tmp_path, count, at):
    """In the warm-up, after it, within a block, and after one."""
    options = {"warmup_iterations": 2, "nesterov": True, "block_momentum": 0.5}
    given = list(batches(STEPS, count))
    model, record = build(count, 2, **options)
    workspace = start(model, record)
    run(model, record, workspace, given[:at])
    path = tmp_path / "checkpoint"
    saved = save_checkpoint(path, model, workspace=workspace)
    assert not [name for name in saved.blobs if "accumulated" in name]
    run(model, record, workspace, given[at:])
    again, _ = build(count, 2, **options)
    resumed = start(again, record, seed=5)
    parallel.RunNet(again, workspace=resumed)  # a micro-batch that loading forgets
    load_checkpoint(path, again, workspace=resumed)
    run(again, record, resumed, given[at:])
    for want, got in zip(parameters(record, workspace), parameters(record, resumed)):
        np.testing.assert_array_equal(got, want)


def test_calls_that_are_blocks():
    """Without block_iterations each call is a block, which ends with an update."""
    model, record = build(2, 2, block_iterations=None, warmup_iterations=3)
    counted, _ = build(2, 2, warmup_iterations=3)
    found = []
    for each in (model, counted):
        workspace = start(each, record)
        parallel.RunNet(each, 0, workspace=workspace)
        parallel.RunWarmup(each, workspace=workspace)
        for _ in range(2):
            parallel.RunNet(each, 2 * BLOCK, workspace=workspace)
        found.append([workspace.fetch(blob) for blob in ("cpu_0/fc1_w", "cpu_1/fc2_b", "cpu_0/fc1_w_g")])
        if each is model:
            with pytest.raises(NetError, match="would end it after 1 of the 2 micro-batches of a step"):
                parallel.RunNet(each, 3, workspace=workspace)
            assert parallel.pending_steps(each, workspace) == 0  # nothing has run
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("block_iterations", [None, BLOCK])
def test_no_net_of_a_block_is_waited_for_unasked(monkeypatch, block_iterations):
    model, record = build(2, 2, block_iterations=block_iterations, warmup_iterations=1)
    workspace, waits, run_net = start(model, record), [], Workspace.run_net

    def noting(self, *arguments, **options):
        waits.append(options.get("wait", True))
        return run_net(self, *arguments, **options)

    monkeypatch.setattr(Workspace, "run_net", noting)
    for wait in (False, True):
        if not wait:  # the warm-up is over after it
            parallel.RunWarmup(model, wait=wait, workspace=workspace)
        parallel.RunNet(model, 2 * BLOCK, wait=wait, workspace=workspace)
        assert len(waits) > 1 and set(waits) == {wait}
        waits.clear()


def test_within_a_step():
    model, record = build(2, 3, warmup_iterations=2)
    workspace = start(model, record)
    parallel.RunNet(model, 2, workspace=workspace)
    with pytest.raises(NetError, match="finish_block: 2 of 3 micro-batches of a step of model 'blocks"):
        parallel.finish_block(model, workspace=workspace)
    parallel.RunWarmup(model, workspace=workspace)  # runs what remains of it
    assert parallel.pending_steps(model, workspace) == 0
    assert workspace.fetch("cpu_0/block_iterations").tolist() == [0]
    np.testing.assert_array_equal(workspace.fetch("cpu_0/fc1_w"), workspace.fetch("cpu_1/fc1_w"))
    parallel.RunNet(model, 4, workspace=workspace)
    assert workspace.fetch("cpu_0/block_iterations").tolist() == [1]
    parallel.forget_gradients(model, workspace)
    parallel.finish_block(model, workspace=workspace)
    assert workspace.fetch("cpu_0/block_iterations").tolist() == [0]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("options", [{}, {"block_iterations": None}])
def test_nan_are_found(steps, options):
    model, record = build(2, steps, warmup_iterations=1, **options)
    workspace = start(model, record)
    workspace.feed("cpu_1/data", workspace.fetch("cpu_1/data") * np.float32(np.nan))
    for called in (parallel.RunWarmup, lambda *args, **more: parallel.RunNet(*args, steps, **more)):
        with pytest.raises(NotFiniteError, match="'cpu_1/data'"):
            called(model, find_nan=True, workspace=workspace)


def test_the_nets_are_sound():
    model, record = build(2, 2)
    blobs = [blob for name in ("data", "label") for blob in record.devices.copies(name)]
    assert not check_net(model.net, init_net=model.param_init_net, available=blobs)
    for op in model.net.Proto().op:  # nothing is exchanged within a block
        assert len({record.devices.replica_of(blob) for blob in (*op.input, *op.output)} - {None}) == 1


@pytest.mark.parametrize("value, error", [(0, NetError), (1.5, TypeError), (True, TypeError)])
def test_refusals(value, error):
    with pytest.raises(error, match="accumulate_steps must be"):
        build(2, value)
