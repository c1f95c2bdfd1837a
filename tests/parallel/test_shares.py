"""Batches of any size over several devices: shares that differ weigh so that one device would compute the same."""

import numpy as np
import pytest

from netbuilder import Workspace, parallel
from netbuilder.exchange import take_checkpoint
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import NetError, ShapeError
from parallel_models import OPTIMIZERS, distance, no_input, parallelize
from toy_models import convnet, mlp

COUNTS = [1, 2, 3, 4]
FULL = 9


def batches(sizes, shape=(6,), seed=7):
    rng = np.random.default_rng(seed)
    for size in sizes:
        data = rng.normal(size=(size, *shape)).astype(np.float32)
        yield {"data": data, "label": rng.integers(0, 4, size).astype(np.int32)}


def trained(devices, sizes, *, forward=mlp, shape=(6,), steps=1, ahead=False, optimizer="momentum"):
    """Return the parameters and the losses of the micro-batches."""
    model, record = parallelize(devices, forward, OPTIMIZERS[optimizer], weighted_shares=True, accumulate_steps=steps)
    workspace = Workspace(threads=2)
    for _ in parallel.feed_shares(model, next(batches([FULL], shape)), workspace=workspace):
        pass
    parallel.RunInitNet(model, workspace=workspace)
    reader = parallel.loss_reader(model, ["loss"], workspace=workspace)
    losses = []
    if ahead:
        with parallel.prefetch(model, batches(sizes, shape), blobs=["data", "label"], workspace=workspace) as input:
            for _ in input:
                parallel.RunNet(model, workspace=workspace)
                losses.append(reader.read())
    else:
        for batch in batches(sizes, shape):
            for _ in parallel.feed_shares(model, batch, workspace=workspace):
                parallel.RunNet(model, workspace=workspace)
                losses.append(reader.read())
    losses = [found["loss"] for found in [*losses[1:], reader.last()]]
    for number in range(1, len(record)):
        for name in record.parameters:
            copies = record.blobs(name)
            np.testing.assert_array_equal(workspace.fetch(copies[0]), workspace.fetch(copies[number]))
    return [workspace.fetch(record.blobs(name)[0]) for name in record.parameters], losses


def plain(sizes, forward=mlp, shape=(6,), optimizer="momentum"):
    """Return the results of one device with whole batches and no weights."""
    model, record = parallelize([0], forward, OPTIMIZERS[optimizer])
    workspace, losses = Workspace(threads=2), []
    for number, batch in enumerate(batches(sizes, shape)):
        for name, value in batch.items():
            workspace.feed(f"cpu_0/{name}", value)
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
        losses.append(float(workspace.fetch("cpu_0/loss")))
    return [workspace.fetch(record.blobs(name)[0]) for name in record.parameters], losses


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "size", [pytest.param(n, marks=() if n in (1, 3, FULL - 1) else pytest.mark.slow) for n in range(1, FULL + 1)]
)
def test_every_size_gives_what_one_device_gives(size):
    want, losses = plain([FULL, size, FULL])
    for count in COUNTS:
        for ahead in (False, True):
            got, found = trained(range(count), [FULL, size, FULL], ahead=ahead)
            assert distance(got, want) < 1e-6, (count, ahead)
            np.testing.assert_allclose(found, losses, rtol=1e-5)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_convnet(size):
    want, _ = plain([8, size], convnet, (3, 8, 8), "adam")
    for count in (2, 3):
        got, _ = trained(range(count), [8, size], forward=convnet, shape=(3, 8, 8), optimizer="adam")
        assert distance(got, want) < 1e-5, count


@pytest.mark.one_in(4)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("steps", [2, 3])
def test_micro_batches_give_what_one_large_batch_gives(devices, steps):
    sizes = [12, 12, 7, 1]
    want, losses = plain(sizes)
    for ahead in (False, True):
        got, found = trained(range(devices), sizes, steps=steps, ahead=ahead)
        assert distance(got, want) < 1e-6, ahead
        assert len(found) == steps * len(sizes)
        np.testing.assert_allclose(np.mean(found[:steps]), losses[0], rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 2])
def test_what_the_first_batch_weighs_survives_the_init_net(steps):
    model, record = parallelize([0, 1], mlp, OPTIMIZERS["momentum"], weighted_shares=True, accumulate_steps=steps)
    workspace = Workspace(threads=2)
    for number, _ in enumerate(parallel.feed_shares(model, next(batches([7])), workspace=workspace)):
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    found = [workspace.fetch(record.blobs(name)[0]) for name in record.parameters]
    for one, other in zip(found, plain([7])[0]):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    parallel.RunInitNet(model, overwrite=True, workspace=workspace)
    assert workspace.fetch("cpu_0/share_weight") == 1 / steps


