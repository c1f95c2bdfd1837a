"""LossReader: the values of a run, returned one call later, on the CPU and on GPUs."""

import numpy as np
import pytest

from emulated_gpu.machine import HOST
from netbuilder.data import BlobsQueue
from netbuilder.engines.gpu import gpu
from netbuilder.proto import PROTO_CUDA, BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import LossReader, Workspace
from on_gpu import gpus


def test_values_come_one_call_later():
    workspace = Workspace()
    reader = LossReader(workspace, {"loss": ["a", "b"], "count": ["n"]})
    found = []
    for k in range(3):
        workspace.feed("a", np.float32(k))
        workspace.feed("b", np.float32([k + 2]))
        workspace.feed("n", k)
        found.append(reader.read())
    assert found == [None, {"loss": 1.0, "count": 0.0}, {"loss": 2.0, "count": 1.0}]
    assert reader.last() == {"loss": 3.0, "count": 2.0}
    assert reader.last() is None
    assert reader.read() is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(2, np.float32), r"blob 'x' must hold one number, got shape \(2,\) of float32"),
        ("text", "blob 'x' must hold one number, got"),
        (BlobsQueue(1, 1, "queue"), "blob 'x' must hold one number, got no tensor"),
        (None, "no blob 'x' in the workspace"),
    ],
)
def test_what_is_no_number(value, message):
    workspace = Workspace()
    reader = LossReader(workspace, ["x"])
    if value is not None:
        workspace.feed("x", value)
    with pytest.raises(BlobError, match=message):
        reader.read()


def test_an_empty_blob_and_wrong_names():
    workspace = Workspace()
    workspace.make("x")
    with pytest.raises(BlobError, match="blob 'x' holds no value; feed it"):
        LossReader(workspace, ["x"]).read()
    for blobs in ([], {"loss": []}):
        with pytest.raises(NetError, match="at least one blob"):
            LossReader(workspace, blobs)
    with pytest.raises(NetError, match="blobs must be a list or a mapping, .*, got 'loss'"):
        LossReader(workspace, "loss")


def reader_on_gpus():
    """Return a workspace with a net whose sum on each of two GPUs doubles in each run, and a reader of both."""
    workspace = Workspace(threads=2)
    net = NetDef(name="net", type="dag", num_workers=2)
    for k in range(2):
        device = make_device_option(PROTO_CUDA, k)
        workspace.feed(f"x{k}", np.float32([1, 2]), device)
        net.external_input.append(f"x{k}")
        net.op.append(make_op("Scale", [f"x{k}"], [f"x{k}"], scale=2.0, device_option=device))
        net.op.append(make_op("SumElements", [f"x{k}"], [f"s{k}"], device_option=device))
    workspace.create_net(net)
    return workspace, LossReader(workspace, {"s": ["s0", "s1"]})


def test_losses_of_two_gpus(two_gpus):
    workspace, reader = reader_on_gpus()
    found = []
    for _ in range(4):
        workspace.run_net("net", wait=False)
        found.append(reader.read())
    assert [*found, reader.last()] == [None, *({"s": 3.0 * 2**k} for k in range(1, 5))]
    workspace.net("net").finish()


@pytest.mark.emulated
def test_on_gpus_a_read_waits_for_the_run_before_alone():
    with gpus(2) as machine:
        workspace, reader = reader_on_gpus()
        workspace.run_net("net", wait=False)
        reader.read()
        for _ in range(3):
            workspace.run_net("net", wait=False)
            run_done = [gpu(k).record_event() for k in range(2)]
            reader.read()
            assert not all(event.done for event in run_done), "the host has waited for all that the GPUs were given"
        reader.last()
        assert sum(transfer.target == HOST for transfer in machine.transfers) == 8
        workspace.net("net").finish()
        workspace.reset()
