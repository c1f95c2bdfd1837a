"""Replicas of several processes, built in one: what they draw, how losses are scaled, and who gets which samples."""

import dataclasses
import logging

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew, parallel
from netbuilder.distributed import ProcessGroup
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas, World
from netbuilder.parallel import parallelize as parallelize_module
from netbuilder.parallel.build import build
from netbuilder.parallel.input import prefetch
from netbuilder.passes import Devices
from netbuilder.proto import PROTO_CPU, NetDef, NetError, ShapeError
from parallel_models import OPTIMIZERS, parallelize
from toy_models import scaled_loss

WORLD = 4
BATCH = {
    "data": np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32),
    "label": np.arange(8, dtype=np.int32) % 4,
}


def dropped(scales):
    def forward(model: ModelHelper, loss_scale):
        scales.append(float(loss_scale))
        x = brew.dropout(model, brew.fc(model, "data", "fc1", 6, 8), "dropped", ratio=0.5, is_test=False)
        return scaled_loss(model, brew.fc(model, x, "fc2", 8, 4), loss_scale)

    return forward


@pytest.fixture
def process(monkeypatch):
    """A function that builds the model of a process with so many devices in a world."""

    def make(devices, world, **options):
        monkeypatch.setattr(
            parallelize_module, "build", lambda model, asked: build(model, dataclasses.replace(asked, world=world))
        )
        reset_names()
        scales = []
        model, record = parallelize(range(devices), dropped(scales), OPTIMIZERS["sgd"], **options)
        return model, record, scales

    return make


def ran(model, record, batch):
    """Feed a process its part of a batch and run a step; return masks, and the gradients that its replicas sum to."""
    workspace = Workspace(seed=3)
    parallel.RunInitNet(model, workspace=workspace)
    with prefetch(model, [batch], blobs=["data", "label"], workspace=workspace) as batches:
        for _ in batches:
            parallel.RunNet(model, workspace=workspace)
    names = [group.values for group in record.gradients]
    masks = [workspace.fetch(blob) for blob in record.devices.copies("_dropped_mask")]
    return np.concatenate(masks), {name: workspace.fetch("cpu_0/" + name) for name in names}


def test_two_processes_of_two_replicas_are_one_of_four(process):
    want, gradients = ran(*process(4, World())[:2], BATCH)
    found = []
    for rank in range(2):
        model, record, scales = process(2, World(WORLD, 2 * rank, rank))
        assert (record.world, len(record), scales) == (World(WORLD, 2 * rank, rank), 2, [0.25, 0.25])
        found.append(ran(model, record, BATCH))
    np.testing.assert_array_equal(np.concatenate([masks for masks, _ in found]), want)
    assert (want[:4] != want[4:]).any()
    for name, whole in gradients.items():
        summed = sum(of_process[name] for _, of_process in found)
        np.testing.assert_allclose(summed, whole, rtol=1e-5, atol=1e-7, err_msg=name)
        assert np.abs(found[0][1][name] - whole).max() > 1e-4


@pytest.mark.parametrize("shares", [[2, 2, 2, 1], [2, 2, 2, 2], [2, 1, 1, 1], [1, 1, 1, 0]])
def test_uneven_shares_weigh_what_they_have_of_the_whole_batch(process, shares):
    samples = sum(shares)
    batch = {name: rows[:samples] for name, rows in BATCH.items()}
    seen, weights = [], []
    for rank in range(2):
        model, record, _ = process(2, World(WORLD, 2 * rank, rank), weighted_shares=True)
        workspace = Workspace()
        for given in parallel.feed_shares(model, batch, workspace=workspace):
            assert len(given["data"]) == sum(shares[2 * rank : 2 * rank + 2])
            seen.append(given["data"])
            weights += [workspace.fetch(blob) for blob in record.devices.copies("share_weight")]
            rows = parallel.gather_shares(model, "data", samples, workspace=workspace)
            np.testing.assert_array_equal(rows, given["data"])
    np.testing.assert_array_equal(np.concatenate(seen), batch["data"])
    np.testing.assert_allclose(np.ravel(weights), [WORLD * share / samples for share in shares], rtol=1e-6)


def test_a_batch_that_the_processes_cannot_share_is_refused(process):
    model, _, _ = process(2, World(WORLD, 2, 1))
    batch = {name: rows[:6] for name, rows in BATCH.items()}
    with pytest.raises(
        ShapeError,
        match="6 samples, which cannot be split evenly over the 4 replicas of all processes; give a multiple",
    ):
        with prefetch(model, [batch], blobs=["data", "label"], workspace=Workspace()) as batches:
            next(iter(batches))


def test_a_process_of_one_replica_scales_by_the_world(process):
    _, record, scales = process(1, World(WORLD, 3, 2))
    assert scales == [0.25] and record.world.first_replica == 3


def test_it_is_stored_and_read_back():
    devices = Devices(PROTO_CPU, (0, 1))
    for world in (World(), World(2), World(5, 3, 2)):
        net = NetDef(name="net")
        record = Replicas(devices, world=world)
        record.store(net)
        assert Replicas.load(net) == record and record.world == (world if world.size > 2 else World(2))
        assert any("world" in argument.name for argument in net.arg) == (world.size > 2)


@pytest.mark.parametrize("world", [World(1), World(4, 3, 1), World(4, 0, 1), World(4, 1, -1), World(4, -1, 0)])
def test_a_world_without_room_is_refused(world):
    with pytest.raises(NetError, match=f"rank {world.rank} with replicas .* does not fit into a world of {world.size}"):
        Replicas(Devices(PROTO_CPU, (0, 1)), world=world)


@pytest.mark.parametrize(
    "devices, world, own, said",
    [
        (2, World(2), False, "are split in order over CPU 0, 1"),
        (2, World(4, 2, 1), False, "all processes, split in order over 4 replicas; rank 1 of 2 has replicas 2 to 3"),
        (
            1,
            World(3, 1, 1),
            False,
            "are those of all processes, split in order over 3 replicas; rank 1 of 3 has replica 1",
        ),
        (2, World(4, 2, 1), True, "are the own ones of rank 1 of 2, and are split in order over its 2 replicas"),
    ],
)
def test_the_log_says_which_part_of_a_batch_a_process_has(process, caplog, devices, world, own, said):
    model, _, _ = process(devices, world, weighted_shares=own)
    source = parallel.process_batches([BATCH], ProcessGroup()) if own else [BATCH]
    with caplog.at_level(logging.INFO, "netbuilder.input"):
        prefetch(model, source, blobs=["cpu_0/data", "label"], workspace=Workspace()).close()
    (message,) = [record.message for record in caplog.records if record.message.startswith("model")]
    assert message.startswith(f"model {model.name!r}: batches of 'data', 'label' are ") and message.endswith(said)