def test_exchange_and_update_come_after_the_last_micro_batch_only():
    model, record = parallelize([0, 1], mlp, OPTIMIZERS["momentum"], accumulate_steps=3)
    workspace = Workspace(threads=2)
    shares = parallel.feed_shares(model, next(batches([12])), workspace=workspace)
    next(shares)
    parallel.RunInitNet(model, workspace=workspace)
    names = workspace.nets()
    assert [name.removeprefix(model.net.Name()) for name in names] == ["_micro_batch", "_update"]
    kinds = [{instruction.op_def.type for instruction in workspace.net(name).program} for name in names]
    assert not kinds[0] & {"MomentumSGDUpdate", "AtomicIter"} and "SoftmaxWithLossGradient" in kinds[0]
    assert "MomentumSGDUpdate" in kinds[1] and "SoftmaxWithLoss" not in kinds[1]
    weight = workspace.fetch("cpu_0/fc1_w")
    for pending, _ in enumerate(shares, start=1):
        parallel.RunNet(model, workspace=workspace)
        assert parallel.pending_steps(model, workspace) == pending
        np.testing.assert_array_equal(weight, workspace.fetch("cpu_0/fc1_w"))
    parallel.RunNet(model, workspace=workspace)
    assert parallel.pending_steps(model, workspace) == 0
    assert (weight != workspace.fetch("cpu_0/fc1_w")).any()
    assert not any(workspace.fetch(blob).any() for blob in record.accumulated)
    assert not {str(blob) for blob in parallel.GetCheckpointParams(model)}.intersection(record.accumulated)


def test_a_step_begun_again():
    model, record = parallelize([0], mlp, accumulate_steps=2)
    workspace = Workspace()
    shares = parallel.feed_shares(model, next(batches([4])), workspace=workspace)
    next(shares)
    parallel.RunInitNet(model, workspace=workspace)
    parallel.RunNet(model, workspace=workspace)
    assert any(workspace.fetch(blob).any() for blob in record.accumulated)
    with pytest.raises(NetError, match="1 micro-batches of a step have run"):
        take_checkpoint(model, workspace=workspace)
    parallel.forget_gradients(model, workspace)
    assert parallel.pending_steps(model, workspace) == 0
    assert not any(workspace.fetch(blob).any() for blob in record.accumulated)


@pytest.mark.parametrize("samples", [1, 2, 5, 6])
def test_each_sample_is_evaluated_once(samples):
    def forward(model, loss_scale):
        brew.fc(model, "data", "scores", 6, 4)
        return []

    model = ModelHelper("evaluation", init_params=False)
    parallel.Parallelize_CPU(model, no_input, forward, devices=[0, 1, 2], weighted_shares=True)
    workspace, rng = Workspace(), np.random.default_rng(1)
    values = {"scores_w": rng.normal(size=(4, 6)), "scores_b": rng.normal(size=4)}
    for k in range(3):
        for name, value in values.items():
            workspace.feed(f"cpu_{k}/{name}", value.astype(np.float32))
    batch = {"data": next(batches([samples]))["data"]}
    with parallel.prefetch(model, [batch], blobs=["data"], workspace=workspace) as input:
        given = next(input)
        parallel.CreateNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    assert len(given["data"]) == samples
    scores = parallel.gather_shares(model, "scores", samples, workspace=workspace)
    want = batch["data"] @ values["scores_w"].T + values["scores_b"]
    np.testing.assert_allclose(scores, want, rtol=1e-5, atol=1e-6)


def test_what_is_refused():
    even, _ = parallelize([0, 1])
    with pytest.raises(
        NetError, match="feed_shares is for models whose shares have weights, .* build it by .*weighted_shares=True"
    ):
        next(parallel.feed_shares(even, next(batches([4]))))
    model, _ = parallelize([0, 1], weighted_shares=True)
    with pytest.raises(ShapeError, match="same number of samples, got {'data': 4, 'label': 3}"):
        next(parallel.feed_shares(model, {"data": np.zeros((4, 6)), "label": np.zeros(3)}))
    with pytest.raises(ShapeError, match="the batch must have at least one sample"):
        next(parallel.feed_shares(model, {"data": np.zeros((0, 6))}))
    for steps, error in ((0, NetError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="accumulate_steps must be"):
            parallelize([0], accumulate_steps=steps)


def test_the_record_keeps_how_shares_are_taken():
    model, record = parallelize([0, 1], accumulate_steps=2)
    assert parallel.Replicas.load(model.net.Proto()) == record
    assert record.weighted_shares and record.accumulate_steps == 2 and len(record.accumulated) == 8


@pytest.mark.parametrize("samples, shares", [(4, 1 << 40), (4, 0), (4, -1), (-1, 2), (1 << 40, 1 << 40)])
def test_numbers_of_shares_that_cannot_be(samples, shares):
    with pytest.raises(NetError, match=f"shares must be 1 to 1,000,000; got samples={samples:,} and shares={shares:,}"):
        parallel.share_sizes(samples, shares)
