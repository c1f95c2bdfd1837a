"""The values with which the replicas of all processes begin: those of the first one, or the mean of all."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.distributed import Rendezvous, require_equal_blobs
from netbuilder.graph import ScopedBlobReference
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.proto import NetError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, no_input
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import mlp, scaled_loss

AVERAGED = {"average_initial_parameters": True}


def given_parameter(model, name):
    """A parameter that the init net copies from a blob, so that each replica of each process may begin with its own."""
    model.param_init_net.Copy(ScopedBlobReference(name + "_given"), name)
    parameter = ScopedBlobReference(name)
    model.AddParameter(parameter)
    return parameter


def layer(model, loss_scale, outside=None):
    """The scores of 4 classes: data (N, 6), label (N,)."""
    w = given_parameter(model, "w")
    b = given_parameter(model, "b") if outside is None else outside
    return scaled_loss(model, model.net.FC(["data", w, b], "scores"), loss_scale)


def built(rank=0, processes=1, devices=1, outside=False, optimizer="momentum", **options):
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    common = given_parameter(model, "b") if outside else None
    place = Rendezvous(processes, rank) if processes > 1 else None
    record = parallel.Parallelize_CPU(
        model, no_input, lambda m, scale: layer(m, scale, common), optimizer_builder_fun=OPTIMIZERS[optimizer],
        devices=list(range(devices)), rendezvous=place, **options,
    )  # fmt: skip
    return model, record


def begun(model, record, rank=0):
    """Return the workspace after the init net; the replica with the number k has given 3 k, 3 k + 1, 3 k + 2, ...."""
    workspace = Workspace(threads=1)
    for replica, scope in enumerate(record.devices.scopes):
        number = rank * len(record) + replica
        workspace.feed(scope + "w_given", 3 * number + np.arange(24, dtype=np.float32).reshape(4, 6))
        workspace.feed(scope + "b_given", np.full(4, 3 * number, np.float32))
        workspace.feed(scope + "data", np.zeros((2, 6), np.float32))
        workspace.feed(scope + "label", np.zeros(2, np.int32))
    workspace.feed("b_given", np.full(4, 3 * rank, np.float32))
    parallel.RunInitNet(model, workspace=workspace)
    return workspace


def check(workspace, record, mean, mean_of_processes):
    for scope in record.devices.scopes:
        w = mean + np.arange(24, dtype=np.float32).reshape(4, 6)
        np.testing.assert_allclose(workspace.fetch(scope + "w"), w, rtol=1e-6)
        if not record.outside:
            np.testing.assert_allclose(workspace.fetch(scope + "b"), mean, rtol=1e-6)
    if record.outside:
        np.testing.assert_allclose(workspace.fetch("b"), mean_of_processes, rtol=1e-6)


@pytest.mark.parametrize("options, factor", [({}, 0), (AVERAGED, 1)])
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_replicas_of_a_process(devices, outside, options, factor):
    model, record = built(devices=devices, outside=outside, **options)
    check(begun(model, record), record, factor * 3 * (devices - 1) / 2, 0)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("options, factor", [({}, 0), (AVERAGED, 1), ({**AVERAGED, "deterministic": True}, 1)])
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("processes, devices", [(2, 1), (2, 2), (3, 2)])
def test_replicas_of_several_processes(processes, devices, outside, options, factor, monkeypatch):
    use_thread_worlds(monkeypatch, processes)
    made = [built(rank, processes, devices, outside, **options) for rank in range(processes)]

    def run(rank):
        model, record = made[rank]
        workspace = begun(model, record, rank)
        check(workspace, record, factor * 3 * (processes * devices - 1) / 2, factor * 3 * (processes - 1) / 2)
        require_equal_blobs(model, workspace=workspace)
        return True

    assert on_ranks(processes, run) == [True] * processes


def test_a_shared_model_begins_with_its_own():
    model, _ = built(devices=2, shared_model=True, **AVERAGED)
    assert not any(op.type in ("Sum", "Scale") for op in model.param_init_net.Proto().op)


def test_what_the_optimizer_keeps_is_not_averaged():
    model, record = built(0, 2, 2, **AVERAGED)
    scaled = [op.output[0] for op in model.param_init_net.Proto().op if op.type == "Scale"]
    assert scaled == [record.blobs(name)[0] for name in record.parameters]


@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
def test_nccl_sums_over_all_gpus():
    place = Rendezvous(2, 1, "NCCL", kv_handler="store")
    model = ModelHelper("net")
    options = {"optimizer_builder_fun": OPTIMIZERS["sgd"], "devices": [0, 1], "rendezvous": place, **AVERAGED}
    record = parallel.Parallelize_GPU(model, no_input, mlp, **options)
    ops = list(model.param_init_net.Proto().op)
    (summed,) = [op for op in ops if op.type == "AllreduceBucket"]
    assert list(summed.output) == [blob for name in record.parameters for blob in record.blobs(name)]
    assert arguments(summed)["devices"] == 2
    scales = [op for op in ops if op.type == "Scale"]
    assert {(arguments(op)["scale"], op.device_option.device_id) for op in scales} == {(0.25, 0)}
    assert ops.index(summed) < ops.index(scales[0]) < min(i for i, op in enumerate(ops) if op.type == "BroadcastBucket")


def test_a_model_without_an_update_is_refused():
    with pytest.raises(NetError, match="average_initial_parameters=True is for training"):
        parallel.Parallelize_CPU(ModelHelper("net", init_params=False), no_input, mlp, devices=[0], **AVERAGED)
