"""Blobs made equal on all replicas after a load, and wherever a caller asks."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.graph import BlobReference, Net
from netbuilder.proto import ArgumentError, BlobError, NetError
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, parallelize, train


def shifted(workspace, blob):
    workspace.feed(blob, workspace.fetch(blob) + np.float32(1))
    return workspace.fetch(blob)


def test_after_a_load_all_that_the_init_net_makes_is_equal_again():
    model, record, workspace = train([0, 1, 2], OPTIMIZERS["momentum"])
    names = [*record.parameters, *(name + "_momentum" for name in record.parameters)]
    loaded = {name: shifted(workspace, "cpu_0/" + name) for name in names}
    parallel.FinalizeAfterCheckpoint(model, workspace=workspace)
    for name, want in loaded.items():
        for blob in record.devices.copies(name):
            assert np.array_equal(workspace.fetch(blob), want), blob


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "blobs", [["fc1_w"], ["cpu_0/fc1_w"], ["cpu_1/fc1_w"], [BlobReference("fc1_w")], ("fc1_w", "cpu_0/fc1_w")], ids=str
)
def test_names_with_scope_and_without(blobs):
    model, _, workspace = train([0, 1])
    loaded = shifted(workspace, "cpu_0/fc1_w")
    other = shifted(workspace, "cpu_0/fc2_w")
    parallel.FinalizeAfterCheckpoint(model, blobs, cpu_mode=True, workspace=workspace)
    assert np.array_equal(workspace.fetch("cpu_1/fc1_w"), loaded)
    assert not np.array_equal(workspace.fetch("cpu_1/fc2_w"), other)


def test_it_may_be_called_often_and_with_other_blobs():
    model, _, workspace = train([0, 1])
    nets = workspace.nets()
    for name in ("fc1_w", "fc2_w", "fc2_b", "fc1_w"):
        loaded = shifted(workspace, "cpu_0/" + name)
        parallel.FinalizeAfterCheckpoint(model, [name], workspace=workspace)
        assert np.array_equal(workspace.fetch("cpu_1/" + name), loaded), name
    assert workspace.nets() == nets
    parallel.RunNet(model, workspace=workspace)
    assert np.array_equal(workspace.fetch("cpu_0/fc1_w"), workspace.fetch("cpu_1/fc1_w"))


def test_a_shared_model_has_nothing_to_copy_but_its_own():
    model, record = parallelize([0, 1], optimizer=OPTIMIZERS["momentum"], shared_model=True)
    workspace = Workspace(threads=1)
    for scope in record.devices.scopes:
        workspace.feed(scope + "data", np.zeros((2, 6), np.float32))
        workspace.feed(scope + "label", np.zeros(2, np.int32))
    parallel.RunInitNet(model, workspace=workspace)
    parallel.FinalizeAfterCheckpoint(model, workspace=workspace)
    parallel.FinalizeAfterCheckpoint(model, ["fc1_w"], workspace=workspace)
    assert not workspace.has("cpu_1/fc1_w") and not workspace.has("cpu_1/fc1_w_momentum")


def test_unknown_blobs_are_named():
    model, _, workspace = train([0, 1])
    with pytest.raises(BlobError, match="blob 'fc7_w': the replicas on CPU 0, 1 have no blob of this name"):
        parallel.FinalizeAfterCheckpoint(model, ["fc1_w", "fc7_w"], workspace=workspace)
    with pytest.raises(BlobError, match="blob 'cpu_util'"):
        parallel.AddBlobSync(model, ["cpu_util"])
    with pytest.raises(ArgumentError, match="AddBlobSync: blobs must be a list, got 'fc1_w'"):
        parallel.AddBlobSync(model, "fc1_w")
    with pytest.raises(TypeError, match="got 3 of type int"):
        parallel.FinalizeAfterCheckpoint(model, [3], workspace=workspace)


def test_blobs_that_do_not_exist_yet_are_named():
    model, _ = parallelize([0, 1])
    with pytest.raises(BlobError, match=r"blobs \['cpu_0/fc1_w'.* are not in the workspace; run the init net"):
        parallel.FinalizeAfterCheckpoint(model, workspace=Workspace(threads=1))


def test_a_sync_can_be_added_to_the_main_net_or_another():
    model, record = parallelize([0, 1, 4])
    count = model.net.op_len
    parallel.AddBlobSync(model, ["softmax", BlobReference("cpu_4/data")])
    added = [(op.type, op.input[0], op.output[0], op.device_option.device_id) for op in model.net.Proto().op[count:]]
    assert added == [
        ("Copy", "cpu_0/softmax", "cpu_1/softmax", 0),
        ("Copy", "cpu_0/softmax", "cpu_4/softmax", 0),
        ("Copy", "cpu_0/data", "cpu_1/data", 0),
        ("Copy", "cpu_0/data", "cpu_4/data", 0),
    ]
    other = Net("sync")
    parallel.AddBlobSync(model, ["fc1_b"], other)
    assert list(other.Proto().external_input) == ["cpu_0/fc1_b"]
    workspace = Workspace(threads=1)
    for blob, value in zip(record.blobs("fc1_b"), (1, 2, 3)):
        workspace.feed(blob, np.full(8, value, np.float32))
    workspace.run_net_once(other)
    assert [workspace.fetch(blob)[0] for blob in record.blobs("fc1_b")] == [1, 1, 1]


def test_one_host_does_not_wait():
    model, _ = parallelize([0, 1])
    parallel.Synchronize(model)
    parallel.Synchronize(model, timeout_sec=5)
    for wrong in (0, "long"):
        with pytest.raises(NetError, match=f"timeout_sec must be a (positive )?number.*, got {wrong!r}"):
            parallel.Synchronize(model, wrong)
